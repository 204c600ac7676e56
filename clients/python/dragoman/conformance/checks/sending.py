"""Inputs in mid-run: Send."""

from contextlib import AbstractAsyncContextManager

from dragoman.conformance.check import Skip, check, expect, stream_check
from dragoman.conformance.kit import Kit, expect_reason, need, refusal, working
from dragoman.conformance.streams import Stream
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_SESSION = "01961f2e-5a3c-7d41-9b0e-5c0f4e8d2a12"
_WORD = b"word-of-the-input-4711"
_RUN_ENDED = "run_ended"
_MODES = {pb.INPUT_MODE_QUEUE: pb.FEATURE_QUEUE, pb.INPUT_MODE_STEER: pb.FEATURE_STEER}


def _input(kit: Kit, run_id: str, text: str = "MOCK_TEXT and this", **fields: str | int) -> api.SendRequest:
    queue = pb.INPUT_MODE_QUEUE
    defaults = {"input_id": "conformance-1", "mode": queue}
    return api.SendRequest(run_id=run_id, adapter=kit.adapter, text=text, **{**defaults, **fields})  # type: ignore[arg-type]


def _working(
    kit: Kit, then: str = "say=done", model: str = "MOCK_SLOW"
) -> AbstractAsyncContextManager[tuple[api.ExecuteRequest, Stream]]:
    """Yield a run with a session whose agent works; at a scripted model, for a while."""
    return working(kit, f"session={_SESSION}", then=then, model=model)


@check("send.queued")
async def queued(kit: Kit) -> None:
    """Queue an input while the agent works, and read on to the end of the run."""
    need(kit, pb.FEATURE_QUEUE)
    async with _working(kit) as (request, stream):
        answer = await kit.call("Send", _input(kit, request.run_id))
    accepted = [event for event in stream.durable if event.input_accepted.input_id == "conformance-1"]
    expect(accepted, "the input is in no input_accepted")
    expect(accepted[0].sequence == answer.sequence, "SendResponse.sequence is not that of input_accepted")
    dropped = [event.input_dropped for event in stream.durable if event.HasField("input_dropped")]
    expect(not dropped, f"the input was dropped: {dropped[0].reason}" if dropped else "")
    taken = [event for event in stream.durable if event.message.input_id == "conformance-1"]
    expect(taken, "no message has the input's ID")
    expect(taken[0].message.role == pb.MESSAGE_ROLE_USER, "the message of the input has not the role USER")
    expect(len(stream.of("result")) == 1, "the run has not one result, after its last turn")
    last = max(event.sequence for event in stream.durable if event.HasField("text") or event.HasField("log"))
    expect(last > taken[0].sequence, "the agent says nothing after it took the input")


@check("send.steered")
async def steered(kit: Kit) -> None:
    """Send an input for the present turn, which goes on until the agent has taken it."""
    need(kit, pb.FEATURE_STEER)
    async with _working(kit) as (request, stream):
        try:
            await kit.call("Send", _input(kit, request.run_id, mode=pb.INPUT_MODE_STEER))
        except DragomanError as error:
            if error.reason is not Reason.RUN_FINISHED:
                raise
            raise Skip("the run ended before the input came") from error
        if kit.setup.agent != "model":  # the turn of a scripted model ends by itself, so that another one may follow
            await stream.until(lambda event: bool(event.message.input_id) or event.HasField("input_dropped"))
    dropped = [event.input_dropped for event in stream.durable if event.HasField("input_dropped")]
    if dropped and dropped[0].reason == _RUN_ENDED and not kit.has(pb.FEATURE_QUEUE):
        raise Skip("the turn ended before the agent took the input, and no other one follows")
    expect(not dropped, f"the input was dropped: {dropped[0].reason}" if dropped else "")
    taken = [event.message for event in stream.durable if event.message.input_id == "conformance-1"]
    expect(taken, "no message has the input's ID")
    expect(taken[0].role == pb.MESSAGE_ROLE_USER, "the message of the input has not the role USER")


@check("send.attachments")
async def attached(kit: Kit) -> None:
    """Have the agent look for the words of a file that came with an input."""
    need(kit, pb.FEATURE_QUEUE)
    need(kit, pb.FEATURE_ATTACHMENTS)
    async with _working(kit, f"received={_WORD.hex()}", model="") as (request, stream):
        sent = _input(kit, request.run_id)
        sent.attachments.add(name="words.txt", media_type="text/plain", content=b"The word is " + _WORD)
        await kit.call("Send", sent)
    expect("received: yes" in stream.text, "the agent does not find the file where its text says")
    names = [name for event in stream.durable for name in event.input_accepted.attachments]
    expect(names == ["words.txt"], f"input_accepted has the files {names}")


