"""One broken adapter per rule: what breaks it, as small as possible, so that no other rule breaks with it."""

import asyncio
import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.protocol.errors import DragomanError, FieldViolation, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import unknown_fields
from grpc_health.v1 import health_pb2

from tests.conformance.proxy import Break, Call, Events

SECRET = "k7Qz-9fRw2-conformance-Xy31"
LONGER_THAN_PATIENCE_S = 7.0


def error(reason: Reason, *paths: str, **metadata: str) -> DragomanError:
    violations = tuple(FieldViolation(path, "broken") for path in paths)
    return DragomanError(reason, "broken on purpose", metadata, violations)


def reason(old: Reason, new: Reason, *, method: str = "", found: Callable[[Call], object] = lambda _: True) -> Break:
    """Return a break that gives another reason."""

    def status(call: Call, came: DragomanError) -> DragomanError:
        is_it = came.reason is old and call.method == (method or call.method) and found(call)
        return error(new, **came.metadata) if is_it else came

    return Break(status=status)


def no_field(path: str, found: Callable[[Call], object] = lambda _: True) -> Break:
    """Return a break that leaves the field out of BadRequest."""

    def status(call: Call, came: DragomanError) -> DragomanError:
        is_it = any(item.path.startswith(path) for item in came.violations) and found(call)
        return error(came.reason or Reason.INTERNAL) if is_it else came

    return Break(status=status)


def answer(method: str, change: Callable[[Call, Any], object]) -> Break:
    """Return a break of a unary response."""
    return Break(answer=lambda call, came: change(call, came) if call.method == method else None)


def request(change: Callable[[api.ExecuteRequest], object], steps: str = "") -> Break:
    """Return a break of what reaches the adapter."""

    def changed(call: Call) -> None:
        if call.method == "Execute" and steps in call.script:
            change(call.request)

    return Break(request=changed)


def ignored(field: str) -> Break:
    """Return a break that ignores a field."""
    return request(lambda execute: execute.ClearField(field))  # type: ignore[arg-type] # a literal in the stubs


def not_received(field: str) -> Break:
    """Return a break that does not hand on what an agent is to receive."""
    return request(lambda execute: execute.ClearField(field), "received=")  # type: ignore[arg-type] # as above


def _elsewhere(execute: api.ExecuteRequest) -> None:
    execute.workspace.cwd = str(Path(execute.workspace.cwd).parent)


def rejected(found: Callable[[Call], object], why: Reason = Reason.NOT_SUPPORTED) -> Break:
    """Return a break that rejects calls."""

    def changed(call: Call) -> None:
        if found(call):
            raise error(why)

    return Break(request=changed)


def event(steps: str, kind: str, change: Callable[[pb.AgentEvent], object], method: str = "") -> Break:
    """Return a break of the events of a kind in runs with certain steps."""

    def changed(call: Call, came: pb.AgentEvent) -> None:
        if steps in call.script and came.WhichOneof("body") == kind and call.method == (method or call.method):
            change(came)

    return Break(event=changed)


def text(steps: str, old: str, new: str, method: str = "", found: Callable[[Call], object] = lambda _: True) -> Break:
    """Return a break that replaces words in texts."""

    def changed(call: Call, came: pb.AgentEvent) -> None:
        if steps in call.script and call.method == (method or call.method) and found(call):
            if old in came.text.whole:
                came.text.whole = came.text.whole.replace(old, new)
            elif old in came.text.delta:
                came.text.delta = came.text.delta.replace(old, new)
            elif old in came.log.text:
                came.log.text = came.log.text.replace(old, new)

    return Break(event=changed)


WELL = "say=all is well"
"""The steps of a run of which no check looks at more than its text and outcome; all rules of streams see it."""


def replace_state(body: str, value: Any) -> Break:
    """Return a break that replaces the first state of a run by another body, under the same sequence."""

    def changed(call: Call, came: pb.AgentEvent) -> None:
        is_first = came.HasField("state") and came.sequence == 2
        if call.script == WELL and is_first:
            getattr(came, body).CopyFrom(value)

    return Break(event=changed)


