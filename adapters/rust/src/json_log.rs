//! The adapter's own log: JSON lines on standard error.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// Logs what is as it should be.
pub fn info(message: &str, fields: &[(&str, &str)]) {
    line("INFO", message, fields);
}

/// Logs what may become a fault.
pub fn warning(message: &str, fields: &[(&str, &str)]) {
    line("WARNING", message, fields);
}

/// Logs a fault.
pub fn error(message: &str, fields: &[(&str, &str)]) {
    line("ERROR", message, fields);
}

fn line(level: &str, message: &str, fields: &[(&str, &str)]) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut entry = Map::from_iter([("time".to_owned(), time.into()), ("level".to_owned(), level.into())]);
    entry.insert("message".to_owned(), message.into());
    entry.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))));
    let text = format!("{}\n", Value::Object(entry));
    let _ = std::io::stderr().write_all(text.as_bytes()); // there is nowhere else to say it
}
