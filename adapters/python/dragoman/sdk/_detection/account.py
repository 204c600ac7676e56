"""An agent's account outside of runs: the program that is asked, its turn with a login, the steps of a new one."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from dragoman.protocol.errors import invalid
from dragoman.sdk._detection.agent import program_environment
from dragoman.sdk._detection.programs import dialogue, find_executable
from dragoman.sdk._output.failures import classify_text, sentence
from dragoman.sdk._output.outcome import failure_message
from dragoman.sdk._output.parser import FailureInfo
from dragoman.sdk._run.login_lock import LoginLocks, RenewingLogin
from dragoman.sdk.spec import AgentSpec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from msgspec import Struct
from msgspec.structs import replace

TURN_LIMIT_S: Final = 10.0
"""How long a call waits for runs that are about to renew the login."""

LOGIN_LIMIT_S: Final = 1200.0
"""How long a login may take: the codes that services give are good for 15 minutes."""

Steps: TypeAlias = AsyncGenerator[pb.LoginResponse, None]

Renewing: TypeAlias = Callable[[Mapping[str, str]], RenewingLogin | None]
"""Returns the login that a program with these variables would use, if it is one that the program renews."""


class AgentProgram(Struct, frozen=True):
    """An agent's program, outside of a run."""

    executable: str
    """Absolute. Empty if it was not found."""
    env: dict[str, str]
    """Its whole environment: a run's, without the run's own variables."""


class LoginReader:
    """What the lines of an agent's program mean for one login. Pure."""

    spec: AgentSpec
    """The agent."""

    def __init__(self) -> None:
        self._has_prompted = False
        self.last_text = ""
        """What the program has printed last: its reason, should it end before it has shown where to log in."""

    def step(self, line: str) -> pb.LoginResponse | None:
        """Return what a line reports of the login; ``None`` if nothing."""
        raise NotImplementedError

    def prompt(self, url: str, user_code: str = "") -> pb.LoginResponse:
        """Return where to log in."""
        self._has_prompted = True
        return pb.LoginResponse(prompt=pb.LoginPrompt(url=url, user_code=user_code))

    def done(self) -> pb.LoginResponse | None:
        """Return the outcome of a login that succeeded; ``None`` before any prompt, which proves nothing."""
        return pb.LoginResponse(outcome=pb.LoginOutcome()) if self._has_prompted else None

    def refused(self, why: str) -> pb.LoginResponse:
        """Return the outcome of a login that the agent gave up; ``why``: its own words."""
        return login_failed(self._refusal(why))

    def ended(self) -> FailureInfo:
        """Return why there is no outcome, when the program has ended or its time is over."""
        if self.last_text and not self._has_prompted:
            return self._refusal(self.last_text)
        message = f"{self.spec.label} ended before it had logged in, or its time for that was over."
        return FailureInfo(event_pb2.FAILURE_KIND_AUTH_REQUIRED, message, f"{self.spec.type}_login_ended")

    def _refusal(self, why: str) -> FailureInfo:
        is_denied = self._has_prompted  # else the agent cannot log in now
        kind = event_pb2.FAILURE_KIND_AUTH_REQUIRED if is_denied else event_pb2.FAILURE_KIND_UPSTREAM_UNAVAILABLE
        return FailureInfo(kind, sentence(self.spec.label, why), f"{self.spec.type}_login")


class _BusyError(Exception):
    """The turn did not come in time, or there is no lock that could be trusted."""


def _find_program(spec: AgentSpec, request: pb.GetQuotaRequest | pb.LoginRequest) -> AgentProgram:
    """Return the program that a request is for; without a path if there is none."""
    env = program_environment(spec, request.config, request.env)
    command = request.config.fields["command"].string_value if "command" in request.config.fields else ""
    return AgentProgram(str(find_executable(spec.executables, env.get("PATH", ""), command) or ""), env)


def _not_installed(spec: AgentSpec) -> FailureInfo:
    """Return why an agent without a program cannot be asked."""
    message = f"{spec.label} was not found. {spec.install_hint}".strip()
    return FailureInfo(event_pb2.FAILURE_KIND_NOT_INSTALLED, message, f"{spec.type}_not_installed")


def _login_busy(spec: AgentSpec) -> FailureInfo:
    """Return why an agent is not asked whose login others hold."""
    message = f"{spec.label}'s login is about to be renewed by runs that use it; try again later."
    return FailureInfo(event_pb2.FAILURE_KIND_UPSTREAM_UNAVAILABLE, message, f"{spec.type}_login_busy")


def login_failed(info: FailureInfo) -> pb.LoginResponse:
    """Return the outcome of a login that failed."""
    return pb.LoginResponse(outcome=pb.LoginOutcome(failure=failure_message(info)))