async def _twice(call: Call, events: Events) -> Events:
    async for came in events:
        yield came
        if came.HasField("result") and call.script == WELL:
            again = pb.AgentEvent()
            again.CopyFrom(came)
            again.sequence += 1
            yield again


async def _with_hole(call: Call, events: Events) -> Events:
    async for came in events:
        if not (call.script == WELL and came.sequence == 2):
            yield came


async def _with_ephemeral(call: Call, events: Events) -> Events:
    async for came in events:
        yield came
        if came.sequence == 2 and call.script == WELL:
            usage = pb.AgentEvent(run_id=came.run_id, attempt=1)
            usage.usage.context_used = 1
            yield usage


async def _late(call: Call, events: Events) -> Events:
    kept = []
    async for came in events:
        kept.append(came)
        if came.HasField("result") or "before the gate" not in call.script:
            while kept:
                yield kept.pop(0)


async def _delayed(call: Call, events: Events) -> Events:
    async for came in events:
        if came.HasField("result") and "child" in call.script.split("\n"):
            await asyncio.sleep(LONGER_THAN_PATIENCE_S)
        yield came


async def _in_batches(call: Call, events: Events) -> Events:
    async for came in events:
        if came.HasField("text") and "flood=20" in call.script and not call.request.HasField("batching"):
            yield pb.AgentEvent(sequence=came.sequence, batch=pb.Batch(events=[came]))
        else:
            yield came


async def _wrong_batches(call: Call, events: Events) -> Events:
    del call
    async for came in events:
        if came.HasField("batch"):
            came.sequence += 1
        yield came


async def _without_heartbeat(call: Call, events: Events) -> Events:
    del call
    async for came in events:
        if not came.HasField("heartbeat"):
            yield came


async def _without_pending(call: Call, events: Events) -> Events:
    async for came in events:
        if not (call.method == "Attach" and came.HasField("input_request") and not came.sequence):
            yield came


async def _failing_call(call: Call, events: Events) -> Events:
    async for came in events:
        if came.HasField("result") and "fail=" in call.script:
            raise error(Reason.RUN_NOT_FOUND)
        yield came


def _health(service: str, status: int) -> Break:
    def raw(method: str, data: bytes) -> bytes | None:
        asked = health_pb2.HealthCheckRequest.FromString(data) if method.endswith("/Check") else None
        if asked is None or asked.service != service:
            return None
        return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())

    return Break(raw=raw)


def _no_reflection(method: str, data: bytes) -> DragomanError | None:
    del data
    return error(Reason.NOT_IMPLEMENTED) if "reflection" in method else None


def _new_instance(call: Call, came: api.DescribeResponse) -> None:
    if call.proxy.count("describe"):
        came.instance_id += "-another"


def _wrong_type() -> Break:
    """Give everything another type, so that it fits together."""
    wrong = "Wrong-Type"

    def changed(call: Call, came: Any) -> None:
        if call.method == "Describe":
            came.adapter = wrong
        elif call.method == "Detect":
            came.detections[0].adapter = wrong

    return Break(
        answer=changed, event=event("", "started", lambda came: setattr(came.started, "adapter", wrong)).event
    )


def _second_run(steps: str) -> Callable[[Call], None]:
    def changed(call: Call) -> None:
        if call.method == "Execute" and call.script.startswith(steps) and call.proxy.count(call.request.run_id):
            call.request.run_id += "-again"

    return changed


def _reject_second(call: Call) -> None:
    is_again = call.method == "Execute" and call.script == "say=once" and "Another" not in call.request.prompt
    if is_again and call.proxy.count(call.request.run_id):
        raise error(Reason.SESSION_BUSY)


def _another_id(call: Call) -> None:
    if call.method == "Execute" and call.request.prompt.endswith("Another prompt."):
        call.request.run_id += "-another"