@check("send.images")
async def images(kit: Kit) -> None:
    """Give an image to an agent that takes none."""
    need(kit, pb.FEATURE_QUEUE)
    need(kit, pb.FEATURE_ATTACHMENTS)
    if kit.has(pb.FEATURE_IMAGES):
        raise Skip("FEATURE_IMAGES is declared")
    async with _working(kit) as (request, _):
        sent = _input(kit, request.run_id)
        sent.attachments.add(name="image.png", media_type="image/png", content=b"\x89PNG\r\n\x1a\n")
        error = await refusal(kit.call("Send", sent))
    expect_reason(error, Reason.NOT_SUPPORTED, field_path="attachments[0].media_type")


@check("send.idempotent")
async def idempotent(kit: Kit) -> None:
    """Send an input again, while the run lives and after its end; and another one with its ID."""
    need(kit, pb.FEATURE_QUEUE)
    async with _working(kit) as (request, stream):
        first = await kit.call("Send", _input(kit, request.run_id))
        second = await kit.call("Send", _input(kit, request.run_id))
        other = await refusal(kit.call("Send", _input(kit, request.run_id, "MOCK_TEXT and that")))
    third = await kit.call("Send", _input(kit, request.run_id))
    expect(first == second == third, "the same input again is answered differently")
    expect_reason(other, Reason.INPUT_ID_REUSED)
    accepted = [event for event in stream.durable if event.HasField("input_accepted")]
    expect(len(accepted) == 1, f"one input was accepted {len(accepted)} times")


@check("send.refused")
async def refused(kit: Kit) -> None:
    """Send in a way that the adapter does not declare."""
    modes = [mode for mode, feature in _MODES.items() if not kit.has(feature)]
    if not modes:
        raise Skip("the adapter declares both ways")
    async with working(kit, model="MOCK_SLOW") as (request, _):
        errors = [await refusal(kit.call("Send", _input(kit, request.run_id, mode=mode))) for mode in modes]
    for error in errors:
        if error.reason is Reason.NOT_IMPLEMENTED:
            continue  # of an earlier revision
        expect_reason(error, Reason.NOT_SUPPORTED, field_path="mode")


@check("send.finished")
async def finished(kit: Kit) -> None:
    """Send an input to a run that has ended."""
    need(kit, pb.FEATURE_QUEUE)
    request = kit.request("say=one", model="MOCK_TEXT")
    await kit.run(request)
    expect_reason(await refusal(kit.call("Send", _input(kit, request.run_id))), Reason.RUN_FINISHED)


@check("send.invalid")
async def invalid(kit: Kit) -> None:
    """Send an empty text, and a text with an ID that is none."""
    need(kit, pb.FEATURE_QUEUE)
    async with _working(kit) as (request, _):
        empty = await refusal(kit.call("Send", _input(kit, request.run_id, "")))
        odd = await refusal(kit.call("Send", _input(kit, request.run_id, input_id="no id")))
    expect_reason(empty, Reason.INVALID_REQUEST, field_path="text")
    expect_reason(odd, Reason.INVALID_REQUEST, field_path="input_id")


@check("send.unknown-run")
async def unknown_run(kit: Kit) -> None:
    """Send an input to a run that never was."""
    need(kit, pb.FEATURE_QUEUE)
    sent = _input(kit, "conformance-no-such-run")
    expect_reason(await refusal(kit.call("Send", sent)), Reason.RUN_NOT_FOUND)


@stream_check("send.settled", "input_accepted")
def settled(stream: Stream) -> str:
    """Match accepted inputs with what became of them."""
    waiting: set[str] = set()
    for event in stream.durable:
        input_id = event.message.input_id or event.input_dropped.input_id
        if event.HasField("gap"):
            return ""
        if event.HasField("input_accepted"):
            waiting.add(event.input_accepted.input_id)
        elif input_id:
            if input_id not in waiting and not stream.after:
                return f"input {input_id!r} is taken or dropped, and does not wait"
            waiting.discard(input_id)
        is_end = event.WhichOneof("body") in {"attempt_ended", "result"}
        if is_end and waiting and event.result.outcome != pb.OUTCOME_LOST:
            return f"inputs are neither taken nor dropped: {sorted(waiting)}"
    return ""
