"""Input requests and Respond."""

from pathlib import Path

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.kit import Kit, expect_reason, need, need_duty, refusal, seconds, working
from dragoman.conformance.streams import Stream, is_kind, last
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_MODEL = "MOCK_WRITE"


async def _asking(kit: Kit, timeout_s: float = 0) -> tuple[api.ExecuteRequest, Stream, pb.InputRequest]:
    need(kit, pb.FEATURE_PERMISSION_REQUESTS)
    request = kit.request("ask=conformance", model=_MODEL)
    request.permissions.interactive = True
    if timeout_s:
        request.permissions.request_timeout.CopyFrom(seconds(timeout_s))
    stream = kit.execute(request)
    event = await stream.until(is_kind("input_request"))
    return request, stream, event.input_request


def _answer(request: api.ExecuteRequest, asked: pb.InputRequest, *, allow: bool = False) -> api.RespondRequest:
    kinds = {pb.INPUT_OPTION_KIND_ALLOW_ONCE} if allow else {pb.INPUT_OPTION_KIND_REJECT_ONCE}
    options = [option.id for option in asked.options if option.kind in kinds]
    if not options:
        raise Skip("the request has no option of that kind")
    respond = api.RespondRequest(run_id=request.run_id, request_id=asked.id, adapter=request.adapter)
    respond.answer.option_ids.append(options[0])
    return respond


@check("respond.unknown-run")
async def unknown_run(kit: Kit) -> None:
    """Answer in a run that never was."""
    respond = api.RespondRequest(run_id="conformance-no-such-run", request_id="1", adapter=kit.adapter)
    expect_reason(await refusal(kit.call("Respond", respond)), Reason.RUN_NOT_FOUND)


@check("respond.unknown-request")
async def unknown_request(kit: Kit) -> None:
    """Answer what was not asked, while the run lives and after its end."""
    async with working(kit) as (request, _):
        respond = api.RespondRequest(run_id=request.run_id, request_id="no-such-request", adapter=kit.adapter)
        live = await refusal(kit.call("Respond", respond))
    ended = await refusal(kit.call("Respond", respond))
    expect_reason(live, Reason.REQUEST_NOT_FOUND)
    expect_reason(ended, Reason.REQUEST_NOT_FOUND)


@check("respond.recorded")
async def recorded(kit: Kit) -> None:
    """Answer, and find the answer in the stream."""
    request, stream, asked = await _asking(kit)
    answer = await kit.call("Respond", _answer(request, asked))
    await stream.rest()
    found = [event for event in stream.durable if event.input_resolved.id == asked.id]
    expect(found, "the answer is in no input_resolved")
    expect(found[0].sequence == answer.sequence, "RespondResponse.sequence is not that of input_resolved")
    expect(found[0].input_resolved.resolution == pb.INPUT_RESOLUTION_ANSWERED, "the resolution is not ANSWERED")


@check("respond.idempotent")
async def idempotent(kit: Kit) -> None:
    """Give the same answer again, also after the end."""
    request, stream, asked = await _asking(kit)
    respond = _answer(request, asked)
    first = await kit.call("Respond", respond)
    await stream.rest()
    second = await kit.call("Respond", respond)
    expect(second == first, "the same answer again is answered differently")


@check("respond.already-resolved")
async def already_resolved(kit: Kit) -> None:
    """Give another answer."""
    request, stream, asked = await _asking(kit)
    other = _answer(request, asked, allow=True)
    await kit.call("Respond", _answer(request, asked))
    error = await refusal(kit.call("Respond", other))
    await stream.rest()
    expect_reason(error, Reason.ALREADY_RESOLVED)


@check("respond.invalid")
async def invalid(kit: Kit) -> None:
    """Choose an option that was not offered."""
    request, stream, asked = await _asking(kit)
    respond = _answer(request, asked)
    wrong = api.RespondRequest()
    wrong.CopyFrom(respond)
    wrong.answer.option_ids[:] = ["conformance-no-such-option"]
    error = await refusal(kit.call("Respond", wrong))
    await kit.call("Respond", respond)
    await stream.rest()
    expect_reason(error, Reason.INVALID_ANSWER)