async def _cancel_upstream(call: Call) -> None:
    cancel = call.proxy.channel.unary_unary(
        "/dragoman.v1.AdapterService/Cancel", api.CancelRequest.SerializeToString, api.CancelResponse.FromString
    )
    await cancel(api.CancelRequest(run_id=call.request.run_id))


def _cancelled_if(*, has_deadline: bool) -> Break:
    async def gone(call: Call) -> None:
        is_it = call.method == "Execute" and "afterwards" in call.script
        if is_it and (call.time_remaining_s is not None) is has_deadline:
            await _cancel_upstream(call)

    return Break(gone=gone)


def _repeated_cancel(call: Call, came: api.CancelResponse) -> None:
    if call.proxy.count(("cancel", call.request.run_id)):
        came.result_sequence += 1


def _wrong_outcome(call: Call, came: api.CancelResponse) -> None:
    del call
    if came.outcome == pb.OUTCOME_SUCCEEDED:
        came.outcome = pb.OUTCOME_CANCELLED


def _unconfirmed() -> Break:
    return Break(
        event=event("", "result", lambda came: setattr(came.result, "tree_confirmed_dead", False)).event,
        answer=lambda _, came: (
            setattr(came, "tree_confirmed_dead", False) if isinstance(came, api.CancelResponse) else None
        ),
    )


def _slow_cancel(*, with_zero: bool) -> Break:
    async def before(call: Call) -> None:
        if call.method != "Cancel" or "deaf" not in call.script:
            return
        if call.request.grace.seconds:
            call.proxy.count(("patient", call.request.run_id))
        is_later = bool(call.proxy.counts.get(("patient", call.request.run_id)))
        if is_later is with_zero:
            await asyncio.sleep(LONGER_THAN_PATIENCE_S)

    return Break(before=before)


def _not_idempotent(call: Call, came: api.RespondResponse) -> None:
    del came
    if call.method == "Respond" and call.proxy.count(("respond", call.request.request_id, call.request.run_id)):
        raise error(Reason.RUN_FINISHED)


def _count_send(call: Call) -> None:
    if call.method == "Send":
        call.proxy.count(("send", call.request.run_id))


def _unsettled(call: Call, came: pb.AgentEvent) -> None:
    """Lose the input that was sent again: no other check looks at what becomes of it."""
    if came.message.input_id and call.proxy.counts.get(("send", came.run_id), 0) > 1:
        came.message.ClearField("input_id")


def _interactive(execute: api.ExecuteRequest) -> None:
    if not execute.permissions.interactive:
        execute.permissions.interactive = True
        execute.permissions.request_timeout.FromMilliseconds(300)


def _unredacted(steps: str) -> Break:
    return text(steps, "[redacted]", SECRET)


def _secret_in_started() -> Break:
    return event("", "started", lambda came: came.started.env.update({"LEAK": SECRET}))


def _no_id_status(changed: DragomanError) -> Break:
    """Change the status of one call that no check but those of statuses looks at."""

    def status(call: Call, came: DragomanError) -> DragomanError:
        return changed if getattr(call.request, "run_id", "") == "also not an id" else came

    return Break(status=status)


def _too_large(call: Call, came: DragomanError) -> DragomanError:
    return error(Reason.INVALID_REQUEST) if came.reason is Reason.MESSAGE_TOO_LARGE else came


def _prompt_as_template(execute: api.ExecuteRequest) -> None:
    if execute.prompt_template:
        execute.prompt = execute.prompt_template


def _undeclared(execute: api.ExecuteRequest, *, is_later: bool) -> None:
    kept = [value for value in execute.required_capabilities if (value > 1000) is not is_later]
    if len(execute.required_capabilities) == 1:
        execute.ClearField("required_capabilities")
        execute.required_capabilities.extend(kept)


def _without_relay(call: Call) -> None:
    """Join the attempt that has ended, as a request without relay does."""
    if call.method == "Execute" and call.request.relay.first_attempt == 2:
        call.request.ClearField("relay")


