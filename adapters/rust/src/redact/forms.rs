//! The forms in which a secret may be shown.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::without_interruptions;

/// Characters; a shorter value stands in too many words by chance.
const SHORTEST_SECRET: usize = 6;
/// Of a line of a secret that counts as a secret of its own.
const SHORTEST_LINE: usize = 16;
/// A longer secret is not looked for in hexadecimal and the like.
const LONGEST_ENCODED: usize = 4096;

/// Returns the forms in which a secret is looked for, without what may interrupt them; none if it is too short.
pub fn forms_of(secret: &str) -> BTreeSet<String> {
    let mut values = vec![secret, secret.trim()];
    if secret.contains('\n') {
        // Output arrives line by line.
        values.extend(
            secret
                .split('\n')
                .map(str::trim)
                .filter(|line| line.len() >= SHORTEST_LINE && !line.contains(' ') && !line.starts_with("-----")),
        );
    }
    let all = values.into_iter().flat_map(encodings);
    all.map(|form| without_interruptions(&form)).filter(|form| form.trim().len() >= SHORTEST_SECRET).collect()
}

fn encodings(value: &str) -> Vec<String> {
    let once = json_escapes(value);
    let mut forms = vec![value.to_owned()];
    for escaped in &once {
        forms.extend(json_escapes(escaped));
    }
    forms.extend(once);
    if value.len() > LONGEST_ENCODED {
        return forms;
    }
    let hex = value.bytes().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}"); // a String takes anything
        out
    });
    forms.push(hex.to_uppercase());
    forms.push(hex);
    forms.extend(quotations(value));
    forms.extend(percent_forms(value.as_bytes()));
    forms.extend(base64_forms(value.as_bytes()));
    forms
}

fn json_escapes(value: &str) -> [String; 3] {
    let quoted = serde_json::Value::from(value).to_string();
    let unicode = quoted[1..quoted.len() - 1].to_owned();
    let escape = |is_escaped: fn(char) -> bool| {
        unicode.chars().fold(String::new(), |mut out, character| {
            if is_escaped(character) {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            } else {
                out.push(character);
            }
            out
        })
    };
    let html = escape(|character| matches!(character, '<' | '>' | '&' | '\u{2028}' | '\u{2029}'));
    let ascii = escape(|character| !character.is_ascii());
    [unicode, html, ascii]
}

/// Returns a value as shells, Python and HTML quote it.
fn quotations(value: &str) -> Vec<String> {
    let backslashed = |special: &str| {
        value.chars().fold(String::new(), |mut out, character| {
            if special.contains(character) {
                out.push('\\');
            }
            out.push(character);
            out
        })
    };
    let html = |quote: &str, apostrophe: &str| {
        let escaped = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        escaped.replace('"', quote).replace('\'', apostrophe)
    };
    vec![
        value.replace('\'', r"'\''"),
        value.replace('\'', r#"'"'"'"#),
        backslashed("\"\\$`"),
        backslashed(" \t'\"\\|&;()<>!{}*[]?^$`#~,"),
        backslashed(r"'\"),
        html("&#34;", "&#39;"),
        html("&quot;", "&apos;"),
        html("&quot;", "&#x27;"),
        json_escapes(value)[0].replace('/', r"\/"),
    ]
}

fn percent_forms(data: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for unstated in ["-._~", "-._~/", "-._~$&+:=@"] {
        for is_upper in [true, false] {
            let mut out = String::new();
            for &byte in data {
                if byte.is_ascii_alphanumeric() || unstated.as_bytes().contains(&byte) {
                    out.push(char::from(byte));
                } else if is_upper {
                    let _ = write!(out, "%{byte:02X}");
                } else {
                    let _ = write!(out, "%{byte:02x}");
                }
            }
            forms.push(out.replace("%20", "+"));
            forms.push(out);
        }
    }
    forms
}

/// Returns what is the same in base64 wherever the value stands: one form for each of three alignments.
fn base64_forms(data: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3_usize {
        let (first, last) = ((8 * before).div_ceil(6), 8 * (before + data.len()) / 6);
        let padded = [&vec![0; before], data].concat();
        let core = STANDARD.encode(padded)[first..last].to_owned();
        forms.push(core.replace('+', "-").replace('/', "_"));
        forms.push(core);
    }
    forms
}
