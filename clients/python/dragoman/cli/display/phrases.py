"""One event as lines for people: a table from body to function. Streamed bodies (text, output) are not here."""

import json
from collections.abc import Callable, Collection

from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.text import count, enum_label, one_line, sanitize, seconds, span
from dragoman.v1 import event_pb2 as pb

Line = list[Segment]
"""One line, without its newline."""

_SHOWN_PHASES = frozenset({pb.RUN_PHASE_QUEUED, pb.RUN_PHASE_RETRYING, pb.RUN_PHASE_WAITING_FOR_AUTH})
"""Phases that are shown without ``--debug``."""
_STARTING_PHASES = frozenset({pb.RUN_PHASE_STARTING, pb.RUN_PHASE_RUNNING})
"""Phases that are shown if they have a reason."""
_INPUT_KEYS = ("command", "file_path", "path", "pattern", "query", "url", "description", "prompt")
"""Keys that describe a tool's input best, in order of preference."""
_CONTENT_LINES = 8
_MARKS = {
    pb.TOOL_STATUS_COMPLETED: ("✓", Style.TOOL),
    pb.TOOL_STATUS_FAILED: ("✗", Style.ERROR),
    pb.TOOL_STATUS_DENIED: ("⊘", Style.ERROR),
    pb.TOOL_STATUS_CANCELLED: ("⊘", Style.TOOL),
    pb.TOOL_STATUS_TIMED_OUT: ("✗", Style.ERROR),
}
_PLAN_MARKS = {
    pb.PLAN_ENTRY_STATUS_IN_PROGRESS: "▸",
    pb.PLAN_ENTRY_STATUS_COMPLETED: "☑",
    pb.PLAN_ENTRY_STATUS_CANCELLED: "☒",
}
_NOTICE_STYLES = {pb.SEVERITY_WARNING: Style.STRONG, pb.SEVERITY_ERROR: Style.ERROR}


def _system(text: str) -> Line:
    return [Segment(text, Style.SYSTEM)]