def _another_session(call: Call, came: pb.AgentEvent) -> None:
    is_resumed = call.method == "Execute" and call.script.startswith("session=") and call.request.HasField("session")
    if is_resumed and came.result.session.handle.native_id:
        came.result.session.handle.native_id += "-another"


def _fitting(execute: api.ExecuteRequest) -> None:
    if execute.session.handle.adapter == "conformance_no_such_adapter":
        execute.session.handle.adapter = execute.adapter


def _after_others(call: Call) -> bool:
    is_known = call.method == "Attach" and call.request.run_id in call.proxy.results
    return is_known and sum(script == "say=later" for script in call.proxy.scripts.values()) > 7


def _has_unknown(call: Call) -> bool:
    return call.method == "Execute" and len(unknown_fields.UnknownFieldSet(call.request)) > 0


def _is_execute(found: Callable[[api.ExecuteRequest], object]) -> Callable[[Call], object]:
    return lambda call: call.method == "Execute" and found(call.request)


def _at_end(call: Call) -> bool:
    last = call.proxy.results.get(call.request.run_id) if call.method == "Attach" else None
    return last is not None and call.request.after_sequence == last.sequence


def _no_cursor(call: Call, came: DragomanError) -> DragomanError:
    return error(Reason.SEQUENCE_AHEAD) if came.reason is Reason.SEQUENCE_AHEAD else came


def _show_prompt(call: Call, came: pb.AgentEvent) -> None:
    is_it = call.method == "Execute" and "prompt-" in call.request.prompt
    if is_it and came.HasField("started"):
        came.started.argv.append(call.request.prompt)


def _still_locked(call: Call, came: api.CancelResponse) -> None:
    """Hold the lock of the agent that was stopped."""
    del came
    path = call.script.partition("hold=")[2].partition("\n")[0]
    if path:
        call.proxy.files.append(open(path, "w", encoding="utf-8"))  # noqa: SIM115 - closed with the proxy
        fcntl.flock(call.proxy.files[-1], fcntl.LOCK_EX)


async def _silent(call: Call, events: Events) -> Events:
    """Hold everything back until the agent says something."""
    kept = []
    has_words = call.method != "Execute"
    async for came in events:
        kept.append(came)
        has_words = has_words or came.WhichOneof("body") in {"text", "log", "tool_call", "input_request", "result"}
        while has_words and kept:
            yield kept.pop(0)


def _with_zero(came: pb.AgentEvent) -> None:
    """Report zero where nothing was reported."""
    came.result.usage.tokens.output = came.result.usage.tokens.output


OPEN_REQUEST = pb.InputRequest(id="open", kind=pb.INPUT_KIND_TEXT, title="?")

