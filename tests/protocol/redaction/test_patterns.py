"""Secrets that no request names: by the key they are under, by their form, by their place in a command line."""

import time

import pytest
from dragoman.protocol.redaction.patterns import (
    KeyKind,
    _cached_kind,
    is_caller_secret,
    is_secret_entry,
    is_secret_flag,
    key_kind,
    mask_command,
    mask_forms,
    names_secret,
)

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4"
ANTHROPIC = "sk-ant-api03-AbCd_efGh-1234567890xyz"
GITHUB = "ghp_" + "aB3" * 12


@pytest.mark.parametrize(
    "key",
    [
        *("key", "token", "secret", "password", "authorization", "cookie"),
        *("apiKey", "API_KEY", "apikey", "X-Api-Key", "ANTHROPIC_API_KEY", "accessKeyId", "private_key"),
        *("authToken", "GH_TOKEN", "refresh_token", "CLAUDE_CODE_OAUTH_TOKEN", "mytoken", "TOKEN2"),
        *("client_secret", "secret_id", "DB_PASSWORD", "passwd", "passphrase", "password_hash"),
        *("Authorization", "Proxy-Authorization", "Set-Cookie", "passWord"),
    ],
)
def test_keys_that_name_a_secret(key: str) -> None:
    assert key_kind(key) is KeyKind.SECRET
    assert names_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        *(
            "input_tokens",
            "max_tokens",
            "token_count",
            "token_index",
            "cache_read_input_tokens",
            "tokens",
            "inputTokens",
        ),
        *("MAX_THINKING_TOKENS", "maxToken", "cachedTokens", "token_budget", "num_keys", "keys", "cookies"),
        *("token_index", "secret_length", "tokenLimit", "key_size", "cookie_count", "cost_per_token"),
    ],
)
def test_keys_that_count(key: str) -> None:
    assert key_kind(key) is KeyKind.COUNTER


@pytest.mark.parametrize(
    "key",
    [
        *("", "id", "text", "content", "path", "name", "pwd", "monk", "author", "session_id"),
        *("apiKeySource", "token_type", "token_url", "secretName", "key_file", "cookie_path", "tokenProvider"),
        *("token_expires_at", "cookieExpiry", "keyboard", "keywords", "tokenizer", "Monkey", "hotkeys"),
        *("publicKey", "public_key", "public-keys"),
    ],
)
def test_keys_that_say_nothing(key: str) -> None:
    assert key_kind(key) is KeyKind.PLAIN


def test_a_key_of_any_length_is_judged_and_only_short_ones_are_remembered() -> None:
    before = _cached_kind.cache_info().currsize
    assert key_kind("x" * 100_000 + "_token") is KeyKind.SECRET
    assert key_kind("x" * 100_000) is KeyKind.PLAIN
    assert _cached_kind.cache_info().currsize == before


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("API_KEY", "abc", True),
        ("API_KEY", "123456", True),
        ("API_KEY", "", False),
        ("MAX_TOKENS", "32000", False),
        ("MAX_TOKENS", "1,024.5", False),
        ("TOKENS", "abc", True),
        ("KEY_FILE", "/etc/key", False),
        ("PATH", "/bin", False),
    ],
)
def test_entries_are_judged_by_key_and_value(key: str, value: str, expected: bool) -> None:
    assert is_secret_entry(key, value) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"key {ANTHROPIC} end", "key [redacted] end"),
        (f'{{"k":"a\\n{ANTHROPIC}"}}', '{"k":"a\\n[redacted]"}'),
        ("sk-proj-" + "a1B2" * 10 + ".", "[redacted]."),
        (f"push with {GITHUB}, please", "push with [redacted], please"),
        ("gho_" + "a1" * 18, "[redacted]"),
        ("ghu_" + "a1" * 18, "[redacted]"),
        ("ghs_" + "a1" * 18, "[redacted]"),
        ("ghr_" + "a1" * 18, "[redacted]"),
        ("github_pat_" + "a1" * 20, "[redacted]"),
        ("glpat-" + "a1" * 10, "[redacted]"),
        ("xoxb-123456789012-abcdef", "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("ASIAIOSFODNN7EXAMPLE.", "[redacted]."),
        ("AIza" + "a" * 35, "[redacted]"),
        (f"jwt={JWT};", "jwt=[redacted];"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nx", "[redacted]\nx"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvA cut here", "[redacted]"),
        ("-----BEGIN EC PRIVATE KEY-----\\nDEK-Info: x\\nMII\\n-----END EC PRIVATE KEY-----", "[redacted]"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
        ("authorization: bearer abc.def", "authorization: bearer [redacted]"),
        ("AUTHORIZATION: Basic dXNlcjpwYXNz", "AUTHORIZATION: Basic [redacted]"),
        ('{"Authorization": "token abcdef"}', '{"Authorization": "token [redacted]"}'),
        ('{\\"authorization\\":\\"Bearer abcdef\\"}', '{\\"authorization\\":\\"Bearer [redacted]\\"}'),
        ("Proxy-Authorization: abcdefghijklmnop", "Proxy-Authorization: [redacted]"),
        ("with Bearer abcdefgh12345678 set", "with Bearer [redacted] set"),
        ("Cookie: sid=abc; theme=dark\nHost: x", "Cookie: [redacted]\nHost: x"),
        ("Set-Cookie: sid=abc; Path=/", "Set-Cookie: [redacted]"),
        ("https://user:hunter2@example.com/x", "https://user:[redacted]@example.com/x"),
        ("postgres://u:p%40ss@db:5432/x", "postgres://u:[redacted]@db:5432/x"),
    ],
)
def test_forms_of_credentials_are_masked(text: str, expected: str) -> None:
    assert mask_forms(text) == expected
    assert mask_forms(expected) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the task-based approach of risk-adverse sk-learn-estimators-are-many-here",
        "sk-short1",
        "a Bearer token is required",
        "Authorization: required",
        "Authorization: Bearer <token>",
        "Cookie: policy",
        "the PRIVATE KEY is missing",
        "https://example.com:8080/path?email=a@b.c",
        "http://localhost:80?q=a@b",
        "git@example.com:org/repo.git and user@example.com",
        "AKIA is a prefix; AKIAIOSFODNN7EXAMPLExx is not one of theirs",
        "eyJ.eyJ.x",
        "const token = tokenizer.next(); key=lambda x: x; password = getpass()",
    ],
)
def test_what_only_resembles_a_credential_is_left_alone(text: str) -> None:
    assert mask_forms(text) is text


