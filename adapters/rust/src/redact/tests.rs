use proptest::prelude::*;

use super::*;
use crate::api::{self, mcp_server::Transport};

const SECRET: &str = "s3cr\u{e9}t \"value\"/0815";

fn redactor(secrets: &[&str]) -> Redactor {
    Redactor::new(&secrets.iter().map(|secret| (*secret).to_owned()).collect::<Vec<_>>())
}

fn streamed(redactor: &Redactor, pieces: &[&str]) -> String {
    let mut stream = redactor.stream();
    let mut shown: String = pieces.iter().map(|piece| stream.feed(redactor, piece).0).collect();
    shown.push_str(&stream.flush(redactor));
    shown
}

/// Returns a text in pieces that end at some of its characters.
fn cut_at<'a>(text: &'a str, places: &[usize]) -> Vec<&'a str> {
    let mut places: Vec<usize> =
        places.iter().map(|place| text.floor_char_boundary(place % (text.len() + 1))).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn pieces_are_redacted_as_the_whole(before in "[a-t \\n]{0,30}", after in "[a-t \\n]{0,30}", places: Vec<usize>) {
        let redactor = redactor(&[SECRET, "other-secret-17"]);
        let text = format!("{before}{SECRET}{after}other-secret-17{before}");
        let shown = streamed(&redactor, &cut_at(&text, &places));
        prop_assert_eq!(&shown, &redactor.text(&text).into_owned());
        prop_assert_eq!(shown, format!("{before}{MASK}{after}{MASK}{before}"));
    }

    #[test]
    fn any_text_in_pieces_is_redacted_as_the_whole(text: String, places: Vec<usize>) {
        let redactor = redactor(&["aaaaaa", "\u{1b}[0mb-c-d-e"]);
        prop_assert_eq!(streamed(&redactor, &cut_at(&text, &places)), redactor.text(&text).into_owned());
    }

    #[test]
    fn a_secret_is_found_wherever_it_is_interrupted(place in 0..SECRET.len(), order in "\u{1b}\\[[0-9;]{0,5}m|\r|\u{200b}") {
        let place = SECRET.floor_char_boundary(place);
        let text = format!("<{}{order}{}>", &SECRET[..place], &SECRET[place..]);
        let shown = redactor(&[SECRET]).text(&text).into_owned();
        prop_assert!(shown.contains(MASK) && !shown.contains("0815"), "{shown:?}");
    }

    #[test]
    fn any_secret_is_found_in_all_its_forms(secret in "[ -~]{8,40}") {
        prop_assume!(secret.trim().len() >= 8);
        let redactor = redactor(&[&secret]);
        for form in forms::forms_of(&secret) {
            let shown = redactor.text(&format!("\u{ab}{form}\u{bb}")).into_owned();
            prop_assert!(!shown.contains(&form), "{form:?} in {shown:?}");
        }
    }

    #[test]
    fn bytes_are_redacted_as_texts(text: String) {
        let redactor = redactor(&["aaaaaa"]);
        let text = format!("{text}aaaaaa{text}");
        let shown = redactor.bytes(text.as_bytes());
        prop_assert_eq!(shown, Some(redactor.text(&text).into_owned().into_bytes()));
    }
}

#[test]
fn a_text_without_secrets_is_itself() {
    assert!(matches!(redactor(&[SECRET]).text("s3cr\u{e9}t value"), Cow::Borrowed(_)));
    assert_eq!(redactor(&["short"]).text("a short text"), "a short text");
    assert!(redactor(&[]).is_empty());
}

#[test]
fn what_may_become_a_secret_is_held_back() {
    let redactor = redactor(&["secret-0815"]);
    let mut stream = redactor.stream();
    assert_eq!(stream.feed(&redactor, "a secret"), ("a ".to_owned(), false));
    assert_eq!(stream.feed(&redactor, "s"), ("secret".to_owned(), false));
    assert_eq!(stream.flush(&redactor), "s");
}

#[test]
fn secrets_of_a_request() {
    let env = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let stdio = api::McpStdio {
        args: ["--token", "arg-secret", "--api-key=key-secret", "X_TOKEN=$X", "Authorization: Bearer head-secret"]
            .map(String::from)
            .into(),
        ..Default::default()
    };
    let request = api::ExecuteRequest {
        auth_token: "word".into(),
        env: env(&[
            ("MY_TOKEN", "Bearer token-1"),
            ("PLAIN", "nothing"),
            ("RANDOM", "aB3dE6gH9jK2mN5pQ8sT"),
            ("MAX_TOKENS", "4096"),
            ("PASSWORD", "success"),
            ("URL", "https://me:p%40ss-1@host/?api_key=in-query&page=2"),
        ]),
        mcp_servers: vec![api::McpServer { transport: Some(Transport::Stdio(stdio)), ..Default::default() }],
        ..Default::default()
    };
    let mut found = secrets(&request);
    found.sort();
    let expected = [
        "Bearer token-1",
        "aB3dE6gH9jK2mN5pQ8sT",
        "arg-secret",
        "head-secret",
        "in-query",
        "key-secret",
        "p%40ss-1",
        "p@ss-1",
        "token-1",
        "word",
    ];
    assert_eq!(found, expected);
}

#[test]
fn names_of_secrets() {
    let secret = ["API_KEY", "apiKey", "token", "GITHUB_TOKEN", "clientSecret", "Authorization", "SESSION_COOKIE"];
    let plain = ["KEYBOARD", "token_expires", "SECRET_NAME", "PUBLIC_KEY", "PATH", "monkey", "API_KEY_FILE"];
    assert!(secret.iter().all(|name| names::is_secret_entry(name, "1234")));
    assert!(!plain.iter().any(|name| names::is_secret_entry(name, "some value")));
    assert!(!names::is_secret_entry("MAX_TOKENS", "4096"));
    assert!(names::is_secret_entry("TOKENS", "abc"));
}
