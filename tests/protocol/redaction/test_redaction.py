"""No known secret survives, in any chunking; everything else does."""

import base64
import itertools
import json
import re
import urllib.parse

import pytest
from dragoman.protocol.redaction.patterns import REDACTED
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.sdk._encoding.json_text import JsonValue
from hypothesis import given
from hypothesis import strategies as st

SECRET = "correct-horse-battery"
AWKWARD = 'pa"ss\\wörd/&\n<1>'

# Two letters, so that secrets overlap, contain and begin each other all the time. Neither letter is at an edge of
# the marker, so that no secret can arise from text beside one.
known = st.lists(st.text("xy", min_size=6, max_size=10), min_size=1, max_size=4)


@st.composite
def secrets_and_pieces(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    secrets = draw(known)
    parts = st.one_of(
        st.sampled_from(secrets),
        st.sampled_from(secrets).flatmap(lambda s: st.integers(1, len(s)).map(lambda n: s[:n])),
        st.text("xyz ", max_size=4),
    )
    whole = "".join(draw(st.lists(parts, max_size=12)))
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    edges = [0, *cuts, len(whole)]
    return secrets, [whole[a:b] for a, b in itertools.pairwise(edges)]


def uncovered(text: str, secrets: list[str]) -> tuple[str, int]:
    """By brute force: the characters that belong to no secret, and how many runs of secrets there are."""
    covered = [False] * len(text)
    joined = [False] * (len(text) + 1)  # whether a secret goes on across this edge
    for secret in secrets:
        for start in range(len(text)):
            if text.startswith(secret, start):
                covered[start : start + len(secret)] = [True] * len(secret)
                joined[start + 1 : start + len(secret)] = [True] * (len(secret) - 1)
    runs = sum(c and not j for c, j in zip(covered, joined, strict=False))
    return "".join(ch for ch, c in zip(text, covered, strict=True) if not c), runs


@given(secrets_and_pieces())
def test_exactly_the_characters_of_secrets_are_replaced(case: tuple[list[str], list[str]]) -> None:
    secrets, pieces = case
    text = "".join(pieces)
    output = Redactor(secrets).text(text)
    rest, runs = uncovered(text, secrets)
    assert output.replace(REDACTED, "") == rest
    assert output.count(REDACTED) == runs
    assert not any(secret in output for secret in secrets)
    assert (output is text) == (runs == 0)


@given(secrets_and_pieces())
def test_a_stream_gives_what_the_whole_gives(case: tuple[list[str], list[str]]) -> None:
    secrets, pieces = case
    redactor = Redactor(secrets)
    stream = redactor.stream()
    output: list[str] = []
    for piece in pieces:
        output.append(stream.feed(piece))
        assert stream.changed == (REDACTED in output[-1])
        held = stream._pending
        assert held == "" or any(s.startswith(held) and s != held for s in secrets)
    output.append(stream.flush())
    assert "".join(output) == redactor.text("".join(pieces))
    assert not any(secret in "".join(output) for secret in secrets)
    assert stream.flush() == ""


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["no hit"], ["no hit", ""]),
        (["a ", "correct", "-horse-battery", "!"], ["a ", "", REDACTED, "!", ""]),
        (["correct-h", "en"], ["", "correct-hen", ""]),
        (["correct-horse"], ["", "correct-horse"]),
        (["xcorrect-correct-horse-", "battery"], ["xcorrect-", REDACTED, ""]),
    ],
)
def test_a_stream_holds_back_only_what_may_be_a_secret(pieces: list[str], expected: list[str]) -> None:
    stream = Redactor([SECRET]).stream()
    assert [*map(stream.feed, pieces), stream.flush()] == expected


def test_a_secret_that_begins_a_longer_one_is_masked_at_once() -> None:
    stream = Redactor(["abcdef", "abcdefghij"]).stream()
    assert stream.feed("abcdef") == REDACTED
    assert stream.feed("ghij") == ""  # it was the longer one all along; its mask is out
    assert stream.feed("abcdef") == REDACTED
    assert stream.feed("gone") == "gone"


def test_a_secret_inside_one_that_is_masked_already_uncovers_nothing() -> None:
    long, inside, third = "abcdefghijklmnop", "defghi", "cdefghijklmnopQ"
    stream = Redactor([long, inside, third]).stream()
    assert stream.feed(long) == REDACTED
    assert stream._pending == long[2:]
    assert stream.feed("!") == "!"


