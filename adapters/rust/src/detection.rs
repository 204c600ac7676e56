//! Looks for an agent's program.

use std::env;
use std::path::Path;

use serde_json::{Map, Value};

use crate::api::{AuthState, DetectRequest, Detection, DetectionConfidence, EnvironmentCheck, Severity};
use crate::exec::DEFAULT_PATH;
use crate::{guard, json};

/// Returns the program of a run with these settings, of an adapter's own one; empty if there is none.
pub fn program_of<'a>(own: &'a str, config: &'a Map<String, Value>) -> &'a str {
    let configured = config.get("command").and_then(Value::as_str).unwrap_or_default();
    if configured.is_empty() { own } else { configured }
}

/// Looks for the program, of an adapter's own one; `None` if there is nothing to look for.
pub fn look(own: &str, asked: &DetectRequest) -> Option<Detection> {
    let config = match asked.config.as_ref().map(json::object) {
        Some(Value::Object(config)) => config,
        _ => Map::new(),
    };
    let program = program_of(own, &config);
    if program.is_empty() {
        return None;
    }
    let set = |path: &String| !path.is_empty();
    let path = asked.env.get("PATH").cloned().filter(set).or_else(|| env::var("PATH").ok().filter(set));
    let Some(found) = guard::look_path(program, path.as_deref().unwrap_or(DEFAULT_PATH)) else {
        return Some(Detection {
            confidence: DetectionConfidence::Absent as i32,
            message: format!("{program} was not found."),
            hint: "Install it, or set config.command to its path.".to_owned(),
            ..Detection::default()
        });
    };
    Some(Detection {
        available: true,
        executable: absolute(&found),
        auth: AuthState::Unknown as i32,
        confidence: DetectionConfidence::ExecutableOnly as i32,
        message: format!("{program} is installed."),
        ..Detection::default()
    })
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

/// Returns whether the agent is there, as a check of the environment.
pub fn check(found: Detection) -> EnvironmentCheck {
    let (level, code, hint) = if found.available {
        (Severity::Info, "command_found", String::new())
    } else {
        (Severity::Error, "command_not_found", found.hint)
    };
    let (code, level) = (code.to_owned(), level as i32);
    EnvironmentCheck { code, level, message: found.message, hint, ..EnvironmentCheck::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost_types::value::Kind;
    use prost_types::{Struct, Value as Stored};

    use super::*;

    fn found(program: &str, command: &str, path: &str) -> Option<Detection> {
        let command = Stored { kind: Some(Kind::StringValue(command.to_owned())) };
        let config = Struct { fields: BTreeMap::from([("command".to_owned(), command)]) };
        let env = BTreeMap::from([("PATH".to_owned(), path.to_owned())]);
        look(program, &DetectRequest { config: Some(config), env, ..DetectRequest::default() })
    }

    #[test]
    fn the_program_that_an_adapter_or_its_settings_name_is_looked_for() {
        for (program, command, path) in [("sh", "", "/bin"), ("/no/such/program", "sh", "/bin"), ("", "/bin/sh", "")] {
            let found = found(program, command, path).expect("there is something to look for");
            assert_eq!((found.available, found.executable.as_str(), found.hint.as_str()), (true, "/bin/sh", ""));
            assert_eq!(check(found).level, Severity::Info as i32);
        }
        for (program, command, path) in [
            ("sh", "", "/no/such/directory"),
            ("/bin/sh", "/no/such/program", "/bin"),
            ("/bin", "", ""), // a directory
        ] {
            let found = found(program, command, path).expect("there is something to look for");
            assert_eq!((found.available, found.executable.as_str()), (false, ""), "{program} {command}");
            assert!(!found.hint.is_empty());
            let checked = check(found);
            assert_eq!((checked.level, checked.code.as_str()), (Severity::Error as i32, "command_not_found"));
        }
        assert!(found("", "", "").is_none());
    }
}
