"""The entry point: the table of commands, wrong calls, and what it must not load."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from dragoman.cli.dispatch import COMMANDS, cli
from dragoman.cli.main import main

CONTEXT = click.Context(cli)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_commands_say(name: str) -> None:
    command = cli.get_command(CONTEXT, name)
    assert command is not None
    assert command.name == name
    assert command.help
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out and entry.help in out for name, entry in COMMANDS.items())


def test_help_loads_no_command() -> None:
    program = (
        "import sys; from dragoman.cli.main import main; main(['--help']);"
        "sys.stderr.write(' '.join(name for name in sys.modules if name.startswith(('dragoman', 'grpc', 'asyncio'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    loaded = done.stderr.split()
    own = ["command_error", "dispatch", "main"]
    assert sorted(loaded) == ["dragoman", "dragoman.cli", *(f"dragoman.cli.{name}" for name in own)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["zzz"], "'dragoman --help' lists the commands"),
        (["run"], "Missing argument 'ADAPTER'"),
        (["run", "a"], "Missing PROMPT; '-' reads standard input"),
        (["run", "a", "--template"], "Missing PROMPT; '-' reads standard input"),
        (["run", "a", "--config", "promptTemplate="], "Missing PROMPT; '-' reads standard input"),
        (["run", "a", "hi", "--confg", "x=1"], "--config"),
        (["run", "a", "hi", "--config", "x"], "is not key=value"),
        (["run", "a", "hi", "--env", "DRAGOMAN_TEST_NOT_SET"], "is not set here"),
        (["run", "a", "hi", "--router", "nowhere"], "is no address"),
        (["run", "process", "hi", "--detach"], "--detach needs a router that keeps running"),
        (["runs", "--outcome", "odd"], "'odd' is not one of"),
        (["respond", "run-1", "r", "--router", "127.0.0.1:9"], "no answer; give --option, --text or --value"),
        (["respond", "run-1", "r", "--router", "127.0.0.1:9", "--value", "{"], "not valid JSON"),
        (["adapter", "serve", "proces", "--listen", "127.0.0.1:0"], "did you mean process?"),
        (["adapter", "serve", "json:nothing", "--listen", "127.0.0.1:0"], "has no 'nothing'"),
        (["adapter", "serve", "no.such.module:x", "--listen", "127.0.0.1:0"], "module 'no' not found"),
        (["adapter", "serve", "process", "--listen", "0.0.0.0:0"], "without TLS"),
        (["serve", "--listen", "0.0.0.0:0"], "without TLS"),
        (["serve", "--manifest", "no-such-file"], "does not exist"),
    ],
)
def test_a_wrong_call_is_reported_and_exits_with_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("DRAGOMAN_ROUTER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_wrong_call_is_reported_to_programs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a", "hi", "--json", "--config", "x"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["reason"] == "USAGE"
    assert "is not key=value" in error["message"]


def test_a_wrong_call_shows_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a", "hi", "--confg", "x=1"]) == 2
    assert capsys.readouterr().err.startswith("Usage: dragoman run [OPTIONS] ADAPTER [PROMPT]\n")