def test_a_stream_looks_for_forms_within_one_piece() -> None:
    stream = Redactor([]).stream()
    assert stream.feed("AKIAIOSFODNN7EXAMPLE") == REDACTED
    assert stream.changed
    assert stream.feed("AKIAIOSF") + stream.feed("ODNN7EXAMPLE") == "AKIAIOSFODNN7EXAMPLE"
    assert not stream.changed


@pytest.mark.parametrize(
    "text",
    [
        AWKWARD,
        json.dumps(AWKWARD),
        json.dumps(AWKWARD, ensure_ascii=False),
        json.dumps(json.dumps(AWKWARD)),
        json.dumps(json.dumps(AWKWARD, ensure_ascii=False)),
        json.dumps(AWKWARD).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        urllib.parse.quote(AWKWARD, safe=""),
        urllib.parse.quote(AWKWARD),
        urllib.parse.quote_plus(AWKWARD),
        re.sub("%..", lambda match: match[0].lower(), urllib.parse.quote(AWKWARD, safe="")),
    ],
)
def test_a_secret_is_found_in_every_spelling(text: str) -> None:
    masked = Redactor([AWKWARD]).text(f"<{text}>")
    assert masked.strip('<>"\\') == REDACTED


@pytest.mark.parametrize("secret", ["", "a", "short", "  a  \n", "      ", "redacted", "[redacted]"])
def test_a_secret_too_short_or_part_of_the_marker_is_ignored(secret: str) -> None:
    text = "a short      text, redacted [redacted]"
    assert Redactor([secret]).text(text) is text


@pytest.mark.parametrize(("length", "is_found"), [(4096, True), (4097, False)])
def test_a_long_secret_is_found_as_it_is_but_not_encoded(length: int, is_found: bool) -> None:
    secret = "aB3/" * (length // 4) + "?" * (length % 4)
    redactor = Redactor([secret])
    assert redactor.text(f"({secret})") == "([redacted])"
    for encoded in (
        secret.encode().hex(),
        base64.b64encode(secret.encode()).decode(),
        urllib.parse.quote(secret, ""),
    ):
        assert (redactor.text(encoded) != encoded) is is_found


def test_secrets_are_found_without_the_space_around_them() -> None:
    assert Redactor(["token-123\n"]).text("it is token-123.") == "it is [redacted]."


def test_a_secret_of_several_lines_is_found_whole_and_line_by_line() -> None:
    body = ["MIIEvAIBADANBgkqhkiG9w0", "q83vEjRWeJCrze8SNFZ4kKs"]
    key = "\n".join(["-----BEGIN KEY-----", *body, "a line of plain words", "-----END KEY-----"])
    redactor = Redactor([key])
    assert redactor.text(f"<{key}>") == "<[redacted]>"
    assert redactor.text(body[1]) == REDACTED
    for harmless in ("-----BEGIN KEY-----", "a line of plain words"):
        assert redactor.text(harmless) is harmless


def test_overlapping_secrets_leave_nothing_of_each_other() -> None:
    assert Redactor(["abcdef", "defghi"]).text("<abcdefghi>") == "<[redacted]>"
    assert Redactor(["abcabcabc"]).text("abcabcabcabc") == REDACTED
    assert Redactor(["abcdef"]).text("abcdefabcdef") == REDACTED * 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (5, 5),
        ("plain", "plain"),
        (f"x {SECRET}", "x [redacted]"),
        ([SECRET, 1, None], [REDACTED, 1, None]),
        ({SECRET: "a"}, {SECRET: "a"}),
        ({"apiKey": "v", "n": 1}, {"apiKey": REDACTED, "n": 1}),
        ({"password": 123456}, {"password": REDACTED}),
        ({"password": ""}, {"password": ""}),
        ({"token": None, "hasCookie": True}, {"token": None, "hasCookie": True}),
        (
            {"Authorization": {"scheme": "x", "parts": ["a", 1, True]}},
            {"Authorization": {"scheme": REDACTED, "parts": [REDACTED, REDACTED, True]}},
        ),
        (
            {"usage": {"input_tokens": 5, "cache_read_input_tokens": 0, "max_tokens": "4096"}},
            {"usage": {"input_tokens": 5, "cache_read_input_tokens": 0, "max_tokens": "4096"}},
        ),
        (
            {"tokens": {"input": 5, "cache": {"read": 1.5}, "refresh": "abc"}},
            {"tokens": {"input": 5, "cache": {"read": 1.5}, "refresh": REDACTED}},
        ),
        ({"keys": ["abc", 7], "token_count": 3}, {"keys": [REDACTED, 7], "token_count": 3}),
        ({"apiKeySource": "none"}, {"apiKeySource": "none"}),
        ({"password": {"keys": 5, "id": "x"}}, {"password": {"keys": REDACTED, "id": REDACTED}}),
        ({"cookies": {"api_key": 5}}, {"cookies": {"api_key": REDACTED}}),
    ],
)
def test_values_are_redacted_by_value_and_by_key(value: JsonValue, expected: JsonValue) -> None:
    redactor = Redactor([SECRET])
    once = redactor.value(value)
    assert once == expected
    assert redactor.value(once) is once
    assert (once is value) == (value == expected)


