//! A JSON Schema of settings, as far as adapters use one.

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::bounds::SHOWN_KEY;
use super::cut;
use crate::reason::Violation;

/// The schema of an adapter's settings: type, enum, properties, required, additionalProperties, propertyNames.pattern,
/// items, minimum, maximum, minLength. Other rules are not checked.
pub struct Schema(Value);

impl Schema {
    /// Reads a schema. An empty text is a schema that allows anything.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(Value::Object(Map::new())));
        }
        match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => Ok(Self(value)),
            Ok(_) => Err("the schema of the settings is no JSON object".to_owned()),
            Err(error) => Err(format!("the schema of the settings is no JSON: {error}")),
        }
    }

    /// Returns what is wrong with settings, in the order of paths.
    pub fn check(&self, settings: &Value) -> Vec<Violation> {
        let mut wrong = Vec::new();
        check(&self.0, "config", settings, &mut wrong);
        wrong.sort_by(|one, other| one.field.cmp(&other.field));
        wrong
    }
}

fn check(schema: &Value, path: &str, value: &Value, wrong: &mut Vec<Violation>) {
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is(name, value)) {
        wrong.push(Violation::new(path, format!("must be of type {}", types.join(" or "))));
        return;
    }
    if let Value::Array(allowed) = &schema["enum"]
        && !allowed.iter().any(|one| equals(one, value))
    {
        let listed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        wrong.push(Violation::new(path, format!("must be one of {}", listed.join(","))));
    }
    match value {
        Value::String(text) => {
            if let Some(least) = schema["minLength"].as_u64().filter(|least| (text.chars().count() as u64) < *least) {
                wrong.push(Violation::new(path, format!("must have at least {least} characters")));
            }
            if text.contains('\0') {
                wrong.push(Violation::new(path, "must not contain a zero byte"));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
                wrong.push(Violation::new(path, format!("must be at least {least}")));
            }
            if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
                wrong.push(Violation::new(path, format!("must be at most {most}")));
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                check(&schema["items"], &format!("{path}[{number}]"), item, wrong);
            }
        }
        Value::Object(entries) => check_object(schema, path, entries, wrong),
        _ => {}
    }
}

fn check_object(schema: &Value, path: &str, object: &Map<String, Value>, wrong: &mut Vec<Violation>) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            wrong.push(Violation::new(key_path(path, name), "is required"));
        }
    }
    let others = &schema["additionalProperties"];
    let names = schema["propertyNames"]["pattern"].as_str().and_then(|pattern| {
        Regex::new(&pattern.replace(r"\u0000", r"\x00")).ok() // a pattern in another dialect is not checked
    });
    for (name, value) in object {
        let inner = key_path(path, name);
        match schema["properties"].get(name) {
            Some(own) => check(own, &inner, value, wrong),
            None if others == &Value::Bool(false) => {
                wrong.push(Violation::new(inner, format!("is not known; {}", suggestion(schema, name))));
            }
            None => check(others, &inner, value, wrong),
        }
        if names.as_ref().is_some_and(|shape| !shape.is_match(name)) {
            wrong.push(Violation::new(path, format!("must not have a key {:?}", cut(name, SHOWN_KEY))));
        }
    }
}

/// Returns what an unknown key may mean.
fn suggestion(schema: &Value, name: &str) -> String {
    let mut known: Vec<&str> =
        schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    known.sort_unstable();
    let lower = name.to_lowercase();
    let near = |candidate: &&&str| distance(&lower, &candidate.to_lowercase()) <= 1 + candidate.len() / 5;
    match known.iter().find(near) {
        Some(candidate) => format!("did you mean {candidate}?"),
        None => format!("known are: {}", known.join(", ")),
    }
}

/// Returns how many bytes must be added, removed or replaced to make one text of another.
fn distance(one: &str, other: &str) -> usize {
    if one.len() > SHOWN_KEY {
        return one.len();
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[other.len()]
}

#[allow(clippy::float_cmp)] // the numbers of a schema and of settings are written, not computed
fn equals(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().is_some_and(|number| other.as_f64() == Some(number))
}

fn is(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::String(_) => name == "string",
        Value::Number(number) => name == "number" || (name == "integer" && !number.is_f64()),
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

fn key_path(path: &str, key: &str) -> String {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_identifier = key.starts_with(is_start) && key.chars().all(|c| is_start(c) || c.is_ascii_digit() || c == '-');
    if is_identifier && key.len() <= SHOWN_KEY {
        format!("{path}.{key}")
    } else {
        format!("{path}[{:?}]", cut(key, SHOWN_KEY))
    }
}
