"""``opencode run --format json``: the way without the Agent Client Protocol. Pure.

opencode prints parts when they are finished, so nothing streams, and refuses its questions itself.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from dragoman.adapters.opencode import content
from dragoman.adapters.opencode.tools import KINDS, file_change
from dragoman.adapters.opencode.usage import cost_of, tokens_of
from dragoman.sdk import FailureInfo, Job, Output, Plan, Terminal
from dragoman.sdk.failures import classify_http, classify_text
from dragoman.sdk.fields import Fields, as_int, as_object, as_string, compact, inner, text
from dragoman.sdk.parsing import Handler, JsonLinesParser, call_usage, mcp_server_of, text_event
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

_REFUSED: Final = ("The user rejected permission", "The user has specified a rule")
_FINAL: Final = frozenset({"stop", "end_turn"})


def plan(job: Job) -> Plan:
    """Return how to run opencode once."""
    argv = [job.executable, "run", "--format", "json", "--thinking"]
    agent, variant = content.agent_of(job), as_string(job.config.get("variant"), "")
    options = {"--model": job.settings.model, "--agent": agent, "--variant": variant}
    if job.session.resumes:
        options["--session"] = job.session.native_id
    argv += [word for option, value in options.items() if value for word in (option, value)]
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


class RunParser(JsonLinesParser):
    """Reads what ``opencode run --format json`` prints.

    Args:
        model: the requested model; opencode does not name the one that it uses.
        servers: the names of the run's MCP servers.
    """

    def __init__(self, model: str = "", servers: Collection[str] = ()) -> None:
        super().__init__(
            {
                "step_finish": lambda frame: self._step_finish(inner(frame, "part")),
                "text": lambda frame: self._text(inner(frame, "part")),
                "reasoning": lambda frame: [_words("thinking", inner(frame, "part"))],
                "tool_use": lambda frame: self._tool(inner(frame, "part")),
                "error": self._error,
            },
            silent=("step_start",),
        )
        self.report.model, self.report.provider = model, model.partition("/")[0]
        self._servers = servers
        self._last_reason = ""

    def read(self, handler: Handler, frame: Fields) -> Iterator[Output]:
        """Read an object; each names the session."""
        session_id = text(frame, "sessionID")
        if session_id and session_id != self.report.session_id:
            self.report.session_id = session_id
            yield pb.AgentEvent(session=pb.Session(native_id=session_id, model=self.report.model))
        yield from handler(frame) or ()

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        if self.report.terminal is None and self._last_reason:
            self.report.terminal = ending_of(self._last_reason)
        return super().finish()

    def _text(self, part: Fields) -> Iterable[Output]:
        self.report.summary = text(part, "text") or self.report.summary
        return [_words("text", part)]

    def _tool(self, part: Fields) -> Iterator[Output]:
        state = inner(part, "state")
        call_id, name = text(part, "callID") or text(part, "id"), text(part, "tool")
        tool_input = inner(state, "input")
        server = mcp_server_of(name, self._servers) if name not in KINDS else None
        kind = KINDS.get(name, pb.TOOL_KIND_OTHER if server is None else pb.TOOL_KIND_MCP)
        yield pb.AgentEvent(
            tool_call=pb.ToolCall(
                id=call_id,
                name=name,
                kind=kind,
                title=text(state, "title") or name,
                input_json=compact(tool_input) if tool_input else "",
                status=pb.TOOL_STATUS_RUNNING,
                mcp_server=server or "",
            )
        )
        yield pb.AgentEvent(tool_result=_result(call_id, state))
        if kind == pb.TOOL_KIND_EDIT and state.get("status") == "completed":
            change = file_change(call_id, tool_input, state)
            if change is not None:
                yield pb.AgentEvent(file_change=change)

    def _step_finish(self, part: Fields) -> Iterator[Output]:
        self._last_reason = text(part, "reason")
        tokens = inner(part, "tokens")
        if tokens:
            call = call_usage(tokens_of(tokens))
            self.report.usage = self.usage.add(call, cost_of(part))
            yield pb.AgentEvent(usage=call)

    def _error(self, frame: Fields) -> Iterable[Output]:
        error = inner(frame, "error")
        self.report.terminal = Terminal(succeeded=False, subtype=text(error, "name"), failure=failure_of_error(error))
        self.report.raw_json = compact(error)
        return ()


def _words(kind: str, part: Fields) -> pb.AgentEvent:
    return text_event(kind, text(part, "id"), whole=text(part, "text"))


def _result(call_id: str, state: Fields) -> pb.ToolResult:
    failed = state.get("status") == "error"
    content = as_string(state.get("error" if failed else "output"), "")
    status = pb.TOOL_STATUS_FAILED if failed else pb.TOOL_STATUS_COMPLETED
    if failed and content.startswith(_REFUSED):
        status = pb.TOOL_STATUS_DENIED
    code = as_int(as_object(state.get("metadata"), {}).get("exit"), None)
    has_code = code is not None and -(2**31) <= code < 2**31
    return pb.ToolResult(
        tool_call_id=call_id, status=status, content=content, is_error=failed, exit_code=code if has_code else None
    )


def ending_of(reason: str) -> Terminal:
    """Return how the run ended, by the end of the last call of the model."""
    if reason in _FINAL:
        return Terminal(succeeded=True, subtype=reason)
    kind, message = {
        "length": (pb.FAILURE_KIND_OUTPUT_LIMIT, "The model's answer was cut at its limit of output tokens."),
        "content-filter": (pb.FAILURE_KIND_MODEL_REFUSED, "The model's service refused to continue."),
        # opencode ends there, with exit code 0, when it has refused something itself.
        "tool-calls": (pb.FAILURE_KIND_PERMISSION_DENIED, "opencode stopped after a tool that it was not allowed."),
    }.get(reason, (pb.FAILURE_KIND_NO_RESULT, f"opencode stopped for an unknown reason: {reason}."))
    failure = FailureInfo(kind, message, code=f"opencode_{reason}", errors=(reason,))
    return Terminal(succeeded=False, subtype=reason, failure=failure)


def failure_of_error(error: Fields) -> FailureInfo:
    """Return the failure of an error that opencode prints, or stores with a message."""
    data = as_object(error.get("data"), {})
    message = as_string(data.get("message"), "") or as_string(error.get("name"), "")
    message = message or "opencode failed without a reason."
    code = f"opencode_{as_string(error.get('name'), 'error')}"
    status, body = as_int(data.get("statusCode"), None), as_string(data.get("responseBody"), "")
    failure = None
    if status is not None:
        headers = as_object(data.get("responseHeaders"), {}).items()
        failure = classify_http(
            status, f"{message}\n{body}", {name: value for name, value in headers if isinstance(value, str)}
        )
    failure = failure or classify_text(message) or FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message)
    return replace(failure, code=code, errors=(message,), http_status=status)
