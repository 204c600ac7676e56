"""What a router knows beside its adapters: runs, stored sessions, changes; and how it drains."""

import secrets
import signal
from typing import Any

import grpc
from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.checks.lifecycle import refused_run, started
from dragoman.conformance.checks.registration import own_adapter, register
from dragoman.conformance.kit import Kit, ask_router, expect_reason, gate, refusal, within
from dragoman.conformance.streams import last
from dragoman.protocol.errors import Reason
from dragoman.protocol.statuses import from_rpc_error
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

_CHANGES_WITHIN_S = 8.0
_EXIT_S = 10.0
_SESSION = "01961f2e-5a3c-7d41-9b0e-5c0f4e8d2a10"


async def _listed(kit: Kit, **fields: Any) -> list[router_pb2.RunSummary]:
    answer = await ask_router(kit, "ListRuns", **fields)
    return list(answer.runs)


@check("router.runs")
async def runs(kit: Kit) -> None:
    """Run with a label of its own, and look for it."""
    await _listed(kit)
    word = f"conformance{secrets.token_hex(6)}"
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.labels["conformance"] = word
    stream = await kit.run(request)
    labels = {"conformance": word}
    found = await _listed(kit, labels=labels)
    expect([run.run_id for run in found] == [request.run_id], "ListRuns does not list a run by its label")
    read = (await ask_router(kit, "GetRun", run_id=request.run_id)).run
    for rpc, run in (("ListRuns", found[0]), ("GetRun", read)):
        expect(run.result.outcome == stream.result.outcome, f"{rpc}: the result is not that of the stream")
        expect(run.last_sequence == last(stream).sequence, f"{rpc}: last_sequence is {run.last_sequence}")
        expect(run.adapter == kit.described.adapter, f"{rpc}: the adapter is {run.adapter!r}")
        expect(run.HasField("finished_at"), f"{rpc}: a run that has ended has no finished_at")
    expect(not await _listed(kit, labels=labels, live_only=True), "live_only lists a run that has ended")
    failed = await _listed(kit, labels=labels, outcome=pb.OUTCOME_LOST)
    expect(not failed, "a run with another outcome than the requested one is listed")


@check("router.run-unknown")
async def run_unknown(kit: Kit) -> None:
    """Ask for a run that never was."""
    call = ask_router(kit, "GetRun", run_id="conformance-no-such-run")
    expect_reason(await refusal(call), Reason.RUN_NOT_FOUND)


@check("router.page-token")
async def page_token(kit: Kit) -> None:
    """Send a page token that no router gave."""
    for rpc in ("ListAdapters", "ListRuns", "ListSessions"):
        call = ask_router(kit, rpc, page_token="conformance-no-such-page")  # noqa: S106 - no password
        expect_reason(await refusal(call), Reason.INVALID_PAGE_TOKEN)


@check("router.watch")
async def watch(kit: Kit) -> None:
    """Watch the adapters while one registers."""
    async with own_adapter(kit) as announced:
        call = kit.router.WatchAdapters(router_pb2.WatchAdaptersRequest())
        try:
            async with within(kit, _CHANGES_WITHIN_S, "the list that is due does not come"):
                first = await _next(call)
                expect(kit.described.adapter in first, f"the first list has {sorted(first)}")
                await register(kit, announced)
                while announced.adapter not in await _next(call):
                    pass
        finally:
            call.cancel()


async def _next(call: Any) -> set[str]:
    try:
        answer = await call.read()
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    expect(answer is not grpc.aio.EOF, "the stream of WatchAdapters ends")
    return {entry.adapter for entry in answer.adapters}


def _key() -> api.SessionKey:
    return api.SessionKey(task_key=f"conformance{secrets.token_hex(6)}")


@check("router.session")
async def session(kit: Kit) -> None:
    """Run twice for one task, and delete its session then."""
    task = f"conformance{secrets.token_hex(6)}"
    await ask_router(kit, "ListSessions", task_key=task)
    streams = []
    for _ in range(2):
        request = kit.request(f"session={_SESSION}", "say=one", model="MOCK_TEXT")
        request.task_key = task
        request.workspace.cwd = str(kit.setup.folder)
        streams.append(await kit.run(request))
    dispositions = [stream.of("started")[0].session_disposition for stream in streams]
    due = [pb.SESSION_DISPOSITION_NEW, pb.SESSION_DISPOSITION_RESUME]
    names = [pb.SessionDisposition.Name(value) for value in dispositions]
    expect(dispositions == due, f"the runs of one task are {names}; NEW and RESUME are due")
    listed = (await ask_router(kit, "ListSessions", task_key=task)).sessions
    expect(len(listed) == 1, f"ListSessions lists {len(listed)} sessions of a task")
    handle = streams[-1].result.session.handle
    fields = {"key": listed[0].key, "adapter": listed[0].adapter}
    read = (await ask_router(kit, "GetSession", **fields)).session
    expect(read.handle.native_id == handle.native_id, "GetSession answers another session than the result has")
    expect(read.runs == 2, f"GetSession counts {read.runs} runs of a session with 2")
    deleted = (await ask_router(kit, "DeleteSession", **fields)).deleted
    expect(deleted, "DeleteSession does not report that it deleted a session")
    left = (await ask_router(kit, "ListSessions", task_key=task)).sessions
    expect(not left, "a deleted session is listed")


@check("router.session-unknown")
async def session_unknown(kit: Kit) -> None:
    """Ask for the session of a task that never was, and delete it."""
    absent = {"key": _key(), "adapter": kit.described.adapter}
    expect_reason(await refusal(ask_router(kit, "GetSession", **absent)), Reason.SESSION_NOT_FOUND)
    answer = await ask_router(kit, "DeleteSession", **absent)
    expect(not answer.deleted, "DeleteSession reports that it deleted a session that never was")


@check("router.session-adapter")
async def session_adapter(kit: Kit) -> None:
    """Leave the adapter out."""
    for rpc in ("GetSession", "DeleteSession"):
        expect_reason(await refusal(ask_router(kit, rpc, key=_key())), Reason.ADAPTER_REQUIRED)


@check("router.drain")
async def drain(kit: Kit) -> None:
    """Send SIGTERM to a router while a run lives, start another run, and let the first one end."""
    if not kit.is_router:
        raise Skip("an adapter serves no RouterService")
    exit_s = _EXIT_S * kit.setup.slowness
    async with started(kit, "router") as process, kit.beside(process.address) as other:
        with gate(kit) as path:
            stream = other.execute(other.request("say=ready", f"wait={path}", "say=done"))
            await stream.until_text("ready")
            process.signal(signal.SIGTERM)
            refused = await refused_run(other)
        error = await stream.ending()
        has_ended = await process.ended(exit_s)
    expect_reason(refused, Reason.DRAINING)
    expect(refused.retry_after_s is not None, "DRAINING without RetryInfo")
    expect(has_ended, f"the router has not ended {exit_s:g} s after its last run")
    if error is None:
        expect(stream.of("result"), "the stream of a live run ends without its result")
        return
    expect_reason(error, Reason.DRAINING)
    expect("last_sequence" in error.metadata, "DRAINING ends a stream without last_sequence in metadata")
