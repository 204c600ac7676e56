"""How an attempt ended: the agent's own word first, its exit code second, its error output last. Pure.

A success that the agent reports stays a success whatever its exit code; a cancelled run whose agent finished
has succeeded nevertheless. An agent that normally reports its end, and did not, has not succeeded.
"""

import signal
from collections.abc import Callable
from typing import Final

from dragoman.protocol.clocks import FAILURE_BY_CLOCK, Clock
from dragoman.protocol.failures import is_retryable
from dragoman.sdk._output.failure_rules import REFRESH_TOKENS
from dragoman.sdk._output.parser import FailureInfo, Report
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

ARGUMENTS_HINT: Final = "There is no shell: config.command is one program, and config.args has its arguments."
_MOST_CHARACTERS = 16 * 1024


class Evidence(Struct, frozen=True):
    """What was seen of an attempt."""

    report: Report
    exit_code: int | None = None
    exit_signal: int | None = None
    spawn_error: str = ""
    """The errno's name if the agent could not be started, e.g. ENOENT."""
    lost_workspace: bool = False
    """It could not be started, as its working directory is gone."""
    stopped_by: Clock | None = None
    """The clock that ran out."""
    parser_fault: str = ""
    """Type and place of the parser's last exception; empty if there was none."""
    unread_end: bool = False
    """It was about the last line of standard output, or about the end of all output."""
    cancelled: bool = False
    resumed: bool = False
    stdout_tail: str = ""
    """The end of what could not be parsed of standard output."""
    stderr_tail: str = ""
    command: str = ""


class Verdict(Struct, frozen=True):
    """How an attempt ended."""

    outcome: pb.Outcome.ValueType
    failure: FailureInfo | None = None

    @property
    def lost_session(self) -> bool:
        """Whether the session to resume was gone."""
        return self.failure is not None and self.failure.kind == pb.FAILURE_KIND_SESSION_LOST


Classify = Callable[[Evidence], FailureInfo | None]
"""An adapter's own knowledge of failures; None where it knows nothing better."""

_CLOCK_MESSAGES: dict[Clock, str] = {
    "start_up": "The agent gave no sign within its start-up limit. Raise limits.start_up, or see why it hangs.",
    "idle": "The agent was silent for longer than its idle limit."
    " Raise limits.idle (--idle-timeout) if the task needs it.",
    "tool_call": "A tool call took longer than its limit."
    " Raise limits.tool_call (--tool-timeout) if the task needs it.",
    "wall": "The run took longer than its wall limit. Raise limits.wall (--timeout) if the task needs it.",
    "unread": "The agent has said nothing since; it may wait for an answer.",
}


def conclude(evidence: Evidence, classify: Classify, *, needs_terminal: bool) -> Verdict:
    """Decide how an attempt ended.

    Args:
        evidence: what was seen.
        classify: the adapter's knowledge of failures.
        needs_terminal: whether this agent always says in its output how it ended. If not, exit code 0 is success.
    """
    terminal = evidence.report.terminal
    if terminal is not None and terminal.succeeded:
        return Verdict(pb.OUTCOME_SUCCEEDED)
    if evidence.cancelled:
        return Verdict(pb.OUTCOME_CANCELLED)
    if evidence.stopped_by == "unread":
        return Verdict(pb.OUTCOME_FAILED, _unread(evidence))
    if evidence.stopped_by is not None:
        clock = evidence.stopped_by
        failure = FailureInfo(FAILURE_BY_CLOCK[clock], _CLOCK_MESSAGES[clock], code=f"{clock}_timeout")
        return Verdict(pb.OUTCOME_TIMED_OUT, failure)
    if evidence.lost_workspace:
        message = "The working directory was removed before the agent was started."
        return Verdict(pb.OUTCOME_FAILED, FailureInfo(pb.FAILURE_KIND_WORKSPACE_FAILED, message, code="cwd_absent"))
    if evidence.spawn_error:
        return Verdict(pb.OUTCOME_FAILED, spawn_failure(evidence.spawn_error, evidence.command))
    lacks_end = bool(evidence.parser_fault) and terminal is None and (needs_terminal or evidence.unread_end)
    if terminal is None and evidence.exit_code == 0:
        if lacks_end:  # the agent does not know of it: nothing it says explains that
            return Verdict(pb.OUTCOME_FAILED, _unread(evidence))
        if not needs_terminal and not _is_garbage(evidence):
            return Verdict(pb.OUTCOME_SUCCEEDED)
    known = classify(evidence) or (terminal.failure if terminal else None)
    return Verdict(pb.OUTCOME_FAILED, known or (_unread(evidence) if lacks_end else _by_exit(evidence)))


