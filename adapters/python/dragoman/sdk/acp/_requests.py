"""What the agent asks of its client: permissions, forms, files, commands. Pure: questions and host calls come out.

A file that the agent wants written and a command that it wants run are decided by policy like anything else it
asks for, unless their tool call was just allowed. Reading in the workspace is left to it unless a rule forbids it.
"""

import json
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from dragoman.sdk._encoding.config import as_string_list
from dragoman.sdk._encoding.fields import Fields, count, inner, objects, text
from dragoman.sdk._encoding.json_text import JsonValue, compact
from dragoman.sdk._encoding.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Peer, Request
from dragoman.sdk._output.outcome import signal_name
from dragoman.sdk._output.parser import Answer, Ask, HostCall, Output, Withdraw, Write
from dragoman.sdk._process.host_services import AbsentError, Command, HostServices
from dragoman.sdk.acp._ending import CANCELLED, NOT_FOUND
from dragoman.sdk.acp._session import AcpOptions, Conversation
from dragoman.sdk.acp._tools import ToolCalls, subject
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field
from msgspec.structs import replace

Done: TypeAlias = Awaitable[JsonValue]
"""The result of a method, when it is there."""


class CommandLine(Struct, frozen=True):
    """A command that the agent wants run."""

    command: str
    args: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    most_bytes: int | None = None

    @property
    def shown(self) -> str:
        """The command line, as policy and people see it."""
        return shlex.join((self.command, *self.args)) if self.args else self.command

    @property
    def argv(self) -> tuple[str, ...]:
        """What is started: without arguments, agents mean a line for the shell."""
        if self.args or os.path.isabs(self.command) or not set(self.command) & _SHELL:  # noqa: PTH117 - a string is at hand
            return self.command, *self.args
        return "/bin/sh", "-c", self.command


_SHELL: Final = frozenset(" \t\n;&|<>`$(){}*?\"'")


async def read_file(services: HostServices, path: str, line: int | None, limit: int | None) -> JsonValue:
    """Do ``fs/read_text_file``.

    Args:
        services: where.
        path: the file.
        line: the first line to return, from 1. None: from the beginning.
        limit: how many lines. None: all.
    """
    content = await services.read_text(path)
    if line is not None or limit is not None:
        first = max(0, (line or 1) - 1)
        lines = content.split("\n")[first:]
        content = "\n".join(lines if limit is None else lines[:limit])
    return {"content": content}


async def write_file(services: HostServices, path: str, content: str) -> JsonValue:
    """Do ``fs/write_text_file``."""
    await services.write_text(path, content)
    return {}


async def start_command(services: HostServices, command_line: CommandLine) -> JsonValue:
    """Do ``terminal/create``."""
    terminal = await services.start(
        command_line.argv, cwd=command_line.cwd, env=command_line.env, most_bytes=command_line.most_bytes
    )
    return {"terminalId": terminal}


async def _output(services: HostServices, terminal_id: str) -> JsonValue:
    command = services.command(terminal_id)
    result: dict[str, JsonValue] = {"output": command.output, "truncated": command.truncated}
    if command.exit is not None:
        result["exitStatus"] = _exit_status(command)
    return result


async def _wait(services: HostServices, terminal_id: str) -> JsonValue:
    command = services.command(terminal_id)
    await command.ended.wait()
    return _exit_status(command)


async def _kill(services: HostServices, terminal_id: str) -> JsonValue:
    services.kill(terminal_id)
    return {}


async def _release(services: HostServices, terminal_id: str) -> JsonValue:
    services.release(terminal_id)
    return {}


def _exit_status(command: Command) -> dict[str, JsonValue]:
    code, signal = command.exit or (None, None)
    return {"exitCode": code, "signal": signal_name(signal) if signal else None}


OF_TERMINALS: Final[Mapping[str, Callable[[HostServices, str], Done]]] = {
    "terminal/output": _output,
    "terminal/wait_for_exit": _wait,
    "terminal/kill": _kill,
    "terminal/release": _release,
}
"""Methods about one terminal."""


_OPTION_KINDS: Final = {
    "allow_once": pb.INPUT_OPTION_KIND_ALLOW_ONCE,
    "allow_always": pb.INPUT_OPTION_KIND_ALLOW_ALWAYS,
    "reject_once": pb.INPUT_OPTION_KIND_REJECT_ONCE,
    "reject_always": pb.INPUT_OPTION_KIND_REJECT_ALWAYS,
}
_CANCELLED: Final = {"outcome": {"outcome": "cancelled"}}
_REFUSED: Final = "Not allowed by this run's permissions."