def quota_failed(info: FailureInfo) -> pb.GetQuotaResponse:
    """Return the answer of an agent that could not be asked, or did not answer."""
    return pb.GetQuotaResponse(failure=failure_message(info))


def quota_silent(spec: AgentSpec, limit_s: float) -> pb.GetQuotaResponse:
    """Return the answer of an agent that gave none within ``limit_s`` seconds, or ended."""
    message = f"{spec.label} ended or did not report its rate limits within {limit_s:.0f} s."
    return quota_failed(FailureInfo(event_pb2.FAILURE_KIND_UPSTREAM_UNAVAILABLE, message, f"{spec.type}_no_answer"))


def quota_refused(spec: AgentSpec, error: str) -> pb.GetQuotaResponse:
    """Return the answer of an agent that answers with an error; ``error``: its own words."""
    known = classify_text(error) or FailureInfo(event_pb2.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "")
    advice = spec.login_hint if known.kind == event_pb2.FAILURE_KIND_AUTH_REQUIRED else ""
    return quota_failed(replace(known, message=sentence(spec.label, error, advice), code=f"{spec.type}_quota"))


async def quota_by(
    spec: AgentSpec,
    request: pb.GetQuotaRequest,
    ask: Callable[[AgentProgram], Awaitable[pb.GetQuotaResponse]],
    renewing: Renewing | None = None,
    locks: LoginLocks | None = None,
) -> pb.GetQuotaResponse:
    """Return what an agent's program answers, if it is there: alone with a login that is about to be renewed.

    Args:
        spec: the agent.
        request: what is asked for.
        ask: asks a program that was found.
        renewing: finds its login; None: it renews none.
        locks: the turns of those that share a login.
    """
    program = _find_program(spec, request)
    if not program.executable:
        return quota_failed(_not_installed(spec))
    try:
        async with _turn(program, renewing, locks):
            return await ask(program)
    except _BusyError:
        return quota_failed(_login_busy(spec))


def log_in_by(
    spec: AgentSpec,
    request: pb.LoginRequest,
    method: str,
    begin: Callable[[AgentProgram], Steps],
    renewing: Renewing | None = None,
    locks: LoginLocks | None = None,
) -> Steps:
    """Return the steps of a login by the agent's program, if it is there.

    Args:
        spec: the agent.
        request: what is asked for.
        method: the agent's one way.
        begin: begins with a program that was found: with a login about to be renewed in its turn, until the first
            step.
        renewing: finds its present login; None: it renews none.
        locks: the turns of those that share a login.

    Raises:
        DragomanError: INVALID_REQUEST: the agent has no such method.
    """
    if request.method not in {"", method}:
        raise invalid("method", f"must be {method}, or left out")
    return _log_in(spec, request, begin, renewing, locks)


async def _log_in(
    spec: AgentSpec,
    request: pb.LoginRequest,
    begin: Callable[[AgentProgram], Steps],
    renewing: Renewing | None,
    locks: LoginLocks | None,
) -> Steps:
    program = _find_program(spec, request)
    if not program.executable:
        yield login_failed(_not_installed(spec))
        return
    try:
        async with _turn(program, renewing, locks) as pass_on, contextlib.aclosing(begin(program)) as steps:
            async for event in steps:
                pass_on()
                yield event
    except _BusyError:
        yield login_failed(_login_busy(spec))


async def follow_login(
    reader: LoginReader,
    program: AgentProgram,
    arguments: Sequence[str],
    lines: bytes = b"",
    *,
    with_errors: bool = False,
) -> Steps:
    """Run a program that logs in, and yield the steps of the login until its outcome.

    Args:
        reader: what the program's lines mean.
        program: the program.
        arguments: with which it is run.
        lines: what it gets at its standard input.
        with_errors: whether its standard error is read too.
    """
    argv = [program.executable, *arguments]
    heard = dialogue(argv, program.env, lines, LOGIN_LIMIT_S, with_errors=with_errors)
    async with contextlib.aclosing(heard):
        async for line in heard:
            event = reader.step(line)
            if event is not None:
                yield event
                if event.HasField("outcome"):
                    return
    yield login_failed(reader.ended())


@contextlib.asynccontextmanager
async def _turn(
    program: AgentProgram, renewing: Renewing | None, locks: LoginLocks | None
) -> AsyncIterator[Callable[[], None]]:
    """Hold a login if it is about to be renewed, as runs do, one after the other; yield what passes it on early.

    Raises:
        _BusyError: others hold it.
    """
    login = renewing(program.env) if renewing is not None else None
    if locks is None or login is None or not login.is_due(time.time()):
        yield lambda: None
        return
    try:
        async with asyncio.timeout(TURN_LIMIT_S):
            held = await locks.take(login, lambda: None)
    except OSError as error:  # TimeoutError is one
        raise _BusyError from error
    try:
        yield held.release
    finally:
        held.release()
