"""The fall-back without a gateway: ``openclaw agent --local``, a program for each run. Pure but for ``prepare``.

It prints one JSON document at its end, and asks no questions: the plugin refuses what a tool may not do, and prints
each refusal as a line on standard error.
"""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Final

from dragoman.adapters.openclaw import plan
from dragoman.adapters.openclaw.classify import failure_of
from dragoman.adapters.openclaw.environment import (
    PLUGIN,
    RUNS,
    local_config,
    local_environment,
    read_setting,
    run_file,
)
from dragoman.adapters.openclaw.parse import ending_of, errors_of, learn, visible_texts
from dragoman.adapters.openclaw.tools import tool_call
from dragoman.sdk import FailureError, FailureInfo, Job, Line, Output, Plan, Report, Stream, Terminal, log_event
from dragoman.sdk import fields as read
from dragoman.sdk.detection import probe
from dragoman.sdk.fields import Fields, JsonValue, as_string, compact, parse_json_object
from dragoman.v1 import event_pb2 as pb

PLUGIN_ID: Final = "dragoman"
CONFIG: Final = "openclaw.json"
MESSAGE: Final = "message.txt"
REFUSED: Final = "The run may not do that, and no question can be asked (transport: local)."
"""The model gets this as the result of a refused tool."""

_ANSWER_LIMIT_S: Final = 180.0
_MOST_BYTES: Final = 32 * 1024 * 1024


def is_local(config: Mapping[str, JsonValue]) -> bool:
    """Return whether ``transport`` is ``local``."""
    return as_string(config.get("transport"), "") == "local"


def session_key(job: Job, session_id: str = "") -> str:
    """Return OpenClaw's key of ``--session-id``; of the attempt's own without an ID."""
    return f"agent:{_agent(job)}:explicit:{session_id or plan.native_id(job)}"


def plan_local(job: Job) -> Plan:
    """Return how to run OpenClaw for a job without a gateway."""
    argv = [job.executable, "agent", "--local", "--json", "--agent", _agent(job), "--session-id", plan.native_id(job)]
    argv += ["--message-file", str(job.run_dir / MESSAGE), "--timeout", "0"]  # else it ends after ten minutes
    if job.settings.model:
        argv += ["--model", job.settings.model]
    thinking = plan.thinking_level(job)
    if thinking:
        argv += ["--thinking", thinking]
    run: dict[str, JsonValue] = {"asks": False, "env": {}, "system": plan.system_text(job)}
    notices: list[tuple[str, str]] = []
    if not job.permissions.auto_approve:
        run["refuses"] = REFUSED
        message = "Tools that change or fetch anything are refused; no question is asked (transport: local)."
        notices.append(("tools_withheld", message))
    plugin = (files(__package__) / PLUGIN).iterdir()
    return Plan(
        argv=tuple(argv),
        files={
            MESSAGE: plan.message(job).encode(),
            f"{RUNS}/{run_file(session_key(job))}": compact(run).encode(),
            **{f"{PLUGIN}/{resource.name}": resource.read_bytes() for resource in plugin if resource.is_file()},
        },
        notes=(f"no gateway; session {session_key(job)}",),
        notices=tuple(notices),
    )


async def prepare(job: Job, env: Mapping[str, str]) -> dict[str, str]:
    """Write the run's configuration, and look for the session: OpenClaw would create an unknown one silently.

    Raises:
        FailureError: there is no OpenClaw or no such session, or it does not load the plugin, or does not answer.
    """
    setting = await asyncio.to_thread(read_setting, job.executable, env)
    config = job.run_dir / CONFIG
    config.write_text(compact(local_config(setting, job.run_dir, job.settings.cwd)), encoding="utf-8")
    added = local_environment(setting, config)
    argv = [job.executable, "config", "get", "plugins", "--json"]
    answer = await probe(argv, {**env, **added}, _ANSWER_LIMIT_S, _MOST_BYTES)
    check_plugin("" if answer.timed_out else answer.stdout)
    if job.session.resumes:
        argv = [job.executable, "sessions", "list", "--json", "--agent", _agent(job), "--limit", "all"]
        answer = await probe(argv, {**env, **added}, _ANSWER_LIMIT_S, _MOST_BYTES)
        check_session(job, "" if answer.timed_out else answer.stdout)
    return added