BREAKS: dict[str, Break] = {
    "server.health": _health("dragoman.v1.AdapterService", health_pb2.HealthCheckResponse.NOT_SERVING),
    "server.health-unknown": _health("conformance.NoSuchService", health_pb2.HealthCheckResponse.SERVING),
    "server.reflection": Break(raw=_no_reflection),
    "server.unknown-adapter": reason(Reason.ADAPTER_NOT_FOUND, Reason.ADAPTER_REQUIRED),
    "describe.type": _wrong_type(),
    "describe.revision": answer("Describe", lambda _, came: came.ClearField("revision")),
    "describe.aliases": rejected(lambda call: call.method == "Describe" and "local" in call.request.adapter),
    "describe.instance-id": answer("Describe", _new_instance),
    "describe.config-schema": answer("Describe", lambda _, came: setattr(came, "config_schema_json", "[]")),
    "describe.bounds": answer("Describe", lambda _, came: setattr(came, "label", "x" * 300)),
    "detect.data": answer("Detect", lambda _, came: came.detections[0].ClearField("detected_at")),
    "models.answer": rejected(lambda call: call.method == "ListModels", Reason.RUN_NOT_FOUND),
    "quota.answer": answer("GetQuota", lambda _, came: setattr(came.windows[0], "used_percent", 4200)),
    "login.steps": rejected(lambda call: call.method == "Login", Reason.RUN_NOT_FOUND),
    "skills.answer": rejected(lambda call: call.method == "ListSkills", Reason.RUN_NOT_FOUND),
    "skills.sync": rejected(lambda call: call.method == "SyncSkills", Reason.RUN_NOT_FOUND),
    "request.run-id": no_field("run_id", lambda call: call.request.run_id == "not an id"),
    "request.cwd-relative": no_field("workspace.cwd", lambda call: call.request.workspace.cwd == "relative"),
    "request.cwd-missing": no_field("workspace.cwd", lambda call: call.request.workspace.cwd != "relative"),
    "request.config-key": no_field("config"),
    "request.bounds": no_field("labels"),
    "request.too-large": Break(status=_too_large),
    "request.large": rejected(_is_execute(lambda execute: 10 << 20 < execute.ByteSize() <= 16 << 20)),
    "request.unknown-field": rejected(_has_unknown),
    "request.unknown-feature": request(lambda execute: _undeclared(execute, is_later=True)),
    "request.capability-missing": request(lambda execute: _undeclared(execute, is_later=False)),
    "request.capability-declared": rejected(_is_execute(lambda execute: len(execute.required_capabilities) > 1)),
    "request.relay": request(
        lambda execute: execute.relay.ClearField("first_sequence") if execute.relay.first_sequence == 100 else 0
    ),
    "request.next-attempt": Break(request=_without_relay),
    "request.template": request(_prompt_as_template),
    "unsupported.model": ignored("model"),
    "unsupported.system-prompt": ignored("system_prompt"),
    "unsupported.instructions": ignored("instructions"),
    "unsupported.skills": ignored("skills"),
    "unsupported.login": reason(Reason.NOT_IMPLEMENTED, Reason.NOT_SUPPORTED, method="Login"),
    "unsupported.quota": reason(Reason.NOT_IMPLEMENTED, Reason.NOT_SUPPORTED, method="GetQuota"),
    "unsupported.session": request(
        lambda execute: (
            execute.ClearField("session") if execute.session.HasField("handle") and not execute.session.fork else 0
        )
    ),
    "unsupported.fork": request(lambda execute: execute.session.ClearField("fork")),
    "unsupported.permissions": ignored("permissions"),
    "unsupported.mcp-servers": ignored("mcp_servers"),
    "unsupported.changes": ignored("track_changes"),
    "changes.files": answer("GetChanges", lambda _, came: came.ClearField("files")),
    "changes.untracked": reason(Reason.CHANGES_UNKNOWN, Reason.RUN_FINISHED),
    "unsupported.router-fields": ignored("admission"),
    "run.succeeds": text(WELL, "all is well", "nothing"),
    "run.id-header": Break(header="never"),
    "run.id-assigned": rejected(_is_execute(lambda execute: not execute.run_id)),
    "run.early-header": Break(header="late", events=_silent),
    "run.rejected-has-no-id": Break(header="at once"),
    "run.failure-is-data": Break(events=_failing_call),
    "run.one-result": Break(events=_twice),
    "run.failure-reason": event("fail=", "result", lambda came: came.result.failure.ClearField("message")),
    "run.started": event("", "started", lambda came: came.started.ClearField("cwd")),
    "run.started-no-prompt": Break(event=_show_prompt),
    "run.progressive": Break(events=_late),
    "run.same-request-joins": Break(request=_second_run("touch=")),
    "run.same-request-after-end": Break(request=_reject_second),
    "run.id-reused": Break(request=_another_id),
    "run.orphan": request(lambda execute: execute.orphan_after.FromSeconds(20), "hold="),
    "run.survives-client": _cancelled_if(has_deadline=False),
    "run.survives-deadline": _cancelled_if(has_deadline=True),
    "run.survives-connection": text(
        "wait=", "afterwards", "", "Attach", lambda call: call.request.after_sequence > 3
    ),
    "run.concurrent": text("say=run 0", "run 0", "run 0, run 1"),
    "run.unheld-output": text(
        "flood=5000", "the end", "", "Attach", lambda call: call.script.startswith("say=ready\nwait=")
    ),
    "session.resumes": Break(event=_another_session),
    "session.forks": request(lambda execute: execute.session.ClearField("fork"), "session="),
    "session.unfit": request(_fitting),
    "session.lost": event("lost", "started", lambda came: came.started.ClearField("session_reason")),
    "events.order": event(WELL, "started", lambda came: came.notice.CopyFrom(pb.Notice(code="broken"))),
    "events.dense": Break(events=_with_hole),
    "events.ephemeral": Break(events=_with_ephemeral),
    "events.offsets": event(
        WELL, "text", lambda came: came.text.CopyFrom(pb.Text(item_id="x", offset=5, delta="all is well"))
    ),
    "events.run-id": event(WELL, "text", lambda came: setattr(came, "run_id", "another")),
    "events.attempt": event(WELL, "text", lambda came: setattr(came, "attempt", 7)),
    "events.time": event(WELL, "text", lambda came: came.ClearField("time")),
    "events.size": text(WELL, "well", "well" + "x" * (1 << 20)),
    "events.origin": event(WELL, "text", lambda came: setattr(came, "origin", pb.EVENT_ORIGIN_ADAPTER)),
    "events.heartbeat": Break(events=_without_heartbeat),
    "events.tool-results": event(
        "tool=", "tool_result", lambda came: setattr(came.tool_result, "tool_call_id", "another")
    ),
    "events.input-resolved": replace_state("input_request", OPEN_REQUEST),
    "tools.results": event("tool=", "tool_result", lambda came: came.log.CopyFrom(pb.Log(text="done"))),
    "usage.reported": event("usage=11,7", "result", lambda came: setattr(came.result.usage.tokens, "input", 12)),
    "usage.absent": event("usage=11,", "result", _with_zero),
    "batching.declared": rejected(_is_execute(lambda execute: execute.HasField("batching"))),
    "batching.form": Break(events=_wrong_batches),
    "batching.off": Break(events=_in_batches),
    "batching.attach": text("flood=20", "0", "1", "Attach"),
    "attach.replay": text("say=one", "one", "two", "Attach", lambda call: call.request.after_sequence == 2),
    "attach.retention": rejected(_after_others, Reason.RUN_NOT_FOUND),
    "attach.at-end": rejected(_at_end, Reason.RUN_NOT_FOUND),
    "attach.ahead": Break(status=_no_cursor),
    "attach.unknown": reason(Reason.RUN_NOT_FOUND, Reason.REQUEST_NOT_FOUND, method="Attach"),
    "attach.live": text("wait=", "two", "one", "Attach", lambda call: "say=three" in call.script),
    "attach.pending-request": Break(events=_without_pending),
    "cancel.stops": answer("Cancel", _still_locked),
    "cancel.outcome": answer("Cancel", lambda _, came: setattr(came, "result_sequence", came.result_sequence + 1)),
    "cancel.confirmed": _unconfirmed(),
    "cancel.idempotent": answer("Cancel", _repeated_cancel),
    "cancel.finished": answer("Cancel", _wrong_outcome),
    "cancel.unknown": reason(Reason.RUN_NOT_FOUND, Reason.REQUEST_NOT_FOUND, method="Cancel"),
    "cancel.grace-zero": _slow_cancel(with_zero=False),
    "cancel.shorter-grace": _slow_cancel(with_zero=True),
    "respond.unknown-run": reason(Reason.RUN_NOT_FOUND, Reason.REQUEST_NOT_FOUND, method="Respond"),
    "respond.unknown-request": reason(Reason.REQUEST_NOT_FOUND, Reason.RUN_FINISHED),
    "respond.recorded": answer("Respond", lambda _, came: setattr(came, "sequence", came.sequence + 1)),
    "respond.idempotent": answer("Respond", _not_idempotent),
    "respond.already-resolved": reason(Reason.ALREADY_RESOLVED, Reason.RUN_FINISHED),
    "respond.invalid": reason(Reason.INVALID_ANSWER, Reason.INVALID_REQUEST),
    "respond.expired": reason(Reason.REQUEST_EXPIRED, Reason.RUN_FINISHED),
    "respond.after-end": reason(Reason.RUN_FINISHED, Reason.REQUEST_EXPIRED, method="Respond"),
    "send.queued": answer("Send", lambda _, came: setattr(came, "sequence", came.sequence + 1)),
    "send.idempotent": reason(Reason.INPUT_ID_REUSED, Reason.RUN_ID_REUSED, method="Send"),
    "send.refused": reason(Reason.NOT_SUPPORTED, Reason.RUN_FINISHED, method="Send"),
    "send.finished": reason(Reason.RUN_FINISHED, Reason.RUN_NOT_FOUND, method="Send"),
    "send.invalid": reason(Reason.INVALID_REQUEST, Reason.NOT_SUPPORTED, method="Send"),
    "send.unknown-run": reason(Reason.RUN_NOT_FOUND, Reason.RUN_FINISHED, method="Send"),
    "send.settled": Break(request=_count_send, event=_unsettled),
    "permissions.unattended": request(_interactive),
    "limits.wall": request(lambda execute: execute.limits.ClearField("wall"), "hang"),
    "limits.idle": request(lambda execute: execute.limits.ClearField("idle"), "hang"),
    "limits.start-up": request(lambda execute: execute.limits.ClearField("start_up"), "hang"),
    "limits.tool-call": request(lambda execute: execute.limits.ClearField("tool_call")),
    "limits.grace": request(lambda execute: execute.limits.grace.FromMilliseconds(100), "deaf"),
    "limits.output": request(lambda execute: execute.limits.ClearField("output_bytes")),
    "limits.budget": request(lambda execute: execute.limits.ClearField("budget"), "call="),
    "limits.budget-wrong": request(lambda execute: execute.limits.budget.ClearField("cost")),
    "limits.shown": event("", "started", lambda came: came.started.ClearField("limits")),
    "output.long-line": text("line=", "x" * 100_000, ""),
    "output.huge-line": text("line=2000000", "after the huge line", ""),
    "output.cut-utf8": text("raw=", "\ufffd", "?"),
    "output.unicode": text("grüße", "ü", "ue"),
    "output.stderr": text("err=", "a word on stderr", ""),
    "output.background-child": Break(events=_delayed),
    "output.slow-reader": text("the end", "the end", "", "Execute"),
    "prompt.large": request(lambda execute: setattr(execute, "prompt", execute.prompt[:1000]), "prompt"),
    "environment.passed": request(lambda execute: execute.env.pop("CONFORMANCE_WORD", None)),
    "environment.run-id": ignored("brand"),
    "settings.model": not_received("model"),
    "settings.system-prompt": not_received("system_prompt"),
    "settings.instructions": not_received("instructions"),
    "settings.skills": not_received("skills"),
    "settings.mcp-servers": not_received("mcp_servers"),
    "settings.workspace": request(_elsewhere, "touch=conformance"),
    "settings.max-turns": request(lambda execute: execute.config.fields.pop("maxTurns", None), "received="),
    "secrets.echo": _unredacted("env=CONFORMANCE_TOKEN"),
    "secrets.split": _unredacted("split="),
    "secrets.started": _secret_in_started(),
    "secrets.auth-token": _unredacted("env=DRAGOMAN_API_KEY"),
    "errors.info": _no_id_status(DragomanError(None, "broken", status=error(Reason.INVALID_REQUEST).code)),
    "errors.retry-info": _no_id_status(error(Reason.ADAPTER_UNAVAILABLE)),
    "errors.no-internal": _no_id_status(error(Reason.INTERNAL)),
}
"""What breaks each rule that ``feature_breaks``, ``missing_breaks`` and ``broken_process`` do not have."""
