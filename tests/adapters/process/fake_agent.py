"""A small agent that performs the steps of its command line, and records every line that it writes in a journal.

Run it as a program, by path or as a module; it needs the standard library alone::

    fake_agent.py --journal FILE STEP…

Each step is ``name`` or ``name=value``; they are performed in order. Output is numbered (``[7] text``) and in the
journal *before* it is written: what a reader received is a prefix of the journal, and all of it if the agent
ended by itself. ``journal.py`` compares the two.

============================  ==================================================================================
``out`` ``err``               a line on standard output, on standard error
``answer`` ``thinking``       a JSON line of the ``process`` adapter's format: an answer, reasoning, …
``user`` ``system``
``piece``                     a piece of an answer; pieces that follow one another make one
``tool``                      a tool call and its result; the value is the tool's name
``result=ok|error``           the agent's report that it is done
``long=BYTES``                a line of so many bytes on standard output
``flood=LINES``               so many lines of 200 bytes on both streams at once
``raw=HEX``                   bytes as they are on standard output; not in the journal
``stdin``                     read standard input to its end; the journal gets its size and SHA-256
``env=PREFIX``                records all variables with this prefix in the journal
``args``                      the journal gets the command line
``cat=NAME``                  the journal gets size and SHA-256 of the file that the variable NAME names
``write=NAME``                make a file in the working directory
``deaf``                      from here on, ignore every signal that can be ignored
``daemon[=wiped]``            leave a daemon in a session of its own, with an empty environment if ``wiped``; deaf
                              if this program is; its pid is in the journal
``close``                     close standard output and standard error, and live on
``await``                     wait until standard input ends
``hang``                      wait for ever
``kill=NUMBER``               send a signal to itself
``exit=CODE``                 end
============================  ==================================================================================

Values are text; ``out=$NAME`` writes the variable NAME.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STREAMS = {"stdout": 1, "stderr": 2}
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FLOOD_LINE = 200


class Agent:
    """The agent.

    Args:
        journal: file of the journal; None for no journal.
    """

    def __init__(self, journal: Path | None) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if journal else -1
        self._number = 0
        self._lock = threading.Lock()
        self._steps: dict[str, Callable[[str], object]] = {
            "out": lambda text: self._line("stdout", text),
            "err": lambda text: self._line("stderr", text),
            "answer": lambda text: self._json("answer", text, type="assistant"),
            "piece": lambda text: self._json("piece", text, type="assistant", delta=True),
            "thinking": lambda text: self._json("thinking", text, type="thinking"),
            "user": lambda text: self._json("user", text, type="user"),
            "system": lambda text: self._json("system", text, type="system"),
            "tool": self._tool,
            "result": self._result,
            "long": lambda size: self._line("stdout", "x" * int(size), is_exact=True),
            "flood": self._flood,
            "raw": lambda data: _write(1, bytes.fromhex(data)),
            "stdin": self._stdin,
            "env": self._env,
            "args": lambda _: self._note("args", args=_command_line()),
            "cat": self._cat,
            "write": lambda name: Path(name).write_text("written by the agent", encoding="utf-8"),
            "deaf": _be_deaf,
            "daemon": self._daemon,
            "close": _close,
            "await": lambda _: _drain_stdin(),
            "hang": lambda _: _hang(),
            "kill": lambda number: os.kill(os.getpid(), int(number)),
            "exit": lambda code: os._exit(int(code)),  # as abrupt as it gets
        }

    def perform(self, step: str) -> None:
        """Take one step.

        Raises:
            SystemExit: there is no such step.
        """
        name, _, value = step.partition("=")
        if name not in self._steps:
            raise SystemExit(f"fake_agent: no step {name!r}; known: {', '.join(self._steps)}")
        self._steps[name](os.environ.get(value[1:], "") if value.startswith("$") else value)

    def _note(self, kind: str, **facts: Any) -> None:
        if self._journal >= 0:
            _write(self._journal, json.dumps({"is": kind, **facts}).encode() + b"\n")

    def _numbered(self, stream: str, kind: str, text: str, *, is_exact: bool = False) -> str:
        self._number += 1
        line = text if is_exact else f"[{self._number}] {text}"
        self._note(kind, stream=stream, n=self._number, text=line)
        return line

    def _line(self, stream: str, text: str, *, is_exact: bool = False) -> None:
        with self._lock:
            line = self._numbered(stream, "log", text, is_exact=is_exact)
        _write(_STREAMS[stream], line.encode("utf-8", "surrogateescape") + b"\n")

    def _json(self, kind: str, text: str, **fields: Any) -> None:
        line = self._numbered("stdout", kind, text)
        _write(1, json.dumps({**fields, "text": line}).encode() + b"\n")

    def _tool(self, name: str) -> None:
        line = self._numbered("stdout", "tool_call", name)
        call = f"call-{self._number}"
        _write(1, json.dumps({"type": "tool_call", "id": call, "name": line, "input": {"a": 1}}).encode() + b"\n")
        line = self._numbered("stdout", "tool_result", f"of {name}")
        _write(1, json.dumps({"type": "tool_result", "toolUseId": call, "content": line}).encode() + b"\n")

    def _result(self, how: str) -> None:
        _write(1, json.dumps({"type": "result", "isError": how == "error", "inputTokens": 5}).encode() + b"\n")

    def _flood(self, lines: str) -> None:
        def write(stream: str) -> None:
            for _ in range(int(lines)):
                self._line(stream, "x" * _FLOOD_LINE)

        threads = [threading.Thread(target=write, args=(stream,)) for stream in _STREAMS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _stdin(self, _: str) -> None:
        self._note("stdin", **_digest(_drain_stdin()))

    def _env(self, prefix: str) -> None:
        self._note("env", env={name: value for name, value in os.environ.items() if name.startswith(prefix)})

    def _cat(self, name: str) -> None:
        self._note("cat", **_digest(Path(os.environ[name]).read_bytes()))

    def _daemon(self, how: str) -> None:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            pid = os.fork()
            if pid:
                os.write(writer, str(pid).encode())
                os._exit(0)
            # A new program: a fork would leave this one's environment readable.
            argv = [sys.executable, "-I", "-S", __file__, *(["deaf"] if _is_deaf() else []), "hang"]
            os.execve(sys.executable, argv, {} if how == "wiped" else dict(os.environ))
        os.wait()
        self._note("daemon", pid=int(os.read(reader, 32)))


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _digest(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _command_line() -> list[str]:
    return list(sys.orig_argv)


def _drain_stdin() -> bytes:
    return sys.stdin.buffer.read()


def _be_deaf(_: str) -> None:
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)


def _is_deaf() -> bool:
    return signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def _close(_: str) -> None:
    for fd in _STREAMS.values():
        with contextlib.suppress(OSError):
            os.close(fd)


def _hang() -> None:
    while True:
        signal.pause()


def main(argv: list[str] | None = None) -> None:
    """Take the steps named on the command line."""
    parser = argparse.ArgumentParser(prog="fake_agent", description="An agent for tests.")
    parser.add_argument("--journal", type=Path, help="file of the journal")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="what to do, in order")
    options = parser.parse_args(argv)
    agent = Agent(options.journal)
    for step in options.steps:
        agent.perform(step)


if __name__ == "__main__":
    main()
