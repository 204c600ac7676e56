"""Programs are found where they are, asked with a limit, and leave nothing behind, whatever they do."""

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dragoman.sdk._detection import programs
from dragoman.sdk._detection.agent import VersionCache, locate
from dragoman.sdk._detection.programs import (
    Probe,
    _Watch,
    converse,
    dialogue,
    find_executable,
    packaged_version,
    parse_version,
    probe,
    script_version,
)
from dragoman.sdk.spec import AgentSpec

pytestmark = pytest.mark.timeout(240)

ENV = {"PATH": os.environ["PATH"]}
PATIENCE_S = 120.0
"""A limit that no program here reaches, on a busy machine."""


def program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def places(tmp_path: Path) -> Path:
    for where in ("one/agent", "two/agent", "two/agent-alt", "own/my agent"):
        program(tmp_path / where)
    program(tmp_path / "one/plain", mode=0o644)
    (tmp_path / "one/directory").mkdir()
    (tmp_path / "one/link").symlink_to(tmp_path / "two/agent-alt")
    (tmp_path / "one/dangling").symlink_to(tmp_path / "gone")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "dirs", "found"),
    [
        (["agent"], ["one", "two"], "one/agent"),
        (["agent"], ["two", "one"], "two/agent"),
        (["nope", "agent-alt", "agent"], ["one", "two"], "two/agent-alt"),
        (["link"], ["one"], "one/link"),
        (["plain"], ["one"], None),
        (["directory"], ["one"], None),
        (["dangling"], ["one"], None),
        (["agent"], [], None),
        ([], ["one"], None),
        ([""], ["one"], None),
        (["../one/agent"], ["two"], None),
        (["a\0b"], ["one"], None),
    ],
)
def test_programs_are_found_on_the_path(places: Path, names: list[str], dirs: list[str], found: str | None) -> None:
    path_env = os.pathsep.join(str(places / part) for part in dirs)
    expected = places / found if found else None
    assert find_executable(names, path_env) == expected


@pytest.mark.parametrize("path_env", ["", ":", "one", "./one:", "::one/"])
def test_the_working_directory_is_never_searched(
    places: Path, monkeypatch: pytest.MonkeyPatch, path_env: str
) -> None:
    monkeypatch.chdir(places / "one")
    program(places / "one/one/agent")
    assert find_executable(["agent"], path_env) is None


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("{}/own/my agent", "own/my agent"),
        ("agent-alt", "two/agent-alt"),
        ("{}/gone", None),
        ("nope", None),
        ("{}/one/plain", None),
        ("./one/agent", None),
        ("~/agent", None),
    ],
)
def test_what_was_asked_for_is_never_replaced(
    places: Path, monkeypatch: pytest.MonkeyPatch, command: str, path: str | None
) -> None:
    monkeypatch.chdir(places)
    path_env = f"{places}/one{os.pathsep}{places}/two"
    expected = places / path if path else None
    assert find_executable(["agent"], path_env, command.format(places)) == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.1.330 (Claude Code)", "2.1.330"),
        ("codex-cli 0.169.0\n", "0.169.0"),
        ("GitHub Copilot CLI 1.0.102.\nCommit: abc", "1.0.102"),
        ("OpenClaw 2026.9.6 (abc1234)", "2026.9.6"),
        ("v1.18.33", "1.18.33"),
        ("pi 0.9", "0.9"),
        ("tool 1.2.3-beta.4+build.5.", "1.2.3-beta.4+build.5"),
        ("\x1b[1m0.61.0\x1b[0m", "0.61.0"),
        ("(node:1) Warning: Node.js 18.0.1 is old\n2.1.3", "2.1.3"),
        ("DeprecationWarning: since 3.12", "3.12"),
        ("Python 3.11.7", "3.11.7"),
        ("", None),
        ("version 5", None),
        ("no version here, see build2.1x", None),
    ],
)
def test_versions(text: str, version: str | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("package", "content", "version"),
    [
        ("lib/node_modules/agent", '{"version": "1.2.3"}', "1.2.3"),
        ("lib/node_modules/@maker/agent", '{"version": "1.2.3"}', "1.2.3"),
        ("lib/node_modules/agent", '{"version": "1.2.3-linux-x64"}', ""),
        ("lib/node_modules/agent", '{"version": 1}', ""),
        ("lib/node_modules/agent", "no JSON", ""),
        ("lib/agent", '{"version": "1.2.3"}', ""),
    ],
)
def test_the_version_of_a_programs_package(tmp_path: Path, package: str, content: str, version: str) -> None:
    it = program(tmp_path / package / "dist/cli/main.js")
    (tmp_path / package / "package.json").write_text(content)
    (tmp_path / "agent").symlink_to(it)
    assert packaged_version(tmp_path / "agent") == version


