"""The fall-back without a gateway: ``openclaw agent --local``, a program for each run. Pure but for ``prepare``.

It says nothing until its one JSON document at the end, and asks nobody: what a tool may not do, the plugin refuses,
and tells in a line of its own on standard error.
"""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Final

from dragoman.adapters.openclaw import plan
from dragoman.adapters.openclaw.classify import failure_of
from dragoman.adapters.openclaw.parse import learn, refusals
from dragoman.adapters.openclaw.setting import (
    PLUGIN,
    RUNS,
    local_config,
    local_environment,
    read_setting,
    run_file,
)
from dragoman.adapters.openclaw.tools import tool_call
from dragoman.sdk import (
    FailureError,
    FailureInfo,
    Job,
    JsonValue,
    Line,
    Output,
    Plan,
    Report,
    Stream,
    Terminal,
    as_string,
    compact,
    log_event,
    parse_json_object,
    probe,
)
from dragoman.sdk import fields as read
from dragoman.sdk.fields import Fields
from dragoman.v1 import event_pb2 as pb

PLUGIN_ID: Final = "dragoman"
CONFIG: Final = "openclaw.json"
MESSAGE: Final = "message.txt"
REFUSED: Final = "The run may not do that, and nobody can be asked (transport: local)."
"""What the model is told of a tool that was refused."""

_ANSWER_LIMIT_S: Final = 180.0
_MOST_BYTES: Final = 32 * 1024 * 1024


def is_local(config: Mapping[str, JsonValue]) -> bool:
    """Tell whether ``transport`` is ``local``."""
    return as_string(config.get("transport"), "") == "local"


def session_key(job: Job, session_id: str = "") -> str:
    """Return what OpenClaw makes of ``--session-id``; of the attempt's own without an id."""
    return f"agent:{_agent(job)}:explicit:{session_id or plan.native_id(job)}"


def plan_local(job: Job) -> Plan:
    """Return how to run OpenClaw for a job without a gateway."""
    argv = [job.executable, "agent", "--local", "--json", "--agent", _agent(job), "--session-id", plan.native_id(job)]
    argv += ["--message-file", str(job.run_dir / MESSAGE), "--timeout", "0"]  # else it gives up after ten minutes
    if job.settings.model:
        argv += ["--model", job.settings.model]
    thinking = plan.thinking_level(job)
    if thinking:
        argv += ["--thinking", thinking]
    run: dict[str, JsonValue] = {"asks": False, "env": {}, "system": plan.system_text(job)}
    notices: list[tuple[str, str]] = []
    if not job.permissions.auto_approve:
        run["refuses"] = REFUSED
        message = "Tools that change or fetch anything are refused; nobody is asked (transport: local)."
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
    """Write the run's configuration; look for the session, as OpenClaw would begin an unknown one without a word.

    Raises:
        FailureError: there is no OpenClaw or no such session, or it would not load the plugin, or does not tell.
    """
    setting = await asyncio.to_thread(read_setting, job.executable, env)
    config = job.run_dir / CONFIG
    config.write_text(compact(local_config(setting, job.run_dir, job.settings.cwd)), encoding="utf-8")
    added = local_environment(setting, config)
    argv = [job.executable, "config", "get", "plugins", "--json"]
    told = await probe(argv, {**env, **added}, _ANSWER_LIMIT_S, _MOST_BYTES)
    check_plugin("" if told.timed_out else told.stdout)
    if job.session.resumes:
        argv = [job.executable, "sessions", "list", "--json", "--agent", _agent(job), "--limit", "all"]
        told = await probe(argv, {**env, **added}, _ANSWER_LIMIT_S, _MOST_BYTES)
        check_session(job, "" if told.timed_out else told.stdout)
    return added


def check_plugin(plugins: str) -> None:
    """Check by what ``openclaw config get plugins --json`` says that the plugin will be loaded, and so can refuse.

    Raises:
        FailureError: it will not, or that is no answer.
    """
    told = parse_json_object(plugins.encode()) or {}
    allowed, denied = told.get("allow"), told.get("deny")
    is_allowed = not allowed or (isinstance(allowed, list) and PLUGIN_ID in allowed)
    if told.get("enabled") is not True or not is_allowed or (isinstance(denied, list) and PLUGIN_ID in denied):
        message = (
            "OpenClaw would not load the adapter's plugin, so that tools could do anything. If openclaw.json has"
            f" plugins.allow, add `{PLUGIN_ID}` to it; plugins.deny must not hold it. It said: {plugins[:300]}"
        )
        raise FailureError(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="openclaw_plugin_missing"))