def test_a_value_of_any_depth_is_survived() -> None:
    value: JsonValue = SECRET
    for _ in range(5000):
        value = [value]
    shallow = Redactor([SECRET]).value(value)
    for _ in range(200):
        assert isinstance(shallow, list)
        shallow = shallow[0]
    assert shallow == REDACTED


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text("xy z")),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.sampled_from(["a", "key", "tokens", "xxyyxx"]), inner)
    ),
    max_leaves=20,
)


def shape(value: JsonValue) -> object:
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else None


@given(value=json_values, secrets=known)
def test_values_keep_their_shape_and_lose_every_secret(value: JsonValue, secrets: list[str]) -> None:
    before = json.dumps(value)
    output = Redactor(secrets).value(value)
    assert shape(output) == shape(value)
    assert json.dumps(value) == before  # the original is never touched

    def leaves(item: JsonValue) -> list[str]:
        if isinstance(item, dict):
            return [leaf for inner in item.values() for leaf in leaves(inner)]
        if isinstance(item, list):
            return [leaf for inner in item for leaf in leaves(inner)]
        return [item] if isinstance(item, str) else []

    assert not any(secret in leaf for secret in secrets for leaf in leaves(output))


def test_environments_are_masked_by_name_and_by_value() -> None:
    environment = {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "abc",
        "PAPERCLIP_API_KEY": "x",
        "GH_TOKEN": "1",
        "MY_SECRET": "s",
        "DB_PASSWORD": "p",
        "AUTHORIZATION": "a",
        "COOKIE_JAR": "c",
        "TOKEN_FILE": "/run/secrets/t",
        "EMPTY_TOKEN": "",
        "MAX_THINKING_TOKENS": "1024",
        "MAX_TOKENS": "abc",
        "NOTE": f"has {SECRET}",
        "HTTPS_PROXY": "http://u:p@proxy:3128",
    }
    assert Redactor([SECRET]).environment(environment) == {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": REDACTED,
        "PAPERCLIP_API_KEY": REDACTED,
        "GH_TOKEN": REDACTED,
        "MY_SECRET": REDACTED,
        "DB_PASSWORD": REDACTED,
        "AUTHORIZATION": REDACTED,
        "COOKIE_JAR": REDACTED,
        "TOKEN_FILE": REDACTED,
        "EMPTY_TOKEN": "",
        "MAX_THINKING_TOKENS": "1024",
        "MAX_TOKENS": REDACTED,
        "NOTE": "has [redacted]",
        "HTTPS_PROXY": "http://u:[redacted]@proxy:3128",
    }


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], []),
        (["claude", "-p", "--model", "opus"], ["claude", "-p", "--model", "opus"]),
        (["t", "--api-key", "VALUE", "x"], ["t", "--api-key", REDACTED, "x"]),
        (["t", "--api-key", "", "x"], ["t", "--api-key", "", "x"]),
        (["t", "--token", "--verbose"], ["t", "--token", "--verbose"]),
        (["t", "--api-key=VALUE"], ["t", "--api-key=[redacted]"]),
        (["env", "GH_TOKEN=abc", "git"], ["env", "GH_TOKEN=[redacted]", "git"]),
        (["sh", "-c", "API_KEY=abc run"], ["sh", "-c", "API_KEY=[redacted] run"]),
        (["curl", "-H", "Authorization: Bearer abcdef"], ["curl", "-H", "Authorization: Bearer [redacted]"]),
        (["t", "--max-tokens", "100"], ["t", "--max-tokens", "100"]),
        (["t", f"--note={SECRET}"], ["t", "--note=[redacted]"]),
    ],
)
def test_command_lines_are_masked(argv: list[str], expected: list[str]) -> None:
    assert Redactor([SECRET]).argv(argv) == expected


def test_command_text_without_a_secret_is_returned_itself() -> None:
    text = "tool --verbose run"
    assert Redactor([SECRET]).command(text) is text
    assert Redactor([SECRET]).command(f"tool {SECRET}") == "tool [redacted]"


def test_a_redactor_never_shows_what_it_knows() -> None:
    assert SECRET not in repr(Redactor([SECRET]))
