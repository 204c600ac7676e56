"""``opencode run --format json``: the way without the Agent Client Protocol. Pure.

Parts come when they are finished, so nothing streams, and a question is refused by opencode itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from dragoman.adapters.opencode import content
from dragoman.adapters.opencode.tools import file_change
from dragoman.adapters.opencode.usage import add_tokens, cost_of, set_cost
from dragoman.sdk import (
    FailureInfo,
    Job,
    JsonValue,
    Line,
    Output,
    Plan,
    Report,
    Stream,
    Terminal,
    as_int,
    as_object,
    as_string,
    classify_http,
    classify_text,
    compact,
    failure_from_hint,
    outputs_of,
    parse_json_object,
)
from dragoman.v1 import event_pb2 as pb

Fields = Mapping[str, JsonValue]

_KINDS: Final[Mapping[str, pb.ToolKind.ValueType]] = {
    "bash": pb.TOOL_KIND_EXECUTE,
    "read": pb.TOOL_KIND_READ,
    "list": pb.TOOL_KIND_READ,
    "glob": pb.TOOL_KIND_SEARCH,
    "grep": pb.TOOL_KIND_SEARCH,
    "webfetch": pb.TOOL_KIND_FETCH,
    **dict.fromkeys(("write", "edit", "patch", "multiedit", "apply_patch"), pb.TOOL_KIND_EDIT),
}
_REFUSED: Final = ("The user rejected permission", "The user has specified a rule")
_FINAL: Final = frozenset({"stop", "end_turn"})


def plan(job: Job) -> Plan:
    """Return how to run opencode once."""
    argv = [job.executable, "run", "--format", "json", "--thinking"]
    agent, variant = content.agent_of(job), as_string(job.config.get("variant"), "")
    given = {"--model": job.settings.model, "--agent": agent, "--variant": variant}
    if job.session.resumes:
        given["--session"] = job.session.native_id
    argv += [word for option, value in given.items() if value for word in (option, value)]
    if job.session.disposition == pb.SESSION_DISPOSITION_FORK:
        argv.append("--fork")
    if job.permissions.auto_approve or content.skips_permissions(job):
        argv.append("--auto")
    env = content.environment(job)
    if job.request.mcp_servers:
        configuration = content.configuration(job)
        configuration["mcp"] = {**as_object(configuration.get("mcp"), {}), **content.mcp_servers(job.request)}
        env["OPENCODE_CONFIG_CONTENT"] = compact(configuration)
    message = "opencode refuses by itself what it would ask; neither rules nor the caller decide (transport: run)."
    return Plan(
        argv=(*argv, *job.settings.extra_args),
        stdin=job.prompt.encode(),
        env=env,
        notices=(("permissions_not_asked", message),) if not job.permissions.auto_approve else (),
    )


class RunParser:
    """Understands what ``opencode run --format json`` prints.

    Args:
        model: the model asked for; opencode does not name the one it takes.
    """

    def __init__(self, model: str = "") -> None:
        self.report = Report(model=model, provider=model.partition("/")[0])
        self._cost = Decimal(0)
        self._last_reason = ""
        self._handlers: Mapping[str, Callable[[Fields], Iterable[Output]]] = {
            "step_start": lambda _: (),
            "step_finish": self._step_finish,
            "text": self._text,
            "reasoning": self._reasoning,
            "tool_use": self._tool,
            "error": self._error,
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        frame = (parse_json_object(line.data) if stream == "stdout" else None) or {}
        handler = self._handlers.get(as_string(frame.get("type"), ""))
        read = (lambda: [*self._session(frame), *handler(frame)]) if handler else None
        return outputs_of(self.report, stream, line, read)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        if self.report.terminal is None and self._last_reason:
            self.report.terminal = _ending(self._last_reason)
        return []

    def _session(self, frame: Fields) -> Iterator[Output]:
        session_id = as_string(frame.get("sessionID"), "")
        if session_id and session_id != self.report.session_id:
            self.report.session_id = session_id
            yield pb.AgentEvent(session=pb.Session(native_id=session_id, model=self.report.model))

    def _text(self, frame: Fields) -> Iterator[Output]:
        part = as_object(frame.get("part"), {})
        words = as_string(part.get("text"), "")
        self.report.summary = words or self.report.summary
        yield pb.AgentEvent(text=pb.Text(item_id=as_string(part.get("id"), ""), whole=words))

    def _reasoning(self, frame: Fields) -> Iterator[Output]:
        part = as_object(frame.get("part"), {})
        words = as_string(part.get("text"), "")
        yield pb.AgentEvent(thinking=pb.Thinking(item_id=as_string(part.get("id"), ""), whole=words))

    def _tool(self, frame: Fields) -> Iterator[Output]:
        part = as_object(frame.get("part"), {})
        state = as_object(part.get("state"), {})
        call_id = as_string(part.get("callID"), "") or as_string(part.get("id"), "")
        name, given = as_string(part.get("tool"), ""), as_object(state.get("input"), {})
        kind = _KINDS.get(name, pb.TOOL_KIND_OTHER)
        yield pb.AgentEvent(
            tool_call=pb.ToolCall(
                id=call_id,
                name=name,
                kind=kind,
                title=as_string(state.get("title"), name),
                input_json=compact(given) if given else "",
                status=pb.TOOL_STATUS_RUNNING,
            )
        )
        yield pb.AgentEvent(tool_result=_result(call_id, state))
        if kind == pb.TOOL_KIND_EDIT and state.get("status") == "completed":
            change = file_change(call_id, given, state)
            if change is not None:
                yield pb.AgentEvent(file_change=change)

    def _step_finish(self, frame: Fields) -> Iterator[Output]:
        part = as_object(frame.get("part"), {})
        self._last_reason = as_string(part.get("reason"), "")
        call = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA)
        tokens = as_object(part.get("tokens"), {})
        if not tokens:
            return
        add_tokens(call.tokens, tokens)
        total = self.report.usage or pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
        add_tokens(total.tokens, tokens)
        self._cost += cost_of(part)
        if self._cost:
            set_cost(total.cost, self._cost)
        self.report.usage = total
        yield pb.AgentEvent(usage=call)

    def _error(self, frame: Fields) -> Iterator[Output]:
        error = as_object(frame.get("error"), {})
        self.report.terminal = Terminal(
            succeeded=False, subtype=as_string(error.get("name"), ""), failure=_failure(error)
        )
        self.report.raw_json = compact(error)
        return iter(())


def _result(call_id: str, state: Fields) -> pb.ToolResult:
    failed = state.get("status") == "error"
    said = as_string(state.get("error" if failed else "output"), "")
    status = pb.TOOL_STATUS_FAILED if failed else pb.TOOL_STATUS_COMPLETED
    if failed and said.startswith(_REFUSED):
        status = pb.TOOL_STATUS_DENIED
    code = as_int(as_object(state.get("metadata"), {}).get("exit"), None)
    has_code = code is not None and -(2**31) <= code < 2**31
    return pb.ToolResult(
        tool_call_id=call_id, status=status, content=said, is_error=failed, exit_code=code if has_code else None
    )


def _ending(reason: str) -> Terminal:
    """Return what the last call of the model means for the run."""
    if reason in _FINAL:
        return Terminal(succeeded=True, subtype=reason)
    kind, message = {
        "length": (pb.FAILURE_KIND_CONTEXT_OVERFLOW, "The model's answer reached its limit of tokens and was cut."),
        "content-filter": (pb.FAILURE_KIND_MODEL_REFUSED, "The model's service refused to go on."),
        # opencode ends there, with exit code 0, when it has refused something itself.
        "tool-calls": (pb.FAILURE_KIND_PERMISSION_DENIED, "opencode stopped after a tool that it was not allowed."),
    }.get(reason, (pb.FAILURE_KIND_NO_RESULT, f"opencode stopped for a reason that is not known here: {reason}."))
    return Terminal(succeeded=False, subtype=reason, failure=FailureInfo(kind, message, code=f"opencode_{reason}"))


def _failure(error: Fields) -> FailureInfo:
    data = as_object(error.get("data"), {})
    said = as_string(data.get("message"), "") or as_string(error.get("name"), "") or "opencode failed without a word."
    code = f"opencode_{as_string(error.get('name'), 'error')}"
    status, body = as_int(data.get("statusCode"), None), as_string(data.get("responseBody"), "")
    now = datetime.now(UTC)
    hint = None
    if status is not None:
        headers = as_object(data.get("responseHeaders"), {}).items()
        hint = classify_http(
            status, f"{said}\n{body}", {name: value for name, value in headers if isinstance(value, str)}, now
        )
    hint = hint or classify_text(said, now)
    if hint is None:
        return FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, said, code=code, errors=(said,), http_status=status)
    known = failure_from_hint(hint, code=code)
    return FailureInfo(
        known.kind,
        known.message,
        code=code,
        errors=(said,),
        retry_not_before=known.retry_not_before,
        login_url=known.login_url,
        http_status=status,
    )
