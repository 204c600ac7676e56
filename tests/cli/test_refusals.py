"""Calls that contradict themselves: what each message says, and what helps after each reason of a refusal."""

from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from dragoman.cli.commands._attachments import attachments
from dragoman.cli.commands._fallback import FallbackOptions
from dragoman.cli.commands._request import SessionOptions
from dragoman.cli.display.style import Segment, Style, coloured
from dragoman.cli.display.text import sanitize
from dragoman.cli.errors import as_text, error_report
from dragoman.cli.main import main
from dragoman.client._requests import duration, to_struct, update_request
from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden" / "hints.txt"


def test_what_helps_after_each_refusal() -> None:
    found = [(reason.value, as_text(error_report(DragomanError(reason, "what is wrong")))) for reason in Reason]
    assert_golden(GOLDEN, "".join(f"{name}: {text}" for name, text in found))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            DragomanError(None, "x", status=grpc.StatusCode.UNIMPLEMENTED),
            "the server does not implement this call\n  it may be an adapter and not a router, or an older version",
        ),
        (
            DragomanError(None, "x", status=grpc.StatusCode.UNAVAILABLE),
            "no server is reachable at here:1\n"
            "  start a router with 'dragoman serve --listen ADDR', or correct the address",
        ),
        (
            invalid("fallback.configs.codex", "has no settings"),
            "fallback.configs.codex: has no settings\n"
            """  set them with --fallback-config '{"ADAPTER": {"KEY": VALUE}}'; {} is no settings""",
        ),
    ],
    ids=["unimplemented", "unreachable", "fallback"],
)
def test_what_helps_where_there_is_no_reason(error: DragomanError, text: str) -> None:
    assert as_text(error_report(error, address="here:1")) == f"error: {text}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": "r", "fresh": True}, "--resume and --fresh exclude each other"),
        ({"fork": True}, "--fork needs a session to copy: give --task or --resume, without --fresh"),
        (
            {"fork": True, "fresh": True, "task": "t"},
            "--fork needs a session to copy: give --task or --resume, without --fresh",
        ),
        ({"fork": True, "task": "t"}, ""),
        ({"fork": True, "resume": "r"}, ""),
        ({"fresh": True, "task": "t"}, ""),
    ],
)
def test_sessions(options: dict[str, Any], message: str) -> None:
    whole = SessionOptions(**{"task": "", "agent": "", "resume": "", "fresh": False, "fork": False, **options})
    if not message:
        whole.check()
        return
    with pytest.raises(click.UsageError) as raised:
        whole.check()
    assert raised.value.message == message


def fallbacks(**options: Any) -> FallbackOptions:
    none: dict[str, Any] = {
        **dict.fromkeys(("fallback", "fallback_on", "fallback_config", "queue")),
        "ignore_breaker": False,
    }
    return FallbackOptions(**{**none, **options})


