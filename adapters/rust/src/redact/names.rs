//! What a name says about the value under it.

use std::sync::LazyLock;

use regex_lite::Regex;
use serde_json::Value;

const SECRET_WORDS: &[&str] =
    &["key", "token", "secret", "password", "passwd", "passphrase", "authorization", "cookie"];

/// Final words of names that say where a secret is, what it is called or how long it lives, not what it is.
const DESCRIPTORS: &str = "name type kind source path file dir directory url uri endpoint env helper status state \
    provider scheme algorithm format version ref var variable";
const LIFETIMES: &str = "expires expiry expiration expired ttl";

/// Words that contain a secret word by accident of spelling.
const INNOCENT: &str = "keyboard keyword keywords keyframe keyframes keymap keypress keydown keyup keystroke keystrokes \
    monkey turkey hockey tokenize tokenized tokenizer tokenization keyring hotkey hotkeys";

/// Words that make an amount of a token.
const PLURALS: &str = "tokens keys cookies secrets passwords";
const COUNTING: &str = "count counts counter limit max min maximum minimum total num number budget usage used remaining \
    size length cost price rate per index";

/// Words of a caller's own variables that are secret by them.
const CALLER_WORDS: &str =
    "pass pwd pat auth cred creds credential credentials bearer jwt dsn salt private signature signing";

/// Values that stand under secret names, and in every text.
const COMMON: &str = "oauth2 read-only read-write us-east-1 localhost";

macro_rules! pattern {
    ($name:ident, $pattern:literal) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("a constant pattern"));
    };
}

pattern!(
    CREDENTIAL,
    "(?i)token|secret|password|passwd|passphrase|authorization|cookie|(?:api|access|private)[-_ ]?key"
);
pattern!(WORDS, "[A-Z]+[a-z]*|[a-z]+|[0-9]+");
pattern!(NUMERIC, r"^\s*[+-]?[0-9][0-9_.,]*\s*$");
pattern!(HEX_DIGITS, "^(?:[0-9a-f]{32,}|[0-9A-F]{32,})$");
pattern!(RANDOM, "^[A-Za-z0-9_+=~.-]{20,}$");
pattern!(PLAIN_WORD, "^(?:[a-z]{1,12}|[A-Z]{1,12}|[A-Z][a-z]{1,11})$");

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// Numbers under it are amounts, other text may be secret.
    Counter,
    Secret,
}

fn is_in(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|member| member == word)
}

fn has_secret_word(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| lower.contains(word))
}

/// Returns what a name says about the value under it.
pub fn kind_of(name: &str) -> Kind {
    if !has_secret_word(name) {
        return Kind::Plain;
    }
    let parts = words_of(name);
    let ends_with_descriptor = parts.last().is_none_or(|word| is_in(DESCRIPTORS, word));
    if ends_with_descriptor || parts.iter().any(|word| is_in(LIFETIMES, word)) {
        return Kind::Plain;
    }
    let hits: Vec<&String> = parts.iter().filter(|word| has_secret_word(word)).collect();
    let is_accident = !hits.is_empty() && hits.iter().all(|word| is_in(INNOCENT, word));
    let only_keys = hits.iter().all(|word| matches!(word.as_str(), "key" | "keys"));
    if is_accident || (only_keys && parts.iter().any(|word| word == "public")) {
        return Kind::Plain;
    }
    if hits.iter().any(|word| is_in(PLURALS, word)) || parts.iter().any(|word| is_in(COUNTING, word)) {
        return Kind::Counter;
    }
    Kind::Secret
}

fn words_of(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for found in WORDS.find_iter(name) {
        let word = found.as_str();
        // "APIKey" is two words, and "API" one.
        let upper = word.bytes().take_while(u8::is_ascii_uppercase).count();
        let (first, second) = if upper > 1 && upper < word.len() { word.split_at(upper - 1) } else { ("", word) };
        parts.extend([first, second].iter().filter(|part| !part.is_empty()).map(|part| part.to_ascii_lowercase()));
    }
    parts
}

/// Returns whether a value is an amount.
pub fn is_numeric(value: &str) -> bool {
    NUMERIC.is_match(value)
}

/// Returns whether a value is secret by its name.
pub fn is_secret_entry(name: &str, value: &str) -> bool {
    match kind_of(name) {
        Kind::Secret => !value.is_empty(),
        Kind::Counter => !value.is_empty() && !is_numeric(value),
        Kind::Plain => false,
    }
}

/// Returns whether a variable that a caller gave is secret: the documentation sends secrets there.
pub fn is_caller_secret(name: &str, value: &str) -> bool {
    if value.is_empty() || is_secret_entry(name, value) {
        return !value.is_empty();
    }
    if words_of(name).iter().any(|word| is_in(CALLER_WORDS, word)) {
        return !is_numeric(value);
    }
    looks_random(value)
}

/// Returns whether a name of a caller is that of a secret.
pub fn is_caller_secret_name(name: &str) -> bool {
    kind_of(name) == Kind::Secret || words_of(name).iter().any(|word| is_in(CALLER_WORDS, word))
}

fn looks_random(value: &str) -> bool {
    if HEX_DIGITS.is_match(value) {
        return value.len() != 40; // the length of a commit's
    }
    let has = |is: fn(&u8) -> bool| value.as_bytes().iter().any(is);
    has(u8::is_ascii_digit) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) && RANDOM.is_match(value)
}

/// Returns whether a value is a word, which stands in every text.
pub fn is_word(value: &str) -> bool {
    is_in(COMMON, &value.to_lowercase()) || PLAIN_WORD.is_match(value)
}

/// Returns whether templates do not reach what is under a key of an agent's settings, or of other data.
pub fn is_hidden_key(key: &str, value: &Value, is_setting: bool) -> bool {
    if is_setting && key.eq_ignore_ascii_case("env") {
        return true;
    }
    if !is_setting && !CREDENTIAL.is_match(key) {
        return false;
    }
    match (kind_of(key), value) {
        (Kind::Secret, _) => true,
        (Kind::Counter, Value::String(text)) => !is_numeric(text),
        (Kind::Counter, value) => !value.is_number(),
        (Kind::Plain, _) => false,
    }
}