def check_session(job: Job, listing: str) -> None:
    """Look for the session to resume in what ``openclaw sessions list --json`` says.

    Raises:
        FailureError: it is not there, or that is no list.
    """
    document = parse_json_object(listing.encode())
    if document is None or not isinstance(document.get("sessions"), list):
        message = "`openclaw sessions list` gave no list, so that it is not known whether the session is there."
        raise FailureError(FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="openclaw_sessions_unknown"))
    if not any(read.text(item, "key") == session_key(job) for item in read.objects(document, "sessions")):
        message = f"OpenClaw knows no session {job.session.native_id} that was begun without a gateway."
        raise FailureError(FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="openclaw_session_unknown"))


class LocalReport(Report):
    """What was learned without a gateway: what stands on standard error are diagnostics then, and no last words."""


class LocalParser:
    """Understands one attempt without a gateway: the document at the end, and the plugin's refusals."""

    def __init__(self, job: Job) -> None:
        self.report: Report = LocalReport()
        self._job = job
        self._kept: list[Line] = []
        self._kept_bytes = 0
        self._numbers = itertools.count(1)

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line. The document begins and ends with a brace at a line's begin; all else are diagnostics."""
        if stream != "stdout":
            return self._refused(line) or [log_event(stream, line)]
        outputs: list[Output] = []
        if line.data.startswith(b"{"):
            outputs += self._let_go()
        elif not self._kept:
            return [log_event(stream, line)]
        self._kept.append(line)
        self._kept_bytes += len(line.data)
        if self._kept_bytes > _MOST_BYTES:
            return [*outputs, *self._let_go()]
        if line.data.rstrip() == b"}" or (len(self._kept) == 1 and line.data.rstrip().endswith(b"}")):
            outputs += self._document()
        return outputs

    def finish(self) -> Iterable[Output]:
        """Take the end of all output; a document that was cut says nothing that could be relied on."""
        return self._let_go()

    def _let_go(self) -> list[Output]:
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return [log_event("stdout", line) for line in kept]

    def _document(self) -> Iterable[Output]:
        told = parse_json_object(b"\n".join(line.data for line in self._kept))
        if told is None or not ("meta" in told or "error" in told):
            return self._let_go()
        self._kept, self._kept_bytes = [], 0
        self.report.has_output = True
        try:
            return list(self._ended(told))
        except RecursionError:  # nested so deeply that it can be read but not written
            return []

    def _ended(self, told: Fields) -> Iterator[Output]:
        if told.get("ok") is False:
            self._fail(read.text(read.inner(told, "error"), "message"))
            return
        report = self.report
        learn(report, told)
        report.session_id = plan.native_id(self._job)
        session = pb.Session(native_id=report.session_id, agent_version=self._job.version, model=report.model)
        session.skills.extend(skill.name for skill in self._job.skills)
        yield pb.AgentEvent(session=session)
        if report.summary:
            yield pb.AgentEvent(text=pb.Text(item_id="answer", whole=report.summary))
        meta = read.inner(told, "meta")
        if read.inner(meta, "error") or meta.get("aborted") is True:
            self._fail(next(refusals(told), ""))
        else:
            report.terminal = Terminal(succeeded=True, subtype=read.text(meta, "stopReason"))

    def _fail(self, message: str) -> None:
        self.report.terminal = Terminal(succeeded=False, failure=failure_of(message, {}))

    def _refused(self, line: Line) -> list[Output]:
        told = parse_json_object(line.data) or {}
        if read.text(told, "dragoman") != "refused":
            return []
        call_id = read.text(told, "call") or f"refused-{next(self._numbers)}"
        result = pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_DENIED, content=REFUSED, is_error=True)
        try:
            call = tool_call(call_id, read.text(told, "tool"), read.inner(told, "params"))
        except RecursionError:
            return []
        return [pb.AgentEvent(tool_call=call), pb.AgentEvent(tool_result=result)]


def _agent(job: Job) -> str:
    return as_string(job.config.get("agent"), "") or plan.DEFAULT_AGENT