KINDS = ", ".join(name.removeprefix("FAILURE_KIND_").lower() for name in pb.FailureKind.keys()[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fallback_on": "network"}, "--fallback-on has no effect without --fallback; name the fallback adapters"),
        (
            {"run_token_audience": "a"},
            "--run-token-audience has no effect without --run-token; say where it is used",
        ),
        ({"fallback": " , "}, "the list is empty; leave the option out"),
        ({"fallback": "a", "fallback_on": ""}, "the list is empty; leave the option out"),
        ({"fallback": "a", "fallback_on": "netwrk"}, "'netwrk' is not a failure kind; did you mean network?"),
        ({"fallback": "a", "fallback_on": "zzz"}, f"'zzz' is not a failure kind; the kinds are {KINDS}"),
        (
            {"fallback_config": "{"},
            """expected settings by adapter, e.g. '{"codex": {"maxTurns": 5}}'""",
        ),
    ],
)
def test_fallbacks(options: dict[str, str], message: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        fallbacks(**options).put(api.ExecuteRequest())
    assert raised.value.message == message


def test_fallbacks_by_default() -> None:
    request = api.ExecuteRequest()
    fallbacks(fallback="a, b").put(request)
    assert request.fallback.adapters == ["a", "b"]
    assert [pb.FailureKind.Name(kind).removeprefix("FAILURE_KIND_").lower() for kind in request.fallback.on] == [
        *("auth_required", "quota_exceeded", "rate_limited", "upstream_unavailable", "network", "not_installed"),
        "spawn_failed",
    ]


def test_files_that_are_too_many_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.commands._attachments._MOST_BYTES", 2 << 20)
    (tmp_path / "large").write_bytes(b"x" * (2 << 20))
    (tmp_path / "small").write_bytes(b"x")
    assert len(list(attachments([str(tmp_path / "large")], images=True))) == 1
    with pytest.raises(click.BadParameter) as raised:
        list(attachments([str(tmp_path / name) for name in ("large", "small")], images=True))
    limit = "makes more than 2 MiB of files; put large ones into the workspace"
    assert raised.value.message == f"{tmp_path}/small {limit}"
    with pytest.raises(click.BadParameter) as raised:
        list(attachments([str(tmp_path / "small")] * 33, images=True))
    assert raised.value.message == "at most 32 files are taken"


def test_names_of_files(tmp_path: Path) -> None:
    names = ["a b.txt", "ä:b.txt", "._ -x", "---", "A B.TXT", "x" * 200 + ".txt"]
    for folder in ("1", "2"):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch()
    paths = [str(tmp_path / "1" / name) for name in names] + [str(tmp_path / "2" / "a b.txt")]
    found = [item.name for item in attachments(paths, images=True)]
    assert found[:5] == ["a b.txt", "b.txt", "x", "file", "2-A B.TXT"]
    assert found[6] == "3-a b.txt"
    assert found[5].endswith("x.txt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Agent", "the name 'Agent' does not match [a-z][a-z0-9_]*, at most 64 characters"),
        ("a" * 65, f"the name '{'a' * 65}' does not match [a-z][a-z0-9_]*, at most 64 characters"),
        ("class", "the name 'class' is a keyword of Python; choose another one"),
        ("codex", "an installed adapter is called 'codex' already; choose another name"),
    ],
)
def test_names_of_adapters(name: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["adapter", "new", name, "--language", "go", "--directory", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sessions", "delete"], "no session selected; give TASK, --adapter, --agent or --company"),
        (["agents", "show"], "give NAME, or --task KEY for the active agent of a task"),
        (["agents", "use", "--task", "t"], "give NAME, or --none to leave the task without an active agent"),
        (["artifacts", "r", "-o", "x"], "-o needs the NAME of an artifact"),
        (["update", "r"], "nothing to change; give --model or --permission-mode"),
        (["conformance"], "give the address of a server, or -- and the command of an adapter"),
        (["adapter", "restart", "x", "--now", "--grace", "3"], "--now and --grace exclude each other"),
        (["run", "@", "hi"], "@ alone runs the active agent of a task: give --task, or @NAME"),
        (["serve", "--max-runs", "codex=0"], "'codex=0' is not ADAPTER=N with N of 1 or more"),
        (["run", "a", "hi", "--budget", "ask"], "'ask' needs a cap beside it"),
        (["run", "a", "hi", "--budget", "1.5 turns"], "turns must be a whole number, and not that large"),
        (["run", "a", "hi", "--budget", "1 USD", "--budget", "2 USD"], "'2 USD': a cost is given twice"),
        (["run", "a", "hi", "--config", "a=1", "--config", "a=2"], "a is set twice"),
        (["run", "a", "hi", "--config", "=1"], "'=1' is not key=value, e.g. maxTurns=5"),
        (["run", "a", "hi", "--env", "=1"], "'=1' is not NAME=value or NAME"),
    ],
)
def test_calls_that_contradict_themselves(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("DRAGOMAN_ROUTER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_only_one_thing_changes_at_a_time() -> None:
    for model, mode in (("", ""), ("m", "plan")):
        with pytest.raises(ValueError, match=r"^give either model or permission_mode; one thing changes at a time$"):
            update_request("run-1", model, mode)
    assert update_request("run-1", "m", "") == api.UpdateRunRequest(run_id="run-1", model="m")
    assert update_request("run-1", "", "plan") == api.UpdateRunRequest(run_id="run-1", permission_mode="plan")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**53 + 1, "config.a: 9007199254740993 has no exact form as a JSON number; send it as a string"),
        (float("inf"), "config.a: inf has no exact form as a JSON number; send it as a string"),
        ({"b": [0, b""]}, "config.a.b[1]: a bytes has no JSON form"),
    ],
)
def test_values_without_an_exact_form(value: Any, message: str) -> None:
    to_struct({"a": -(2**53)})
    with pytest.raises(DragomanError) as raised:
        to_struct({"a": value})
    assert raised.value.message == message


def test_a_time_that_is_no_time() -> None:
    with pytest.raises(DragomanError) as raised:
        duration(float("nan"), "grace")
    assert raised.value.message == "grace: nan is not a valid number of seconds"


def test_every_control_is_shown() -> None:
    shown = {code for code in range(0x20000) if not 0xD800 <= code < 0xE000 and sanitize(chr(code)) != chr(code)}
    shown |= {code for code in range(0xE0000, 0xE0100) if sanitize(chr(code)) != chr(code)}
    assert shown == {
        *(code for code in range(0x20) if chr(code) not in "\t\n"),
        *range(0x7F, 0xA0),
        *(0x61C, 0x200B, 0x200E, 0x200F, 0xFEFF),
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2065),
        *range(0x2066, 0x2070),
        *range(0xE0000, 0xE0080),
    }
    assert sanitize("\x1b\x7f\x9b\u2028\r\n") == "␛␡<U+009B><U+2028>\n"


def test_colours_end_with_their_text() -> None:
    pieces = [Segment("a", Style.ERROR), Segment("b"), Segment("", Style.TOOL), Segment("c", Style.STRONG)]
    assert coloured(pieces) == "\x1b[31ma\x1b[0mb\x1b[1mc\x1b[0m"
    assert {style.name: style.value for style in Style} == {
        "PLAIN": "", "SYSTEM": "34", "ASSISTANT": "32", "TOOL": "33", "FAINT": "90", "ERROR": "31", "STRONG": "1",
    }  # fmt: skip
