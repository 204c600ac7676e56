//! Where a request has its secrets.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex_lite::Regex;
use serde_json::Value;

use super::names::{Kind, is_caller_secret, is_caller_secret_name, is_numeric, is_secret_entry, is_word, kind_of};
use crate::api::{ExecuteRequest, mcp_server::Transport};
use crate::json;

macro_rules! pattern {
    ($name:ident, $pattern:literal) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("a constant pattern"));
    };
}

pattern!(SCHEME, r"^(?i:bearer|basic|token) +(\S+)$");
pattern!(URLS, r#"[A-Za-z][A-Za-z0-9+.-]*://([^\s"'<>]+)"#);
pattern!(FLAG, r"^--?[A-Za-z][\w-]*$");
pattern!(ASSIGNMENT, r#"(--?[A-Za-z][\w-]*|[A-Za-z_][\w.-]*)(?:\s*=\s*|:\s*)("[^"]*"|'[^']*'|[^\s"';|&]+)"#);
pattern!(HEADER, r#"(?i)(?:authorization|cookie)\s*[:=]\s*[A-Za-z]+\s+([^\s"']+)"#);
pattern!(REFERENCE, r"^\$(?:\w+|\{\w+\})$");

/// Returns the secrets of a request: the token whatever it is, others unless they are words.
pub fn secrets(request: &ExecuteRequest) -> Vec<String> {
    let mut found = Collector::default();
    if !request.auth_token.is_empty() {
        found.secrets.push(request.auth_token.clone());
    }
    found.variables(&request.env);
    let stored = request.agent.as_ref().and_then(|agent| agent.adapter_config.as_ref());
    if let Some(config) = request.config.as_ref().or(stored) {
        found.setting("", &json::object(config));
    }
    found.urls(&request.api_url);
    for server in &request.mcp_servers {
        match &server.transport {
            Some(Transport::Stdio(stdio)) => {
                found.variables(&stdio.env);
                found.arguments(&stdio.args.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Some(Transport::Http(http)) => {
                found.variables(&http.headers);
                found.urls(&http.url);
            }
            None => {}
        }
    }
    found.secrets
}

#[derive(Default)]
struct Collector {
    secrets: Vec<String>,
}

impl Collector {
    fn add(&mut self, value: &str) {
        if !value.is_empty() && !is_word(value) && !self.secrets.iter().any(|known| known == value) {
            self.secrets.push(value.to_owned());
        }
    }

    fn variables(&mut self, variables: &BTreeMap<String, String>) {
        for (name, value) in variables {
            self.variable(name, value);
        }
    }

    fn variable(&mut self, name: &str, value: &str) {
        if is_caller_secret(name, value) {
            self.secret(value);
        }
        self.urls(value);
    }

    fn secret(&mut self, value: &str) {
        self.add(value);
        if let Some(found) = SCHEME.captures(value) {
            self.add(&found[1]);
        }
    }

    fn setting(&mut self, key: &str, value: &Value) {
        match value {
            Value::String(text) => {
                if is_caller_secret_name(key) && !is_numeric(text) {
                    self.secret(text);
                }
                self.urls(text);
            }
            Value::Object(entries) => {
                let is_variables = key.eq_ignore_ascii_case("env") || key.eq_ignore_ascii_case("headers");
                for (name, value) in entries {
                    match value {
                        Value::String(text) if is_variables => self.variable(name, text),
                        _ => self.setting(name, value),
                    }
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.setting(key, item);
                }
                self.arguments(&items.iter().filter_map(Value::as_str).collect::<Vec<_>>());
            }
            _ => {}
        }
    }

    /// Adds the secrets on a command line: --token X, --api-key=X, X_TOKEN=X, Authorization: X.
    fn arguments(&mut self, arguments: &[&str]) {
        let mut is_after_flag = false;
        for item in arguments {
            if is_after_flag && !item.starts_with('-') {
                self.add(item);
            }
            is_after_flag = FLAG.is_match(item) && kind_of(item) == Kind::Secret;
            for found in ASSIGNMENT.captures_iter(item) {
                let bare = found[2].trim_matches(['"', '\'']);
                if is_secret_entry(&found[1], bare) && !REFERENCE.is_match(bare) {
                    self.add(bare);
                }
            }
            for found in HEADER.captures_iter(item) {
                self.add(&found[1]);
            }
            self.urls(item);
        }
    }

    /// Adds passwords and secret parameters of URLs, as they are written there and as they are meant.
    fn urls(&mut self, text: &str) {
        if !text.contains("://") {
            return;
        }
        for found in URLS.captures_iter(text) {
            let rest = &found[1];
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            if let Some((user, _)) = authority.rsplit_once('@') {
                self.encoded(user.split_once(':').map_or(user, |(_, password)| password));
            }
            let query = rest.split('#').next().and_then(|before| before.split_once('?'));
            for parameter in query.map_or("", |(_, query)| query).split('&') {
                if let Some((name, value)) = parameter.split_once('=')
                    && is_caller_secret_name(&decoded(name))
                    && !is_numeric(value)
                {
                    self.encoded(value);
                }
            }
        }
    }

    fn encoded(&mut self, value: &str) {
        self.add(value);
        self.add(&decoded(value));
    }
}

/// Returns a part of a URL without its percent-encoding; as it is, if that is none.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(meant) => {
                out.push(meant);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}