_Operation: TypeAlias = Callable[[HostServices], Done]


class Requests:
    """The agent's requests of one attempt."""

    def __init__(self, peer: Peer[str], options: AcpOptions, conversation: Conversation, calls: ToolCalls) -> None:
        self._peer = peer
        self._options = options
        self._conversation = conversation
        self._calls = calls
        self._open: dict[str, Request] = {}
        """Requests that wait for an answer, by the ID of the question."""
        self._granted: set[str] = set()
        """Paths and command lines of calls that were allowed; each is good for one request."""
        self._granted_kinds: set[pb.ToolKind.ValueType] = set()
        """Sorts of calls that were allowed always."""
        self._handlers: dict[str, Callable[[Request], Output]] = {"session/request_permission": self._permission}
        if options.elicitation:
            self._handlers["elicitation/create"] = self._elicitation
        if options.reads_files:
            self._handlers["fs/read_text_file"] = self._read
        if options.writes_files:
            self._handlers["fs/write_text_file"] = self._write
        if options.terminals:
            self._handlers["terminal/create"] = self._create
            self._handlers.update(dict.fromkeys(OF_TERMINALS, self._terminal))

    def take(self, request: Request) -> list[Output]:
        """Take a request."""
        if request.method in self._options.acknowledged:
            return [Write(self._peer.result(request.id, {}))]
        handler = self._handlers.get(request.method)
        if handler is None:
            return [self._error(request, METHOD_NOT_FOUND, f"{request.method} is not offered")]
        return [handler(request)]

    def withdraw(self, params: Fields) -> list[Output]:
        """Take ``$/cancel_request``: the agent no longer wants its answer."""
        about = params.get("requestId")
        for question_id, request in list(self._open.items()):
            if request.id == about and type(request.id) is type(about):
                del self._open[question_id]
                return [Withdraw(question_id), self._error(request, CANCELLED, "cancelled")]
        return []

    def give_up(self) -> list[Output]:
        """Answer what is open: the turn is cancelled, and agents wait for it."""
        outputs: list[Output] = []
        for request in self._open.values():
            outcome: object = _CANCELLED if request.method == "session/request_permission" else {"action": "cancel"}
            outputs.append(Write(self._peer.result(request.id, outcome)))
        self._open.clear()
        return outputs

    def _error(self, request: Request, code: int, message: str, data: object = None) -> Write:
        return Write(self._peer.error(request.id, code, message, data))

    def _question_id(self, request: Request) -> str:
        """Return an id for a question; an agent counts anew in each attempt, and 1 is not "1"."""
        question_id = f"{self._conversation.tag}-{json.dumps(request.id)}"
        self._open[question_id] = request
        return question_id

    # Questions.

    def _permission(self, request: Request) -> Output:
        asked = inner(request.params, "toolCall")
        call = self._calls.asked_about(asked)
        options = _options(request.params)
        question_id = self._question_id(request)
        title = text(asked, "title") or (call.title if call is not None else "") or "The agent asks for permission."
        question = pb.InputRequest(id=question_id, kind=pb.INPUT_KIND_PERMISSION, title=title, options=options)
        if call is not None:
            question.subject.CopyFrom(subject(call, asked, self._conversation.cwd))

        def encode(answer: Answer) -> bytes:
            self._open.pop(question_id, None)
            if answer.allowed:
                self._grant(question.subject, answer)
            elif call is not None:
                self._calls.denied.add(call.id)
            if answer.option is None:
                return self._peer.result(request.id, _CANCELLED)
            outcome = {"outcome": "selected", "optionId": answer.option.id}
            return self._peer.result(request.id, {"outcome": outcome})

        return Ask(question, encode)

    def _grant(self, about: pb.InputSubject, answer: Answer) -> None:
        self._granted.update(item for item in (*about.paths, about.command) if item)
        if answer.option is not None and answer.option.kind == pb.INPUT_OPTION_KIND_ALLOW_ALWAYS:
            self._granted_kinds.add(about.tool_kind)

    def _elicitation(self, request: Request) -> Output:
        if text(request.params, "mode") not in {"", "form"}:
            return self._error(request, INVALID_PARAMS, "only forms are offered")
        question_id = self._question_id(request)
        question = pb.InputRequest(
            id=question_id,
            kind=pb.INPUT_KIND_SCHEMA,
            title=text(request.params, "message") or "The agent asks.",
            schema_json=compact(inner(request.params, "requestedSchema") or {"type": "object"}),
        )
        question.subject.tool_call_id = text(request.params, "toolCallId")

        def encode(answer: Answer) -> bytes:
            self._open.pop(question_id, None)
            if not answer.allowed:
                return self._peer.result(request.id, {"action": "decline"})
            return self._peer.result(request.id, {"action": "accept", "content": _parse(answer.value_json)})

        return Ask(question, encode)

    # Files and commands.

    def _read(self, request: Request) -> Output:
        path = text(request.params, "path")
        line, limit = count(request.params, "line"), count(request.params, "limit")
        perform = self._perform(request, lambda services: read_file(services, path, line, limit))
        about = pb.InputSubject(tool_name=request.method, tool_kind=pb.TOOL_KIND_READ, paths=[path])
        return self._decided(request, about, f"Read {path}", perform, is_free=True)

    def _write(self, request: Request) -> Output:
        path, content = text(request.params, "path"), request.params.get("content")
        if not path or not isinstance(content, str):
            return self._error(request, INVALID_PARAMS, "give a path and a content")
        perform = self._perform(request, lambda services: write_file(services, path, content))
        about = pb.InputSubject(tool_name=request.method, tool_kind=pb.TOOL_KIND_EDIT, paths=[path])
        return self._decided(request, about, f"Write {path}", perform)

    def _create(self, request: Request) -> Output:
        params = request.params
        command_line = CommandLine(
            command=text(params, "command"),
            args=tuple(as_string_list(params.get("args"))),
            cwd=text(params, "cwd"),
            env={text(item, "name"): text(item, "value") for item in objects(params, "env") if text(item, "name")},
            most_bytes=count(params, "outputByteLimit"),
        )
        if not command_line.command:
            return self._error(request, INVALID_PARAMS, "give a command")
        perform = self._perform(request, lambda services: start_command(services, command_line))
        about = pb.InputSubject(tool_name=request.method, tool_kind=pb.TOOL_KIND_EXECUTE, command=command_line.shown)
        return self._decided(request, about, f"Run {command_line.shown}", perform)

    def _terminal(self, request: Request) -> Output:
        operation = OF_TERMINALS[request.method]
        terminal_id = text(request.params, "terminalId")
        perform = self._perform(request, lambda services: operation(services, terminal_id))

        def encode(done: "JsonValue | Exception") -> bytes:
            if isinstance(done, dict):
                self._calls.terminals.note(terminal_id, done)
            return perform.encode(done)

        return replace(perform, encode=encode)

    def _perform(self, request: Request, operation: _Operation) -> HostCall:
        def encode(done: "JsonValue | Exception") -> bytes:
            if isinstance(done, AbsentError):
                return self._peer.error(request.id, NOT_FOUND, str(done), {"uri": text(request.params, "path")})
            if isinstance(done, Exception):
                return self._peer.error(request.id, INTERNAL_ERROR, str(done) or type(done).__name__)
            return self._peer.result(request.id, done)

        return HostCall(operation, encode)

    def _decided(
        self, request: Request, about: pb.InputSubject, title: str, perform: HostCall, *, is_free: bool = False
    ) -> Output:
        """Return what is done at once if its call was allowed, and else the question whether to do it.

        Args:
            request: the request.
            about: what it is about.
            title: for people.
            perform: what is done if it is allowed.
            is_free: whether it is done unless a rule forbids it.
        """
        key = about.command or next(iter(about.paths), "")
        if not is_free and (key in self._granted or about.tool_kind in self._granted_kinds):
            self._granted.discard(key)
            return perform
        question_id = self._question_id(request)
        question = pb.InputRequest(id=question_id, kind=pb.INPUT_KIND_PERMISSION, title=title, subject=about)
        question.options.add(id="allow_once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once")
        question.options.add(id="reject_once", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject")

        def encode(answer: Answer) -> bytes:
            self._open.pop(question_id, None)
            return self._peer.error(request.id, INTERNAL_ERROR, answer.message or _REFUSED)

        def allowed(answer: Answer) -> HostCall | None:
            if not answer.allowed:
                return None
            self._open.pop(question_id, None)
            return perform

        return Ask(question, encode, perform=allowed, is_free=is_free)


def _options(params: Fields) -> list[pb.InputOption]:
    """Return the agent's options, each id once."""
    options: dict[str, pb.InputOption] = {}
    for item in objects(params, "options"):
        option_id = text(item, "optionId")
        if option_id and option_id not in options:
            kind = _OPTION_KINDS.get(text(item, "kind"), pb.INPUT_OPTION_KIND_UNSPECIFIED)
            label = text(item, "name") or option_id
            options[option_id] = pb.InputOption(id=option_id, kind=kind, label=label, native_json=compact(item))
    return list(options.values())


def _parse(data: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(data)
    except ValueError:
        return {}
    return value
