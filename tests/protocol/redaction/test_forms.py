"""Known secrets in every form that can be known exactly, interrupted or not, whole or in pieces; and nothing else."""

import base64
import html
import itertools
import json
import shlex
import urllib.parse

import pytest
from dragoman.protocol.redaction.patterns import KeyKind, key_kind
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.v1 import adapter_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

SECRET = "Zx9-wq/Lm+42?k"
FILLER = [f"Qv{number:04}#{number * 7919 % 10007:05}" for number in range(400)]
"""With so many known secrets they are looked for in another way."""

INTERRUPTIONS = {
    "escape sequence": "\x1b[31m",
    "8-bit escape sequence": "\x9b0m",
    "cursor": "\x1b[12;40H",
    "title": "\x1b]0;title\x07",
    "character set": "\x1b(B",
    "lone escape": "\x1b",
    "NUL": "\0",
    "CR": "\r",
    "newline": "\n",
    "CRLF": "\r\n",
    "bad byte, replaced": "\ufffd",
    "bad byte, kept": "\udcff",
    "backspace": "\b",
    "tab": "\t",
    "zero width": "\u200b",
    "many newlines": "\n" * 64,
    "newline in JSON": "\\n",
    "escape sequence in JSON": "\\u001b[0m",
    "NUL in JSON": "\\u0000",
}

ENCODED = {
    "as it is": SECRET,
    "hex": SECRET.encode().hex(),
    "HEX": SECRET.encode().hex().upper(),
    "percent": urllib.parse.quote(SECRET, safe=""),
    "percent, small": urllib.parse.quote(SECRET, safe="").lower().replace("zx9-wq", "Zx9-wq").replace("lm", "Lm"),
    "form": urllib.parse.quote_plus(SECRET),
    "path": urllib.parse.quote(SECRET),
    "JSON": json.dumps(SECRET)[1:-1],
    "JSON twice": json.dumps(json.dumps(SECRET))[1:-1],
    **{f"base64 at {n}": base64.b64encode(b"a" * n + SECRET.encode() + b"zzz").decode() for n in range(6)},
    **{f"url-safe at {n}": base64.urlsafe_b64encode(b"?" * n + SECRET.encode()).decode() for n in range(6)},
}


QUOTED = "k7'L/\"m&2 $p<9\\W!"

QUOTATIONS = {
    "shell, by Python": shlex.quote(QUOTED),
    "shell, traced": QUOTED.replace("'", "'\\''"),
    "shell, in double quotes": "k7'L/\\\"m&2 \\$p<9\\\\W!",
    "shell, by backslashes": "k7\\'L/\\\"m\\&2\\ \\$p\\<9\\\\W\\!",
    "Python": repr(QUOTED),
    "in single quotes": "k7\\'L/\"m&2 $p<9\\\\W!",
    "JSON with escaped slashes": json.dumps(QUOTED).replace("/", "\\/"),
    "HTML": html.escape(QUOTED),
    "HTML, text": html.escape(QUOTED, quote=False),
    "HTML by Go": html.escape(QUOTED).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "XML": html.escape(QUOTED).replace("&#x27;", "&apos;"),
}


@pytest.fixture(params=["few", "many"], scope="module")
def redactor(request: pytest.FixtureRequest) -> Redactor:
    return Redactor([SECRET, *(FILLER if request.param == "many" else [])])


def streamed(redactor: Redactor, pieces: list[str]) -> str:
    stream = redactor.stream()
    return "".join([*(stream.feed(piece) for piece in pieces), stream.flush()])