def check_plugin(plugins: str) -> None:
    """Check by ``openclaw config get plugins --json`` that the plugin will be loaded, and so can refuse.

    Raises:
        FailureError: it will not, or the answer is not JSON.
    """
    settings = parse_json_object(plugins.encode()) or {}
    allowed, denied = settings.get("allow"), settings.get("deny")
    is_allowed = not allowed or (isinstance(allowed, list) and PLUGIN_ID in allowed)
    if settings.get("enabled") is not True or not is_allowed or (isinstance(denied, list) and PLUGIN_ID in denied):
        message = (
            "OpenClaw would not load the adapter's plugin, so that tools could do anything. If openclaw.json has"
            f" plugins.allow, add `{PLUGIN_ID}` to it; plugins.deny must not hold it. Its answer: {plugins[:300]}"
        )
        raise FailureError(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="openclaw_plugin_missing"))


def check_session(job: Job, listing: str) -> None:
    """Look for the session to resume in the output of ``openclaw sessions list --json``.

    Raises:
        FailureError: it is not there, or the output is no list.
    """
    document = parse_json_object(listing.encode())
    if document is None or not isinstance(document.get("sessions"), list):
        message = "`openclaw sessions list` gave no list, so the session may not exist."
        raise FailureError(FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="openclaw_sessions_unknown"))
    if not any(read.text(item, "key") == session_key(job) for item in read.objects(document, "sessions")):
        message = f"OpenClaw knows no session {job.session.native_id} that was begun without a gateway."
        raise FailureError(FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="openclaw_session_unknown"))


class LocalReport(Report):
    """A report without a gateway: standard error has diagnostics then, not the reason of the end."""


class LocalParser:
    """Reads one attempt without a gateway: the document at the end, and the plugin's refusals."""

    def __init__(self, job: Job) -> None:
        self.report: Report = LocalReport()
        self._job = job
        self._lines: list[Line] = []
        self._byte_count = 0
        self._numbers = itertools.count(1)

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line. The document begins and ends with a brace at a line's begin; all else are diagnostics."""
        if stream != "stdout":
            return self._refused(line) or [log_event(stream, line)]
        outputs: list[Output] = []
        if line.data.startswith(b"{"):
            outputs += self._release()
        elif not self._lines:
            return [log_event(stream, line)]
        self._lines.append(line)
        self._byte_count += len(line.data)
        if self._byte_count > _MOST_BYTES:
            return [*outputs, *self._release()]
        if line.data.rstrip() == b"}" or (len(self._lines) == 1 and line.data.rstrip().endswith(b"}")):
            outputs += self._document()
        return outputs

    def finish(self) -> Iterable[Output]:
        """Take the end of all output; an incomplete document is logged."""
        return self._release()

    def _release(self) -> list[Output]:
        lines, self._lines, self._byte_count = self._lines, [], 0
        return [log_event("stdout", line) for line in lines]

    def _document(self) -> Iterable[Output]:
        result = parse_json_object(b"\n".join(line.data for line in self._lines))
        if result is None or not ("meta" in result or "error" in result):
            return self._release()
        self._lines, self._byte_count = [], 0
        self.report.has_output = True
        try:
            return list(self._ended(result))
        except RecursionError:  # nested so deeply that it can be read but not written
            return []

    def _ended(self, result: Fields) -> Iterator[Output]:
        if result.get("ok") is False:
            self._fail(read.text(read.inner(result, "error"), "message"))
            return
        report = self.report
        learn(report, result)
        yield plan.session_event(self._job, report)
        for number, words in enumerate(visible_texts(result) or [report.summary]):
            if words:
                yield pb.AgentEvent(text=pb.Text(item_id=f"answer-{number + 1}", whole=words))
        meta = read.inner(result, "meta")
        if read.inner(meta, "error") or meta.get("aborted") is True:
            self._fail(next(errors_of(result), ""))
        else:
            report.terminal = ending_of(meta)

    def _fail(self, message: str) -> None:
        self.report.terminal = Terminal(succeeded=False, failure=failure_of(message, {}))

    def _refused(self, line: Line) -> list[Output]:
        refusal = parse_json_object(line.data) or {}
        if read.text(refusal, "dragoman") != "refused":
            return []
        call_id = read.text(refusal, "call") or f"refused-{next(self._numbers)}"
        result = pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_DENIED, content=REFUSED, is_error=True)
        try:
            call = tool_call(call_id, read.text(refusal, "tool"), read.inner(refusal, "params"))
        except RecursionError:
            return []
        return [pb.AgentEvent(tool_call=call), pb.AgentEvent(tool_result=result)]


def _agent(job: Job) -> str:
    return as_string(job.config.get("agent"), "") or plan.DEFAULT_AGENT
