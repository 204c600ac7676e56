"""The scripted agent of the conformance kit: a program that performs the steps that it gets.

The steps are the lines of the variable ``DRAGOMAN_SCRIPT``, or else of the prompt on standard input, after a first
line ``dragoman-script:`` and up to a line ``---``. It needs the standard library alone, and writes JSON lines of the
``process`` adapter, or plain lines with ``--format text``. For an agent with a format of its own, the variable
``DRAGOMAN_SCRIPT_FORMAT`` names a Python file with a function ``line(frame)``: it gets each of those JSON objects,
and returns what the agent prints for it; an empty text prints nothing. It raises ``NotImplementedError`` for what the
agent cannot report; the rules that need that step are skipped.

===================  ===============================================================================================
``say=TEXT``         a message of the agent
``piece=TEXT``       a piece of a message; pieces that follow one another make one message
``err=TEXT``         a line on standard error
``prompt``           a message with the size and the SHA-256 of the prompt: ``bytes=5 sha256=…``
``echo``             a message with the first 200 characters of the prompt, without the steps
``env=NAME``         a message with the value of a variable
``split=NAME``       the same value in two pieces, written separately
``line=BYTES``       one line of so many bytes, which is not JSON
``raw=HEX``          these bytes as they are
``flood=LINES``      so many messages of 100 characters, as fast as they are read
``tool=NAME``        a tool call and its result
``failing=NAME``     a tool call whose result is an error
``call=NAME``        a tool call that gets no result
``output=TEXT``      the output of the call that was made last, while that tool runs
``think=TEXT``       a piece of reasoning
``plan=TEXT``        a plan with this one entry
``change=PATH``      create a file, and report that the agent did
``nested=TEXT``      a message of a nested agent
``usage=IN,OUT``     report so many input and output tokens, at the latest at the end; a number may be missing
``model=ID,IN,OUT``  report that one call of this model used so many tokens
``cost=AMOUNT``      report this cost in dollars, at the latest at the end
``received=HEX``     a message ``received: yes`` if the agent received this text (in hexadecimal UTF-8), else
                     ``received: no``: in arguments, variables, the prompt, and in files that these name or that are
                     in the working directory or in a directory that the prompt names
``session=ID``       say which session this is
``lost``             if a session is to be resumed: say that there is none. Only adapters whose agent can say so
``touch=PATH``       create a file
``leave=NAME``       create a file of this name, with this name as its content, among those for the caller
``leave-link=NAME``  create a link of this name to the program itself there
``wait=PATH``        wait until a file exists
``hold=PATH``        hold an exclusive lock (``flock``) on a file for as long as a process of this agent lives
``child``            leave a child process that keeps standard output open, and lives for a minute
``deaf``             ignore SIGTERM, SIGINT and SIGHUP from here on
``ask=PERMISSION``   request a permission; a message says which option was answered. Only adapters whose agent can ask
``question=TEXT``    ask for a text; a message says what was answered. Only adapters whose agent can ask
``write=PATH``       create a file if a permission to edit it, which is asked for, is granted. Only these adapters
``exit=CODE``        end with this exit code at once, and report neither success nor a failure
``fail=TEXT``        report a failure, and end with exit code 1
``hang``             wait for ever
===================  ===============================================================================================

After the last step it reports success and exits with code 0.
"""

import fcntl
import hashlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

MARK = "dragoman-script:"
"""The first line of a prompt that carries steps."""
END = "---"
"""The line after the last step in a prompt; the rest is the prompt proper."""
VARIABLE = "DRAGOMAN_SCRIPT"
FORMAT_VARIABLE = "DRAGOMAN_SCRIPT_FORMAT"
"""The variable that names a file with a function ``line(frame)``."""

Format = Callable[[dict[str, object]], str]
"""What an agent prints for a JSON object of the ``process`` adapter: one line or several, or nothing."""

_POLL_S = 0.01
_CHILD_S = 60
_MOST_FILES = 2000
_LARGEST_FILE = 1024 * 1024
_NOT_SEARCHED = {"HOME", "OLDPWD", "PATH", "PWD", "TMPDIR", VARIABLE}