def started(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show the adapter, the directory, and whether the session was resumed."""
    body = event.started
    attempt = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    version = f" {one_line(body.agent_version, 40)}" if body.agent_version else ""
    where = f" in {one_line(body.cwd, 400)}" if body.cwd else ""
    lines = [_system(f"▶ {one_line(body.adapter, 80)}{version}{where}{attempt}")]
    if body.session_disposition == pb.SESSION_DISPOSITION_RESUME:
        lines.append(_system(f"  resumes session {one_line(body.native_session_id)}"))
    elif body.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED:
        lines.append(_system(f"  new session: {one_line(body.session_reason, 400)}"))
    elif body.session_disposition == pb.SESSION_DISPOSITION_FORK:
        lines.append(_system(f"  copy of session {one_line(body.native_session_id)}"))
    if debug:
        if body.command:
            own = 1 if body.argv[:1] == [body.command] else 0
            argv = " ".join(json.dumps(part) for part in body.argv[own:])
            lines.append([Segment(f"  {one_line(f'{body.command} {argv}', 2000)}", Style.FAINT)])
        lines.extend([Segment(f"  {one_line(note, 400)}", Style.FAINT)] for note in body.notes)
    return lines


def state(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show the phase of the run."""
    body = event.state
    waits = body.phase in _STARTING_PHASES and body.reason
    if body.phase not in _SHOWN_PHASES and not waits and not debug:
        return []
    text = enum_label(pb.RunPhase.DESCRIPTOR, body.phase, "RUN_PHASE_")
    if body.HasField("pid"):
        text += f" (pid {body.pid})"
    if body.HasField("retry_attempt"):
        most = f" of {body.max_retries}" if body.HasField("max_retries") else ""
        text += f", try {body.retry_attempt}{most}"
    if body.HasField("retry_delay"):
        text += f", in {span(body.retry_delay)}"
    if body.reason:
        text += f": {one_line(body.reason, 400)}"
    return [_system(f"… {text}")]


def session(event: pb.AgentEvent, debug: bool, shown: Collection[str] = ()) -> tuple[list[Line], list[str]]:
    """Show the session and the model, except what was shown before; return the lines, and the parts in them."""
    body = event.session
    parts = [f"session {one_line(body.display_id or body.native_id)}"] if body.display_id or body.native_id else []
    if body.model:
        parts.append(f"model {one_line(body.model)}")
    if body.mode and debug:
        parts.append(f"mode {one_line(body.mode)}")
    if debug:
        parts.extend(
            f"{len(names)} {what}" for what, names in (("tools", body.tools), ("skills", body.skills)) if names
        )
        parts.extend(f"mcp {one_line(server.name)}: {one_line(server.status)}" for server in body.mcp_servers)
    news = [part for part in parts if part not in shown]
    return ([_system(f"  {' · '.join(news)}")] if news else []), news


def message(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show a message of the conversation that is not the agent's own."""
    who = enum_label(pb.MessageRole.DESCRIPTOR, event.message.role, "MESSAGE_ROLE_")
    return [_system(f"{who}: {one_line(event.message.text, 2000 if debug else 200)}")]


def tool_result(event: pb.AgentEvent, debug: bool, *, name: str = "", streamed: bool = False) -> list[Line]:
    """Show how a tool call ended, and its output unless that was streamed.

    Args:
        event: the event.
        debug: show all of it.
        name: the tool's name, if it is known.
        streamed: whether the output was shown while the tool ran.
    """
    body = event.tool_result
    mark, style = _MARKS.get(body.status, ("·", Style.TOOL))
    if body.is_error and body.status == pb.TOOL_STATUS_COMPLETED:
        mark, style = "✗", Style.ERROR
    facts = []
    if body.status not in {pb.TOOL_STATUS_COMPLETED, pb.TOOL_STATUS_UNSPECIFIED}:
        facts.append(enum_label(pb.ToolStatus.DESCRIPTOR, body.status, "TOOL_STATUS_"))
    if body.HasField("exit_code"):
        facts.append(f"exit code {body.exit_code}")
    if body.HasField("duration"):
        facts.append(span(body.duration))
    lines = [
        [Segment(" ".join([f"  {mark}", *([name] if name else []), *([", ".join(facts)] if facts else [])]), style)]
    ]
    if body.content and (debug or not streamed):
        lines.extend(_indented(body.content, style, None if debug else _CONTENT_LINES))
    return lines


def _indented(text: str, style: Style, limit: int | None) -> list[Line]:
    rows = sanitize(text.rstrip("\n")).split("\n")
    shown = rows if limit is None or len(rows) <= limit + 1 else rows[:limit]
    lines = [[Segment(f"  │ {row if limit is None else row[:400]}", style)] for row in shown]
    if len(shown) < len(rows):
        lines.append([Segment(f"  │ … {count(len(rows) - len(shown))} more lines", style)])
    return lines


def tool_subject(call: pb.ToolCall, limit: int) -> str:
    """Return a summary of a tool call's input, on one line; empty if it is not yet known."""
    if call.title:
        title = one_line(call.title, limit)
        return title.removeprefix(call.name).strip(" :") if call.name else title
    if not call.input_json:
        return ""
    return one_line(_best_value(call.input_json) or call.input_json, limit)


def _best_value(input_json: str) -> str:
    try:
        value = json.loads(input_json)
    except ValueError:
        return ""
    if isinstance(value, dict):
        for key in _INPUT_KEYS:
            if isinstance(value.get(key), str) and value[key]:
                return str(value[key])
    return ""


def file_change(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show the changed file and its diff, cut if it is long."""
    body = event.file_change
    what = f"{enum_label(pb.FileOperation.DESCRIPTOR, body.operation, 'FILE_OPERATION_')} " if body.operation else ""
    old = f"{one_line(body.old_path, 400)} → " if body.old_path else ""
    lines = [[Segment(f"  ± {what}{old}{one_line(body.path, 400)}", Style.TOOL)]]
    if body.diff:
        lines.extend(_indented(body.diff, Style.FAINT, None if debug else _CONTENT_LINES))
    return lines


def artifact(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show the name and size of what the agent leaves."""
    body = event.artifact
    kind = f", {one_line(body.media_type, 80)}" if debug and body.media_type else ""
    return [[Segment(f"  + artifact {one_line(body.name, 400)} ({count(body.size)} bytes{kind})", Style.TOOL)]]


def plan(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show the whole plan."""
    entries = event.plan.entries
    return [
        _system("plan"),
        *(
            _system(f"  {_PLAN_MARKS.get(entry.status, '☐')} {one_line(entry.content, 2000 if debug else 160)}")
            for entry in entries
        ),
    ]


def subagent(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show the status of a subagent."""
    body = event.subagent
    if body.status == pb.SUBAGENT_STATUS_RUNNING and not debug:
        return []
    status = enum_label(pb.SubagentStatus.DESCRIPTOR, body.status, "SUBAGENT_STATUS_")
    what = f": {one_line(body.description)}" if body.description else ""
    return [_system(f"  ⤷ {one_line(body.type or body.id)} {status}{what}")]


def compaction(event: pb.AgentEvent, _debug: bool) -> list[Line]:
    """Show that the agent compacted its context."""
    body = event.compaction
    if not body.finished:
        return [_system("… compacting the context")]
    before = count(body.tokens_before) if body.HasField("tokens_before") else "?"
    after = count(body.tokens_after) if body.HasField("tokens_after") else "?"
    return [_system(f"… context compacted from {before} to {after} tokens")]


def input_request(event: pb.AgentEvent, _debug: bool) -> list[Line]:
    """Show an input request and its options."""
    body = event.input_request
    lines = [[Segment(f"? {one_line(body.title, 400)}", Style.STRONG)]]
    lines.extend([Segment(f"  {row[:400]}")] for row in sanitize(body.description).split("\n") if row.strip())
    subject = body.subject
    facts = [subject.command, *subject.paths, subject.host, subject.reason]
    lines.extend([Segment(f"  {one_line(fact, 2000)}", Style.TOOL)] for fact in facts if fact)
    if body.editable_input_json and not subject.command:
        lines.append([Segment(f"  {one_line(body.editable_input_json, 2000)}", Style.TOOL)])
    for number, option in enumerate(body.options, 1):
        line = [Segment(f"  {number}) {one_line(option.label or option.id)}", Style.STRONG)]
        if option.description:
            line.append(Segment(f"  {one_line(option.description, 400)}", Style.FAINT))
        lines.append(line)
    return lines


def input_resolved(event: pb.AgentEvent, _debug: bool) -> list[Line]:
    """Show how an input request ended."""
    body = event.input_resolved
    how = enum_label(pb.InputResolution.DESCRIPTOR, body.resolution, "INPUT_RESOLUTION_")
    answer = ", ".join(one_line(option) for option in body.answer.option_ids) or one_line(body.answer.text)
    who = f" by {one_line(body.responder)}" if body.responder else ""
    return [_system(f"  {how}{who}{f': {answer}' if answer else ''}")]


def input_accepted(event: pb.AgentEvent, _debug: bool) -> list[Line]:
    """Show that an input was accepted; once the agent takes it, it is shown as a message."""
    body = event.input_accepted
    when = "for this turn" if body.mode == pb.INPUT_MODE_STEER else "for the next turn"
    who = f" from {one_line(body.sender)}" if body.sender else ""
    files = f" (with {', '.join(map(one_line, body.attachments))})" if body.attachments else ""
    return [_system(f"+ input{who} {when}: {one_line(body.text, 400)}{files}")]


def input_dropped(event: pb.AgentEvent, _debug: bool) -> list[Line]:
    """Show that the agent will not take an input."""
    body = event.input_dropped
    why = one_line(body.message, 400) or one_line(body.reason)
    return [[Segment(f"! warning: the input {one_line(body.input_id)} was dropped: {why}", Style.STRONG)]]


def run_updated(event: pb.AgentEvent, _debug: bool) -> list[Line]:
    """Show what has changed of the run."""
    body = event.run_updated
    who = f" by {one_line(body.sender)}" if body.sender else ""
    what = f"permission mode: {one_line(body.permission_mode)}" if body.permission_mode else ""
    return [_system(f"+ changed{who}: {what or f'model: {one_line(body.model)}'}")]


def usage(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show tokens, with ``--debug``; the totals are in the summary line."""
    if not debug:
        return []
    tokens = event.usage.tokens
    scope = enum_label(pb.UsageScope.DESCRIPTOR, event.usage.scope, "USAGE_SCOPE_")
    return [[Segment(f"  usage of this {scope}: {count(tokens.input)} in / {count(tokens.output)} out", Style.FAINT)]]


def notice(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show a notice."""
    body = event.notice
    style = _NOTICE_STYLES.get(body.severity, Style.SYSTEM)
    severity = "" if style is Style.SYSTEM else f"{enum_label(pb.Severity.DESCRIPTOR, body.severity, 'SEVERITY_')}: "
    code = f" [{one_line(body.code)}]" if debug and body.code else ""
    lines = [[Segment(f"! {severity}{one_line(body.message, 600)}{code}", style)]]
    if body.hint:
        lines.append([Segment(f"  {one_line(body.hint, 600)}", style)])
    return lines


def attempt_ended(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show why another attempt starts."""
    body = event.attempt_ended
    following = f" with {one_line(body.next_adapter)}" if body.next_adapter else ""
    lines = [_system(f"… trying again{following}: {one_line(body.reason, 400)}")]
    return [*failure(body.failure, debug), *lines]


def failure(body: pb.Failure, debug: bool) -> list[Line]:
    """Show a failure and what to do."""
    kind = enum_label(pb.FailureKind.DESCRIPTOR, body.kind, "FAILURE_KIND_")
    lines = [[Segment(f"✗ {one_line(body.message, 1000) or kind} ({kind})", Style.ERROR)]]
    errors = body.errors if debug else body.errors[:3]
    lines.extend([Segment(f"  {one_line(error, 400)}", Style.ERROR)] for error in errors if error != body.message)
    if body.login_url:
        lines.append([Segment(f"  log in at {one_line(body.login_url, 400)}", Style.STRONG)])
    if body.HasField("retry_not_before"):
        when = body.retry_not_before.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")
        lines.append([Segment(f"  retry after {when}", Style.ERROR)])
    return lines


def gap(event: pb.AgentEvent, _debug: bool) -> list[Line]:
    """Show which events are missing."""
    body = event.gap
    why = enum_label(pb.GapReason.DESCRIPTOR, body.reason, "GAP_REASON_")
    return [[Segment(f"… events {body.from_sequence} to {body.to_sequence} are missing ({why})", Style.ERROR)]]


def heartbeat(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show that the run is alive, with ``--debug``."""
    idle = event.heartbeat.idle.ToNanoseconds() / 1e9
    return [[Segment(f"… silent for {seconds(idle)}", Style.FAINT)]] if debug else []


def result(event: pb.AgentEvent, debug: bool) -> list[Line]:
    """Show a failure and open questions. The summary line is made by `dragoman.cli.display.summary`."""
    body = event.result
    lines = failure(body.failure, debug) if body.HasField("failure") else []
    if body.signal:
        lines.append([Segment(f"  ended by {one_line(body.signal)}", Style.ERROR)])
    elif body.exit_code and body.outcome != pb.OUTCOME_SUCCEEDED:
        lines.append([Segment(f"  exit code {body.exit_code}", Style.ERROR)])
    if body.fallback_candidates:
        names = ", ".join(one_line(name, 60) for name in body.fallback_candidates[:8])
        lines.append([Segment(f"  available for fallback: {names}", Style.STRONG)])
    if body.HasField("question"):
        lines.append([Segment(f"? {one_line(body.question.prompt, 1000)}", Style.STRONG)])
        lines.extend([Segment(f"  - {one_line(choice, 400)}", Style.STRONG)] for choice in body.question.choices)
    return lines


def _nothing(_event: pb.AgentEvent, _debug: bool) -> list[Line]:
    return []


Phrase = Callable[[pb.AgentEvent, bool], list[Line]]
"""Makes the lines of an event; the second argument asks for everything."""

PHRASES: dict[str, Phrase] = {
    "started": started,
    "state": state,
    "message": message,
    "tool_result": tool_result,
    "file_change": file_change,
    "artifact": artifact,
    "plan": plan,
    "subagent": subagent,
    "compaction": compaction,
    "input_request": input_request,
    "input_resolved": input_resolved,
    "input_accepted": input_accepted,
    "input_dropped": input_dropped,
    "run_updated": run_updated,
    "usage": usage,
    "notice": notice,
    "attempt_ended": attempt_ended,
    "gap": gap,
    "heartbeat": heartbeat,
    "replay_done": _nothing,
    "result": result,
}
"""By the event's body."""