NODE_SCRIPT = "#!/usr/bin/env node\n"


@pytest.mark.parametrize(
    ("about", "text", "version"),
    [
        ('{"name": "@maker/agent", "version": "1.2.3", "bin": {"agent": "dist/main.js"}}', NODE_SCRIPT, "1.2.3"),
        ('{"name": "@maker/agent", "version": "1.2.3", "bin": "./dist/main.js"}', NODE_SCRIPT, "1.2.3"),
        ('{"name": "other", "version": "1.2.3", "bin": {"agent": "dist/main.js"}}', NODE_SCRIPT, ""),
        ('{"name": "@maker/agent", "version": "1.2.3", "bin": {"agent": "dist/other.js"}}', NODE_SCRIPT, ""),
        ('{"name": "@maker/agent", "version": "1.2.3", "bin": {"agent": 1}}', NODE_SCRIPT, ""),
        ('{"name": "@maker/agent", "version": "1.2.3"}', NODE_SCRIPT, ""),
        ('{"name": "@maker/agent", "version": "1.2.3-x", "bin": "dist/main.js"}', NODE_SCRIPT, ""),
        ('{"name": "@maker/agent", "version": "1.2.3", "bin": "dist/main.js"}', "#!/bin/sh\n", ""),
        ('{"name": "@maker/agent", "version": "1.2.3", "bin": "dist/main.js"}', "#!/usr/bin/env nodejs\n", ""),
        ('{"name": "@maker/agent", "version": "1.2.3", "bin": "dist/main.js"}', "", ""),
        ("no JSON", NODE_SCRIPT, ""),
    ],
)
def test_the_version_of_a_script_for_node(tmp_path: Path, about: str, text: str, version: str) -> None:
    it = program(tmp_path / "lib/node_modules/@maker/agent/dist/main.js", text)
    (it.parents[1] / "package.json").write_text(about)
    (tmp_path / "agent").symlink_to(it)
    program(tmp_path / "bin/node")
    assert script_version(tmp_path / "agent", "@maker/agent", str(tmp_path / "bin")) == version
    assert script_version(tmp_path / "agent", "@maker/agent", str(tmp_path)) == "", "there is no Node.js"


async def test_a_run_does_not_start_a_program_to_learn_what_its_package_says(tmp_path: Path) -> None:
    it = program(tmp_path / "node_modules/agent/agent", "#!/bin/sh\necho 2.0.0\n")
    (tmp_path / "node_modules/agent/package.json").write_text('{"version": "1.2.3"}')
    spec = AgentSpec(
        type="agent", label="", version="", configuration_doc="", config_schema={}, executables=("agent",)
    )
    versions, env = VersionCache(), {"PATH": str(it.parent)}
    assert (await locate(spec, versions, env, "", is_for_run=True)).version == "1.2.3"
    assert (await locate(spec, versions, env, "")).version == "2.0.0"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@contextmanager