@pytest.mark.parametrize(
    "piece",
    [
        *("eyJ", "eyJaaaaaaaa.", "sk-", "sk-a", "ghp_", "://", "://a:", "xoxb-", "AIza"),
        *("-----BEGIN PRIVATE KEY-----", "Authorization: ", "Authorization: Bearer ", "Bearer "),
        *("Cookie: ", "Cookie: a=", "github_pat_", "\\n", "Bearer a", "PRIVATE KEY-"),
    ],
)
def test_no_input_makes_a_form_slow(piece: str) -> None:
    """A quarter of a megabyte of beginnings; quadratic matching would take minutes."""
    text = (piece * (250_000 // len(piece) + 1))[:250_000]
    start = time.process_time()
    mask_forms(text)
    mask_forms(text + "@")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("tool --api-key VALUE run", "tool --api-key [redacted] run"),
        ("tool --api-key=VALUE run", "tool --api-key=[redacted] run"),
        ("tool --api-key 'two words' run", "tool --api-key '[redacted]' run"),
        ('DB_PASSWORD="a b" psql', 'DB_PASSWORD="[redacted]" psql'),
        ("export GH_TOKEN=abc; git push", "export GH_TOKEN=[redacted]; git push"),
        ("-c model_providers.x.api_key=abc", "-c model_providers.x.api_key=[redacted]"),
        ("curl -H 'x-api-key: abc' URL", "curl -H 'x-api-key: [redacted]' URL"),
        ("curl -H 'Authorization: Bearer $TOKEN'", "curl -H 'Authorization: Bearer $TOKEN'"),
        ("tool --token $TOKEN --secret ${S}", "tool --token $TOKEN --secret ${S}"),
        ("tool --max-tokens 100 --tokens=5", "tool --max-tokens 100 --tokens=5"),
        ("tool --key-file /etc/k --token-url=https://x", "tool --key-file /etc/k --token-url=https://x"),
        ("tool --token --verbose", "tool --token --verbose"),
        ("tool --password [redacted]", "tool --password [redacted]"),
        ("ls -la /tmp/token=", "ls -la /tmp/token="),
    ],
)
def test_secrets_in_command_text_are_masked_by_name(command: str, expected: str) -> None:
    assert mask_command(command) == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("--api-key", True),
        ("-token", True),
        ("--max-tokens", False),
        ("--key-file", False),
        ("--api-key=x", False),
        ("token", False),
        ("--", False),
    ],
)
def test_flags_whose_value_is_a_secret(item: str, expected: bool) -> None:
    assert is_secret_flag(item) is expected


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("DB_PASS", "hunter2!", True),
        ("MYSQL_PWD", "correct horse", True),
        ("GH_PAT", "zq9-short", True),
        ("NPM_AUTH", "zq9short", True),
        ("MY_CREDENTIALS", "zq9short", True),
        ("REDIS_DSN", "zq9short", True),
        ("SIGNING_SALT", "zq9short", True),
        ("ANYTHING", "aB3dE5gH7jK9mN1pQ3sT", True),
        ("ANYTHING", "0123456789abcdef0123456789abcdef", True),
        ("API_TOKEN", "whatever", True),
        ("DB_PASS", "", False),
        ("AUTH_TIMEOUT", "30", False),
        ("GIT_COMMIT", "0123456789abcdef0123456789abcdef01234567", False),
        ("TASK_ID", "7b1c2d3e-1234-4abc-9def-0123456789ab", False),
        ("BASE_URL", "http://127.0.0.1:40123", False),
        ("HOST", "build-host-01.internal.example.com", False),
        ("COMPASS", "north", False),
        ("PATHS", "/usr/bin:/bin", False),
    ],
)
def test_what_a_caller_gives_is_judged_by_the_broad_rule(name: str, value: str, secret: bool) -> None:
    assert is_caller_secret(name, value) is secret
