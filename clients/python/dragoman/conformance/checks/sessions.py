"""Sessions: the handle of a result, and what happens to one that cannot be resumed."""

from dragoman.conformance.check import check, expect
from dragoman.conformance.kit import Kit, expect_outcome, need
from dragoman.conformance.streams import Stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_MODEL = "MOCK_TEXT"
_ID = "01961f2e-5a3c-7d41-9b0e-5c0f4e8d2a10"
"""The ID that scripted agents give to every session."""
_COPY_ID = "01961f2e-5a3c-7d41-9b0e-5c0f4e8d2a11"
"""The ID that they give to the copy of one."""
_STEPS = (f"session={_ID}", "say=two")


def _name(disposition: pb.SessionDisposition.ValueType) -> str:
    return pb.SessionDisposition.Name(disposition)


async def _stored(kit: Kit) -> Stream:
    """Return a run with a session, whose result says that it be stored."""
    need(kit, pb.FEATURE_RESUME)
    stream = await kit.run(kit.request(f"session={_ID}", "say=one", model=_MODEL))
    result = stream.result
    expect(result.session.change == pb.SESSION_CHANGE_SET, "the result does not say that its session be stored (SET)")
    expect(result.session.handle.native_id, "the result's session handle has no native_id")
    return stream


def _going_on(kit: Kit, handle: pb.SessionHandle, *steps: str, is_copy: bool = False) -> api.ExecuteRequest:
    """Return a request that goes on in a session, or in a copy of it."""
    request = kit.request(*steps, model=_MODEL)
    request.session.handle.CopyFrom(handle)
    request.session.fork = is_copy
    if handle.cwd:
        request.workspace.cwd = handle.cwd
    return request


def _is_new(stream: Stream) -> None:
    """Require a new session, with the reason."""
    last = stream.of("started")[-1]
    due = pb.SESSION_DISPOSITION_RESUME_REFUSED
    expect(last.session_disposition == due, f"{_name(last.session_disposition)} where RESUME_REFUSED is due")
    expect(last.session_reason, "started.session_reason is empty")
    expect_outcome(stream.result, pb.OUTCOME_SUCCEEDED, "a new session could start")


async def _reaches_agent(kit: Kit, before: Stream, *, is_copy: bool = False) -> None:
    """Require that the agent gets the session of a run: its ID, or at a scripted model its first prompt.

    The steps do not say the ID in clear: an agent that searches its prompt would find it there.
    """
    handle = before.result.session.handle
    request = _going_on(kit, handle, f"received={handle.native_id.encode().hex()}", is_copy=is_copy)
    stream = await kit.run(request)
    if kit.setup.agent == "model":
        first = before.events[0].run_id
        asked = [text for text in kit.setup.model_requests() if request.run_id in text]
        expect(
            any(first in text for text in asked), "what the session holds is in no request of the agent to its model"
        )
        return
    expect("received: " in stream.text, f"the agent does not say what it received: {stream.text[:200]!r}")
    expect(
        "received: yes" in stream.text, "the agent does not receive the ID of the session, although started says so"
    )


@check("session.resumes")
async def resumes(kit: Kit) -> None:
    """Run again with the handle of a result, and once more to see whether the agent receives it."""
    before = await _stored(kit)
    handle = before.result.session.handle
    stream = await kit.run(_going_on(kit, handle, *_STEPS))
    disposition = stream.of("started")[0].session_disposition
    expect(disposition == pb.SESSION_DISPOSITION_RESUME, f"{_name(disposition)} where RESUME is due")
    found = stream.result.session.handle.native_id
    expect(found == handle.native_id, f"the session goes on as {found!r}, not {handle.native_id!r}")
    await _reaches_agent(kit, before)


@check("session.forks")
async def forks(kit: Kit) -> None:
    """Run again in a copy of the session of a result, and once more to see whether the agent receives it."""
    before = await _stored(kit)
    handle = before.result.session.handle
    stream = await kit.run(_going_on(kit, handle, f"session={_COPY_ID}", "say=two", is_copy=True))
    disposition = stream.of("started")[0].session_disposition
    expect(disposition == pb.SESSION_DISPOSITION_FORK, f"{_name(disposition)} where FORK is due")
    found = stream.result.session.handle.native_id
    expect(found and found != handle.native_id, f"the copy is reported as the session {found!r} itself")
    await _reaches_agent(kit, before, is_copy=True)


@check("session.unfit")
async def unfit(kit: Kit) -> None:
    """Send the handle of another adapter."""
    handle = (await _stored(kit)).result.session.handle
    handle.adapter = "conformance_no_such_adapter"
    _is_new(await kit.run(_going_on(kit, handle, *_STEPS)))


@check("session.lost")
async def lost(kit: Kit) -> None:
    """Send the handle of a session that does not exist."""
    handle = (await _stored(kit)).result.session.handle
    unknown = handle.native_id[:-1] + ("1" if handle.native_id.endswith("0") else "0")
    handle.native_id = unknown
    if "sessionId" in handle.params:
        handle.params["sessionId"] = unknown
    stream = await kit.run(_going_on(kit, handle, "lost", *_STEPS))
    _is_new(stream)
    expect(stream.result.session.handle.native_id != unknown, "the result names the session that does not exist")