def leash(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A fifo for programs to hold on to. Its reading end is at its end once none of them is left."""
    path = tmp_path / "leash"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield str(path), reader
    finally:
        os.close(reader)


def wait_until_released(reader: int) -> bool:
    """Wait until no process holds the leash; return whether one ever did, by what was written on it."""
    seen = b""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if not select.select([reader], [], [], deadline - time.monotonic())[0]:
            break
        chunk = os.read(reader, 100)
        if not chunk:
            return seen != b""
        seen += chunk
    pytest.fail("something still runs")


async def test_an_answer_with_all_its_parts() -> None:
    code = "import sys; print('1.2.3'); print('careful', file=sys.stderr); sys.exit(3)"
    assert await probe(python(code), ENV, PATIENCE_S) == Probe(3, "1.2.3\n", "careful\n")


async def test_no_input_a_session_of_its_own_its_environment_and_a_neutral_place() -> None:
    code = (
        "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), os.getcwd(), os.environ.get('X'))"
    )
    answer = await probe(python(code), {**ENV, "X": "y"}, PATIENCE_S)
    assert answer.stdout == "'' True / y\n"


async def test_a_name_is_looked_up_in_the_environment_of_the_call(tmp_path: Path) -> None:
    program(tmp_path / "agent", "#!/bin/sh\necho found\n")
    assert (await probe(["agent"], {"PATH": str(tmp_path)}, PATIENCE_S)).stdout == "found\n"
    assert (await probe(["agent"], ENV, PATIENCE_S)).error == "No such file or directory"


async def test_what_cannot_be_started_is_reported_and_not_raised(tmp_path: Path) -> None:
    plain = program(tmp_path / "plain", mode=0o644)
    junk = program(tmp_path / "junk", "\x7fELF nonsense")
    orphan = program(tmp_path / "orphan", "#!/gone/interpreter\n")
    for argv, error in (
        (["/gone/agent"], "No such file or directory"),
        ([str(plain)], "Permission denied"),
        ([str(junk)], "Exec format error"),
        ([str(orphan)], "No such file or directory"),
        ([sys.executable, "-c", "a\0b"], "it cannot be started"),
        ([sys.executable, "x" * 10_000_000], "Argument list too long"),
    ):
        assert await probe(argv, ENV, PATIENCE_S) == Probe(None, "", "", error=error)


async def test_an_end_by_a_signal_is_no_exit_code() -> None:
    answer = await probe(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), ENV, PATIENCE_S)
    assert answer == Probe(None, "", "", error="ended by SIGSEGV")


async def test_output_is_bounded_and_the_rest_is_read() -> None:
    code = "import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('é' * 1000); print('end')"
    answer = await probe(python(code), {**ENV, "PYTHONUTF8": "1"}, PATIENCE_S, 1001)
    assert answer.exit_code == 0
    assert answer.stdout == "x" * 1001
    assert answer.stderr == "é" * 500 + "\ufffd"


STUBBORN = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if {children} and os.fork() == 0:
    os.fork()
leash = os.open({leash!r}, os.O_WRONLY)
os.write(leash, b"x")
print("1.2.3", flush=True)
signal.pause()
"""


async def test_one_that_hangs_and_ignores_everything_is_killed_within_its_time(tmp_path: Path) -> None:
    with leash(tmp_path) as (path, reader):
        for limit_s in (1.5, 15.0, PATIENCE_S / 3):  # on a busy machine it has not yet written at the first one
            start = time.monotonic()
            answer = await probe(python(STUBBORN.format(leash=path, children=True)), ENV, limit_s)
            took = time.monotonic() - start
            if answer.stdout:
                break
        else:
            pytest.fail("it never wrote")
        assert wait_until_released(reader)
    assert (answer.exit_code, answer.timed_out, answer.error) == (None, True, "")
    assert answer.stdout.startswith("1.2.3\n")
    assert limit_s <= took < limit_s + PATIENCE_S / 2


async def test_a_flood_does_not_outlive_its_time() -> None:
    answer = await probe(["yes", "x" * 1000], ENV, 1, 100)  # which begins sooner than Python does
    assert answer == Probe(None, "x" * 100, "", timed_out=True)


LEAVES_SOMETHING = """
import os, signal, sys
ready, done = os.pipe()
if os.fork() == 0:
    if {escapes}:
        os.setsid()
    leash = os.open({leash!r}, os.O_WRONLY)
    os.write(leash, str(os.getpid()).encode())
    os.write(done, b"x")
    signal.pause()
os.read(ready, 1)
print("1.2.3")
"""


async def test_what_a_program_leaves_in_its_group_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    with leash(tmp_path) as (path, reader):
        start = time.monotonic()
        answer = await probe(python(LEAVES_SOMETHING.format(leash=path, escapes=False)), ENV, PATIENCE_S)
        assert time.monotonic() - start < PATIENCE_S / 2
        assert wait_until_released(reader)
    assert answer == Probe(0, "1.2.3\n", "")


async def test_an_answer_is_whole_when_both_pipes_are_closed_and_not_before() -> None:
    watch = _Watch(asyncio.get_running_loop(), 100)
    watch.pipe_connection_lost(1, None)
    assert not watch.closed.done()
    watch.pipe_connection_lost(2, None)
    assert watch.closed.done()


async def test_one_that_escapes_with_the_pipes_does_not_hold_up_the_answer(tmp_path: Path) -> None:
    with leash(tmp_path) as (path, reader):
        start = time.monotonic()
        answer = await probe(python(LEAVES_SOMETHING.format(leash=path, escapes=True)), ENV, PATIENCE_S)
        assert time.monotonic() - start < PATIENCE_S / 2
        os.kill(int(os.read(reader, 100)), signal.SIGKILL)
    assert answer == Probe(0, "1.2.3\n", "")


async def test_cancelled_it_kills(tmp_path: Path) -> None:
    with leash(tmp_path) as (path, reader):
        task = asyncio.create_task(probe(python(STUBBORN.format(leash=path, children=True)), ENV, PATIENCE_S))
        started = asyncio.Event()
        asyncio.get_running_loop().add_reader(reader, started.set)
        await started.wait()
        asyncio.get_running_loop().remove_reader(reader)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Not on the loop: a program that wrote before its pipes were connected is killed once they are.
        assert await asyncio.to_thread(wait_until_released, reader)


async def conversing(argv: list[str], env: dict[str, str], timeout_s: float) -> str:
    return await converse(argv, env, b"ask\n", lambda _line: False, timeout_s)


@pytest.mark.parametrize("asks", [probe, conversing], ids=["probe", "converse"])
async def test_cancelled_before_it_is_known_to_run_it_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: Callable[..., Coroutine[Any, Any, Any]]
) -> None:
    loop = asyncio.get_running_loop()
    begin, known, woken = loop.subprocess_exec, asyncio.Event(), asyncio.Event()

    async def begin_slowly(*args: Any, **options: Any) -> Any:
        begun = await begin(*args, **options)
        await known.wait()
        return begun

    monkeypatch.setattr(loop, "subprocess_exec", begin_slowly)
    with leash(tmp_path) as (path, reader):
        task = asyncio.create_task(asks(python(STUBBORN.format(leash=path, children=True)), ENV, PATIENCE_S))
        loop.add_reader(reader, woken.set)
        await woken.wait()
        loop.remove_reader(reader)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        known.set()
        assert await asyncio.to_thread(wait_until_released, reader)