def steps_of(text: str) -> tuple[list[tuple[str, str]], str]:
    """Return the steps in a prompt or in the variable, as names and values, and the rest of the text."""
    if text.startswith(MARK + "\n"):
        head, _, rest = text.removeprefix(MARK + "\n").partition(f"\n{END}\n")
    else:
        head, rest = "", text
    return list(_parsed(head)), rest


def _parsed(text: str) -> Iterator[tuple[str, str]]:
    for line in filter(None, text.split("\n")):
        name, _, value = line.partition("=")
        yield name, value


class Agent:
    """Performs steps.

    Args:
        prompt: the whole prompt.
        is_plain: whether to write plain lines instead of JSON.
        line: what is printed for a JSON object.
    """

    def __init__(self, prompt: bytes, *, is_plain: bool, line: Format = json.dumps) -> None:
        self._prompt = prompt
        self._is_plain = is_plain
        self._line = line
        self._calls = 0
        self._usage: dict[str, object] = {}
        self._steps: dict[str, Callable[[str], object]] = {
            "say": self._say,
            "piece": lambda text: self._json(text, type="assistant", text=text, delta=True),
            "err": lambda text: _write(2, text.encode() + b"\n"),
            "prompt": lambda _: self._say(f"bytes={len(prompt)} sha256={hashlib.sha256(prompt).hexdigest()}"),
            "echo": lambda _: self._say(steps_of(prompt.decode())[1][:200]),
            "env": lambda name: self._say(os.environ.get(name, "")),
            "split": self._split,
            "line": lambda size: _write(1, b"x" * int(size) + b"\n"),
            "raw": lambda data: _write(1, bytes.fromhex(data)),
            "flood": self._flood,
            "tool": self._tool,
            "failing": lambda name: self._tool(name, isError=True),
            "call": self._call,
            "output": lambda text: self._json(text, type="tool_output", toolUseId=f"call-{self._calls}", text=text),
            "think": lambda text: self._json(text, type="thinking", text=text),
            "plan": lambda text: self._json(text, type="plan", entries=[text]),
            "change": self._change,
            "nested": lambda text: self._json(text, type="assistant", text=text, subagent="nested-1"),
            "usage": self._report_usage,
            "model": self._report_model,
            "cost": lambda amount: self._usage.update(costUsd=float(amount)),
            "received": lambda word: self._say(
                f"received: {'yes' if self._has_received(bytes.fromhex(word)) else 'no'}"
            ),
            "session": lambda name: self._json(f"session {name}", type="init", sessionId=name),
            "touch": lambda path: open(path, "w", encoding="utf-8").close(),
            "leave": _leave,
            "leave-link": lambda name: os.symlink(os.path.abspath(__file__), _for_caller(name)),  # noqa: PTH100, PTH211 - starts faster
            "wait": _wait,
            "hold": _hold,
            "child": lambda _: subprocess.Popen(["sleep", str(_CHILD_S)], stdin=subprocess.DEVNULL, close_fds=False),
            "deaf": _ignore_signals,
            "exit": lambda code: sys.exit(int(code)),
            "fail": self._fail,
            "hang": lambda _: _hang(),
        }

    def perform(self, name: str, value: str) -> None:
        """Perform one step.

        Raises:
            SystemExit: there is no such step, or it ends the program.
        """
        if name not in self._steps:
            raise SystemExit(f"dragoman-script: step {name!r} not supported; known: {', '.join(self._steps)}")
        try:
            self._steps[name](value)
        except NotImplementedError:  # of a format of its own
            raise SystemExit(f"dragoman-script: step {name!r} not supported by this agent") from None

    def finish(self) -> None:
        """Report success."""
        if not self._is_plain:
            self._json("", type="result", isError=False, **self._usage)

    def _json(self, plain: str, **frame: object) -> None:
        text = plain if self._is_plain else self._line(frame)
        if text or self._is_plain:
            _write(1, text.encode() + b"\n")

    def _say(self, text: str) -> None:
        self._json(text, type="assistant", text=text)

    def _split(self, name: str) -> None:
        value = os.environ.get(name, "")
        for half in (value[: len(value) // 2], value[len(value) // 2 :]):
            if self._is_plain:
                _write(1, half.encode())
            else:
                self._json("", type="assistant", text=half, delta=True)
            time.sleep(5 * _POLL_S)
        if self._is_plain:
            _write(1, b"\n")

    def _flood(self, lines: str) -> None:
        for number in range(int(lines)):
            self._say(f"{number:0100}")

    def _call(self, name: str) -> str:
        self._calls += 1
        call = f"call-{self._calls}"
        self._json(f"tool {name}", type="tool_call", id=call, name=name, input={})
        return call

    def _tool(self, name: str, **more: bool) -> None:
        call = self._call(name)
        content = "failed" if more else "done"
        self._json(f"tool {name} {content}", type="tool_result", toolUseId=call, content=content, **more)

    def _report_usage(self, counts: str) -> None:
        names = ("inputTokens", "outputTokens")
        self._usage |= {name: int(count) for name, count in zip(names, counts.split(","), strict=True) if count}

    def _report_model(self, used: str) -> None:
        model, inputs, outputs = used.split(",")
        counts: dict[str, object] = {"inputTokens": int(inputs), "outputTokens": int(outputs)}
        self._json(f"{model} used {inputs} and {outputs} tokens", type="usage", model=model, **counts)

    def _change(self, path: str) -> None:
        open(path, "w", encoding="utf-8").close()
        self._json(f"created {path}", type="file_change", path=os.path.abspath(path))  # noqa: PTH100 - starts faster

    def _has_received(self, word: bytes) -> bool:
        variables = {name: value for name, value in os.environb.items() if name.decode() not in _NOT_SEARCHED}
        arguments = [os.fsencode(argument) for argument in sys.argv[1:]]
        if any(word in text for text in (*arguments, *variables.values(), self._prompt)):
            return True
        # An argument may name a file after an equals sign, or after the "@" that some programs want there.
        named = [text.rpartition(b"=")[2].lstrip(b"@") for text in (*arguments, *variables.values())]
        named += [text.strip(b",:;.") for text in self._prompt.split()]
        roots = [b".", *(path for path in named if path.startswith(b"/") and path.strip(b"/"))]
        return any(word in data for data in _files(roots))

    def _fail(self, text: str) -> None:
        self._json(text, type="result", isError=True, text=text)
        raise SystemExit(1)


def _files(roots: list[bytes]) -> Iterator[bytes]:
    """Return the content of files, and of those in directories, as long as they are neither many nor large."""
    left = _MOST_FILES
    while roots and left:
        path = roots.pop(0)
        left -= 1
        try:
            if os.path.isdir(path):  # noqa: PTH112 - starts faster without pathlib
                roots += [os.path.join(path, name) for name in sorted(os.listdir(path))]  # noqa: PTH118, PTH208 - as above
            elif os.path.isfile(path) and os.path.getsize(path) <= _LARGEST_FILE:  # noqa: PTH113, PTH202 - as above
                with open(path, "rb") as file:
                    yield file.read()
        except OSError:
            continue


def _format() -> Format:
    path = os.environ.get(FORMAT_VARIABLE, "")
    if not path:
        return json.dumps
    line: Format = runpy.run_path(path)["line"]
    return line


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _wait(path: str) -> None:
    while not os.path.exists(path):  # noqa: PTH110 - starts faster without pathlib
        time.sleep(_POLL_S)


def _for_caller(name: str) -> str:
    """Return the path of a file that is left to the caller, whose prefix of variables may be any."""
    folder = next(value for variable, value in os.environ.items() if variable.endswith("_ARTIFACTS"))
    return os.path.join(folder, name)  # noqa: PTH118 - starts faster


def _leave(name: str) -> None:
    with open(_for_caller(name), "w", encoding="utf-8") as file:
        file.write(name)


def _hold(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def _ignore_signals(_: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _hang() -> None:
    while True:
        signal.pause()


def main() -> None:
    """Perform the steps."""
    if "--version" in sys.argv:
        sys.stdout.write("dragoman-script 1\n")
        return
    prompt = sys.stdin.buffer.read()
    script = os.environ.get(VARIABLE, "")
    steps = list(_parsed(script)) if script else steps_of(prompt.decode())[0]
    agent = Agent(prompt, is_plain="text" in sys.argv, line=_format())
    for name, value in steps:
        agent.perform(name, value)
    agent.finish()


if __name__ == "__main__":
    main()