@check("respond.expired")
async def expired(kit: Kit) -> None:
    """Let a request expire, and answer it then."""
    need_duty(kit, api.DUTY_UNATTENDED)
    request, stream, asked = await _asking(kit, timeout_s=0.2)
    await stream.rest()
    found = [event.input_resolved for event in stream.events if event.input_resolved.id == asked.id]
    expect(found and found[0].resolution == pb.INPUT_RESOLUTION_EXPIRED, "the request does not end as EXPIRED")
    error = await refusal(kit.call("Respond", _answer(request, asked, allow=True)))
    expect_reason(error, Reason.REQUEST_EXPIRED)


@check("respond.after-end")
async def after_end(kit: Kit) -> None:
    """Cancel a run that asks, and answer then."""
    request, stream, asked = await _asking(kit)
    await kit.cancel(request.run_id)
    await stream.rest()
    error = await refusal(kit.call("Respond", _answer(request, asked)))
    expect_reason(error, Reason.RUN_FINISHED)


@check("permissions.unattended")
async def unattended(kit: Kit) -> None:
    """Run an agent that asks, without anyone who answers."""
    need_duty(kit, api.DUTY_UNATTENDED)
    need(kit, pb.FEATURE_PERMISSION_REQUESTS)
    stream = await kit.run(kit.request("ask=conformance", model=_MODEL))
    open_requests = [asked.id for asked in stream.of("input_request")]
    resolved = {item.id: item.resolution for item in stream.of("input_resolved")}
    waiting = [name for name in open_requests if resolved.get(name) != pb.INPUT_RESOLUTION_POLICY]
    expect(not waiting, "an unattended run asks its caller")


@check("respond.question")
async def question(kit: Kit) -> None:
    """Have an agent ask for a text, and look whether it gets it."""
    request = kit.request("question=Which word?", "say=done")
    request.permissions.interactive = True
    stream = kit.execute(request)
    asked = (await stream.until(is_kind("input_request"))).input_request
    expect(
        asked.kind not in {0, pb.INPUT_KIND_PERMISSION}, f"a question has the kind {pb.InputKind.Name(asked.kind)}"
    )
    respond = api.RespondRequest(run_id=request.run_id, request_id=asked.id, adapter=request.adapter)
    respond.answer.text = "an answering word"
    await kit.call("Respond", respond)
    await stream.rest()
    expect("an answering word" in stream.text, "the agent does not get the answer to its question")


async def _written(kit: Kit, decision: pb.PermissionDecision.ValueType | None = None) -> tuple[bool, Stream]:
    """Return whether an agent wrote a file, and the stream; its run is unattended."""
    path = kit.path("written")
    request = kit.request(f"write={path}", "say=done", model=f"{_MODEL} path={path.name}")
    if kit.setup.agent == "model":
        path = Path(request.workspace.cwd) / path.name
    if decision is not None:
        request.permissions.default_decision = decision
    stream = await kit.run(request)
    return path.exists(), stream


@check("permissions.strict")
async def strict(kit: Kit) -> None:
    """Run an agent that writes a file, with nothing allowed."""
    is_written, _ = await _written(kit)
    expect(not is_written, "the agent does what no permission allows")


@check("permissions.allowed")
async def allowed(kit: Kit) -> None:
    """Run an agent that writes a file, with everything allowed."""
    is_written, stream = await _written(kit, pb.PERMISSION_DECISION_ALLOW)
    expect(is_written, "the agent does not do what default_decision allows")
    expect(not stream.of("input_request"), "the caller is asked for what default_decision allows")


@check("permissions.denied")
async def denied(kit: Kit) -> None:
    """Run an agent that writes a file, with everything denied."""
    is_written, stream = await _written(kit, pb.PERMISSION_DECISION_DENY)
    expect(not is_written, "the agent does what default_decision denies")
    expect(not stream.of("input_request"), "the caller is asked for what default_decision denies")


@check("attach.pending-request")
async def pending(kit: Kit) -> None:
    """Attach to a run that waits for an answer."""
    request, stream, asked = await _asking(kit)
    reader = kit.attach(request.run_id, last(stream).sequence)
    event = await reader.until(lambda event: event.WhichOneof("body") in {"input_request", "replay_done", "result"})
    respond = _answer(request, asked)
    await kit.call("Respond", respond)
    await stream.rest()
    await reader.rest()
    expect(event.input_request.id == asked.id, "a pending input request is not sent again to a late reader")
