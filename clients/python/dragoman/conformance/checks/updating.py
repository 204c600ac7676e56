"""Changes of a run in mid-run: UpdateRun."""

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.kit import Kit, expect_reason, refusal, working
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_FEATURES = {"model": pb.FEATURE_UPDATE_MODEL, "permission_mode": pb.FEATURE_UPDATE_PERMISSION_MODE}
_VALUE = "conformance"
"""A mode or model that no agent has need to know: it may reject it."""


def _change(kit: Kit, run_id: str, **change: str) -> api.UpdateRunRequest:
    return api.UpdateRunRequest(run_id=run_id, adapter=kit.adapter, **change)


def _declared(kit: Kit) -> list[str]:
    declared = [name for name, feature in _FEATURES.items() if kit.has(feature)]
    if not declared:
        raise Skip("FEATURE_UPDATE_MODEL or FEATURE_UPDATE_PERMISSION_MODE is not declared")
    return declared


@check("update.refused")
async def refused(kit: Kit) -> None:
    """Ask for a change that the adapter does not declare."""
    names = [name for name, feature in _FEATURES.items() if not kit.has(feature)]
    if not names:
        raise Skip("the adapter declares both changes")
    async with working(kit, model="MOCK_SLOW") as (request, _):
        changes = {name: _change(kit, request.run_id, **{name: _VALUE}) for name in names}
        errors = {name: await refusal(kit.call("UpdateRun", change)) for name, change in changes.items()}
    for name, error in errors.items():
        if error.reason is Reason.NOT_IMPLEMENTED:
            continue  # of an earlier revision
        expect_reason(error, Reason.NOT_SUPPORTED, field_path=name)


@check("update.invalid")
async def invalid(kit: Kit) -> None:
    """Ask for no change, and for one to an empty value."""
    name = _declared(kit)[0]
    async with working(kit, model="MOCK_SLOW") as (request, _):
        nothing = await refusal(kit.call("UpdateRun", _change(kit, request.run_id)))
        empty = await refusal(kit.call("UpdateRun", _change(kit, request.run_id, **{name: ""})))
    expect_reason(nothing, Reason.INVALID_REQUEST)
    expect_reason(empty, Reason.INVALID_REQUEST, field_path=name)


@check("update.taken")
async def taken(kit: Kit) -> None:
    """Ask for each change that the adapter declares, and compare the answers with the events."""
    names = _declared(kit)
    answers: dict[str, int] = {}
    is_over = False
    async with working(kit, model="MOCK_SLOW") as (request, stream):
        for name in names:
            try:
                answers[name] = (await kit.call("UpdateRun", _change(kit, request.run_id, **{name: _VALUE}))).sequence
            except DragomanError as error:
                is_over = error.reason is Reason.RUN_FINISHED
                if not is_over:
                    expect_reason(error, Reason.UPDATE_REFUSED)
    if is_over and not answers:
        raise Skip("the run ended before the agent took a change")
    recorded = {
        event.run_updated.WhichOneof("change"): event.sequence
        for event in stream.durable
        if event.HasField("run_updated")
    }
    expect(recorded == answers, f"run_updated has {recorded}, the answers {answers}")


@check("update.finished")
async def finished(kit: Kit) -> None:
    """Ask for a change of a run that has ended."""
    name = _declared(kit)[0]
    request = kit.request("say=one", model="MOCK_TEXT")
    await kit.run(request)
    expect_reason(
        await refusal(kit.call("UpdateRun", _change(kit, request.run_id, **{name: _VALUE}))), Reason.RUN_FINISHED
    )


@check("update.unknown-run")
async def unknown_run(kit: Kit) -> None:
    """Ask for a change of a run that never was."""
    change = _change(kit, "conformance-no-such-run", **{_declared(kit)[0]: _VALUE})
    expect_reason(await refusal(kit.call("UpdateRun", change)), Reason.RUN_NOT_FOUND)