def _is_garbage(evidence: Evidence) -> bool:
    """Return whether standard output had something, and the parser understood nothing of it."""
    return bool(evidence.stdout_tail.strip()) and not evidence.report.has_output


def _unread(evidence: Evidence) -> FailureInfo:
    waits = f" {_CLOCK_MESSAGES['unread']}" if evidence.stopped_by == "unread" else ""
    message = (
        f"The adapter could not read the agent's output ({evidence.parser_fault or 'its parser failed'}).{waits}"
        " This is a fault of the adapter, not of the agent; its log has the trace."
    )
    return FailureInfo(pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, message, code="parser_failed")


def spawn_failure(errno_name: str, command: str, install_hint: str = "") -> FailureInfo:
    """Return the failure of a command that could not be started; ``install_hint`` says how to install it."""
    if errno_name == "ENOENT":
        return FailureInfo(pb.FAILURE_KIND_NOT_INSTALLED, _not_found(command, install_hint), code="command_not_found")
    return FailureInfo(
        pb.FAILURE_KIND_SPAWN_FAILED,
        f"{command or 'The agent'} could not be started ({errno_name}).",
        code=f"spawn_{errno_name.lower()}",
    )


def has_arguments(command: str) -> bool:
    """Return whether a command looks like a program with arguments behind it, as in a shell."""
    return len(command.split()) > 1


def _not_found(command: str, install_hint: str) -> str:
    if has_arguments(command):
        return f"There is no program {command!r}. {ARGUMENTS_HINT}"
    if "/" in command:
        return (
            f"{command} does not exist, or the interpreter that its first line names does not."
            f" {install_hint or 'Install it.'} Or correct config.command."
        )
    return (
        f"{command or 'The agent'} was not found on the run's PATH: that of the request's env, else of the adapter,"
        f" which has its router's. {install_hint or 'Install it there.'} Or set config.command to its path."
    )


def _by_exit(evidence: Evidence) -> FailureInfo:
    tail = (evidence.stderr_tail or evidence.stdout_tail).strip()
    last_output = f" Its last output: {tail[-400:]}" if tail else ""
    if evidence.exit_signal is not None:
        name = signal_name(evidence.exit_signal)
        return FailureInfo(
            pb.FAILURE_KIND_PROCESS_CRASHED, f"The agent was ended by {name}.{last_output}", code="signal"
        )
    if evidence.report.terminal is not None:
        subtype = evidence.report.terminal.subtype
        statement = f"The agent says that it failed{f' ({subtype})' if subtype else ''}."
        return FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, f"{statement}{last_output}", code="reported")
    if _is_garbage(evidence) and evidence.exit_code is not None:
        message = f"The adapter recognized none of the agent's output; it exited with code {evidence.exit_code}."
        code = "exit_code" if evidence.exit_code else "unparseable_output"
        return FailureInfo(pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, f"{message}{last_output}", code=code)
    if evidence.exit_code == 0:
        return FailureInfo(
            pb.FAILURE_KIND_NO_RESULT,
            f"The agent exited with code 0 without saying how its work ended.{last_output}",
            code="no_result",
        )
    if evidence.exit_code is None:
        return FailureInfo(
            pb.FAILURE_KIND_PROCESS_CRASHED,
            f"The agent is gone; its exit was not observed.{last_output}",
            code="vanished",
        )
    message = f"The agent exited with code {evidence.exit_code}.{last_output}"
    return FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="exit_code")


def signal_name(number: int) -> str:
    """Return a signal's name, e.g. SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _refresh_token_code(info: FailureInfo) -> str:
    if info.kind != pb.FAILURE_KIND_AUTH_REQUIRED:
        return ""
    texts = [words[:_MOST_CHARACTERS] for words in (info.message, *info.errors)]
    return next((code for code, pattern in REFRESH_TOKENS if any(map(pattern.search, texts))), "")


def failure_message(info: FailureInfo) -> pb.Failure:
    """Return the protocol's form of a failure. A login that could not be renewed has a code that all agents share."""
    failure = pb.Failure(
        kind=info.kind,
        code=_refresh_token_code(info) or info.code,
        message=info.message,
        errors=info.errors,
        retryable=is_retryable(info.kind),
        login_url=info.login_url if info.login_url.startswith("https://") else "",
        http_status=info.http_status,
    )
    if info.retry_not_before is not None:
        failure.retry_not_before.FromDatetime(info.retry_not_before)
    return failure