async def test_the_last_line_may_lack_its_newline() -> None:
    argv = ["/bin/sh", "-c", "echo one; printf two; printf three >&2"]
    heard = [line async for line in dialogue(argv, ENV, b"", PATIENCE_S, with_errors=True)]
    assert [line for line in heard if line != "three"] == ["one", "two"]
    assert "three" in heard
    assert await converse(argv, ENV, b"", lambda line: line == "two", PATIENCE_S) == "two"


async def test_an_answer_is_heard_behind_many_lines() -> None:
    argv = python("print(*range(9_000), sep=chr(10)); print('answer')")
    assert await converse(argv, ENV, b"", lambda line: line == "answer", PATIENCE_S) == "answer"


async def test_a_program_that_prints_on_behind_its_answer_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_END_BOUND_S", PATIENCE_S)
    saved = tmp_path / "saved"
    code = f"import sys; print(*range(30_000), sep=chr(10), flush=True); sys.stdin.read(); open({str(saved)!r}, 'w')"
    assert await converse(python(code), ENV, b"", lambda line: line == "0", PATIENCE_S) == "0"
    assert saved.exists()


async def test_a_slow_reader_misses_nothing_of_a_program_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_MOST_LINES", 10)
    monkeypatch.setattr(programs, "_PIPE_BOUND_S", 0.0)
    count, heard = 9_000, list[str]()
    with leash(tmp_path) as (path, reader):
        holds = f"import os; held = os.open({str(path)!r}, os.O_WRONLY); os.write(held, b'x')"
        argv = python(f"{holds}; os.write(1, b'line\\n' * {count})")
        async for line in dialogue(argv, ENV, b"", PATIENCE_S):
            if not heard:
                assert await asyncio.to_thread(wait_until_released, reader)
                await asyncio.sleep(0.1)  # what would drop the rest has happened
            heard.append(line)
    assert heard == ["line"] * count


async def test_an_answer_is_to_what_was_asked() -> None:
    argv = ["/bin/sh", "-c", 'read -r line; echo "heard $line"']
    assert await converse(argv, ENV, b"ask\n", lambda line: line.startswith("heard"), PATIENCE_S) == "heard ask"


@pytest.mark.parametrize("escapes", [False, True])
async def test_a_dialogue_ends_with_its_program_whatever_holds_its_pipes(tmp_path: Path, *, escapes: bool) -> None:
    with leash(tmp_path) as (path, reader):
        argv = python(LEAVES_SOMETHING.format(leash=path, escapes=escapes) + 'print("the rest", end="")')
        async with asyncio.timeout(PATIENCE_S):
            heard = [line async for line in dialogue(argv, ENV, b"", 10 * PATIENCE_S, with_errors=True)]
        if escapes:
            os.kill(int(os.read(reader, 100)), signal.SIGKILL)
        wait_until_released(reader)
    assert heard == ["1.2.3", "the rest"]


async def test_many_at_once() -> None:
    answers = await asyncio.gather(*(probe(["/bin/sh", "-c", f"echo {n}"], ENV, PATIENCE_S) for n in range(20)))
    assert [answer.stdout for answer in answers] == [f"{n}\n" for n in range(20)]


async def test_an_agent_that_makes_directories_when_asked_makes_them_elsewhere(tmp_path: Path) -> None:
    untidy = program(tmp_path / "agent", '#!/bin/sh\nmkdir -p "$DATA/agent"\necho "$DATA"\necho 1.2.3\n')
    env = {**ENV, "DATA": str(tmp_path / "data")}
    assert await VersionCache().ask(untidy, env, ["DATA"]) == ("1.2.3", None)
    assert not (tmp_path / "data").exists()
    untidy.write_text(untidy.read_text() + "#\n")  # another program
    assert await VersionCache().ask(untidy, env) == ("1.2.3", None)
    assert (tmp_path / "data").exists()