def core(encoded: str) -> str:
    """Return the middle of an encoded secret; none of it may be shown."""
    return encoded[len(encoded) // 2 - 2 : len(encoded) // 2 + 2]


@pytest.mark.parametrize("name", ENCODED)
def test_encoded_whole_and_cut_anywhere(name: str, redactor: Redactor) -> None:
    text = f"see {ENCODED[name]} there"
    shown = redactor.text(text)
    assert "[redacted]" in shown
    assert core(ENCODED[name]) not in shown
    for cut in range(len(text)):
        assert streamed(redactor, [text[:cut], text[cut:]]) == shown
    assert streamed(redactor, list(text)) == shown


@pytest.mark.parametrize("name", QUOTATIONS)
def test_quoted_for_a_shell_a_program_or_a_page(name: str) -> None:
    text = f"see {QUOTATIONS[name]} there"
    redactor = Redactor([QUOTED])
    shown = redactor.text(text)
    assert shown.replace("'", "").replace('"', "") == "see [redacted] there"
    assert streamed(redactor, list(text)) == shown


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_interrupted_anywhere_whole_and_cut_anywhere(name: str, redactor: Redactor) -> None:
    between = INTERRUPTIONS[name]
    for at in range(1, len(SECRET)):
        text = f"see {SECRET[:at]}{between}{SECRET[at:]} there"
        assert redactor.text(text) == "see [redacted] there"
        assert streamed(redactor, list(text)) == "see [redacted] there"
        for cut in range(4, len(text) - 6):
            assert streamed(redactor, [text[:cut], text[cut:]]) == "see [redacted] there"


def test_every_character_coloured_by_itself(redactor: Redactor) -> None:
    text = "".join(f"\x1b[{n % 8 + 30}m{char}\x1b[0m" for n, char in enumerate(SECRET))
    assert SECRET[-1] not in redactor.text(text).replace("[redacted]", "")
    assert "[redacted]" in streamed(redactor, list(text))


def test_a_secret_within_a_title_or_as_the_numbers_of_a_sequence() -> None:
    assert Redactor([SECRET]).text(f"\x1b]0;{SECRET}\x07") == "\x1b]0;[redacted]\x07"
    assert Redactor(["31415926"]).text("\x1b[31415926m") == "\x1b[[redacted]m"


alphabet = st.sampled_from(["s", "3", "c", "r", "\n", "\x1b", "[", "m", "\\", "n", "\0", "]", "\x07", "é"])


@given(st.lists(st.one_of(st.sampled_from(["s3cr3t", "s3c", "r3t"]), alphabet), max_size=24), st.data())
def test_no_split_lets_a_secret_out(parts: list[str], data: st.DataObject) -> None:
    redactor = Redactor(["s3cr3t"])
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    shown = streamed(redactor, pieces)
    assert redactor.spans(shown) == []
    assert redactor.spans(redactor.text(text)) == []


@given(st.text(), st.data())
def test_text_without_secrets_is_unchanged(text: str, data: st.DataObject) -> None:
    redactor = Redactor([SECRET])
    cut = data.draw(st.integers(0, len(text)))
    if not redactor.spans(text):
        assert streamed(redactor, [text[:cut], text[cut:]]) == text
        assert redactor.text(text) is text


def test_text_is_held_only_while_it_may_become_a_secret() -> None:
    stream = Redactor([SECRET]).stream()
    assert stream.feed("hello\n") == "hello\n"
    assert stream.feed("Zx") == ""
    assert stream.feed("\x1b[3") == ""
    assert stream.feed("1m!") == "Zx\x1b[31m!"
    assert stream.feed("Z" + "\n" * 64) == ""
    assert stream.feed("\n") == "Z" + "\n" * 65


# Where a request holds secrets.


def request(**fields: object) -> pb.ExecuteRequest:
    return pb.ExecuteRequest(**fields)  # type: ignore[arg-type]  # tests give what they like


def of_config(**config: object) -> pb.ExecuteRequest:
    run_request = pb.ExecuteRequest()
    run_request.config.update(config)  # type: ignore[arg-type]
    return run_request


def of_server(url: str = "", *args: str, **headers: str) -> pb.ExecuteRequest:
    run_request = pb.ExecuteRequest()
    server = run_request.mcp_servers.add(name="s")
    if url:
        server.http.url = url
        server.http.headers.update(headers)
    else:
        server.stdio.args.extend(args)
    return run_request


SOURCES: dict[str, tuple[pb.ExecuteRequest, str]] = {
    "headers of settings": (of_config(headers={"X-Api-Key": "abc-123-def"}), "abc-123-def"),
    "bearer of settings": (of_config(headers={"Authorization": "Bearer abc-123-def"}), "abc-123-def"),
    "env of settings": (of_config(env={"DB_PASS": "abc-123-def"}), "abc-123-def"),
    "a key of settings": (of_config(options={"apiKey": "abc-123-def"}), "abc-123-def"),
    "a URL of settings": (of_config(url="https://h/p?key=abc-123-def&x=1"), "abc-123-def"),
    "arguments of settings": (of_config(extraArgs=["--token", "abc-123-def"]), "abc-123-def"),
    "an argument after its flag": (of_server("", "--token", "abc-123-def"), "abc-123-def"),
    "an argument with its flag": (of_server("", "--api-key=abc-123-def"), "abc-123-def"),
    "an assignment": (of_server("", "-e", "API_TOKEN=abc-123-def"), "abc-123-def"),
    "a header as an argument": (of_server("", "--header", "Authorization: Bearer abc-123-def"), "abc-123-def"),
    "a parameter": (of_server("https://h/mcp?key=abc-123-def"), "abc-123-def"),
    "an escaped parameter": (of_server("https://h/mcp?api_key=abc%2F123"), "abc/123"),
    "a password of a URL": (of_server("https://user:abc-123-def@h/mcp"), "abc-123-def"),
    "a user of a URL": (of_server("https://abc-123-def@h/mcp"), "abc-123-def"),
    "the token": (request(auth_token="success"), "success"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_secrets_are_found_wherever_a_request_has_them(name: str) -> None:
    asked, secret = SOURCES[name]
    assert secret in request_secrets(asked)
    assert Redactor(request_secrets(asked)).text(f"<{secret}>") == "<[redacted]>"


@pytest.mark.parametrize("word", ["success", "true", "production", "PRODUCTION", "Production", "oauth2"])
def test_a_word_under_a_secret_name_is_not_masked_elsewhere(word: str) -> None:
    asked = pb.ExecuteRequest(env={"API_TOKEN": word, "DB_PASSWORD": word})
    asked.config.update({"env": {"SECRET_KEY": word}})
    asked.mcp_servers.add(name="s").stdio.args.extend(["--token", word])
    text = f"the deployment was a {word}"
    assert Redactor(request_secrets(asked)).text(text) is text


@pytest.mark.parametrize("value", ["hunter2", "correctHorse", "correct-horse", "abcdefghijklm", "swordfish!"])
def test_what_is_more_than_a_word_is_a_secret(value: str) -> None:
    assert request_secrets(pb.ExecuteRequest(env={"DB_PASSWORD": value})) == (value,)


def test_a_secret_is_found_in_a_url_behind_a_long_word() -> None:
    """That would take minutes, if each letter of the word were tried as the first of a scheme of any length."""
    text = f"{'a' * 1_000_000} {'b' * 100}://user:tr0ub4dor@host"
    asked = pb.ExecuteRequest()
    asked.config.update({"note": text})
    assert request_secrets(asked) == ("tr0ub4dor",)


@pytest.mark.parametrize("key", ["token_index", "tokenIndex", "TOKEN_INDEX", "key_index"])
def test_numbers_under_an_index_are_shown(key: str) -> None:
    assert key_kind(key) is KeyKind.COUNTER
    assert Redactor().value({key: 5}) == {key: 5}
    assert Redactor().value({key: "x7-y8"}) == {key: "[redacted]"}
