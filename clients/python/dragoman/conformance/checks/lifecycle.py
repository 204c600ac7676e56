"""The adapter's own process: how it starts, and how it ends. Only for a target that the kit starts itself."""

import asyncio
import contextlib
import signal
from contextlib import AbstractAsyncContextManager
from typing import Any

from dragoman.conformance.check import Skip, Violation, check, expect
from dragoman.conformance.kit import SECRET_VARIABLE, Kit, expect_reason, has_stopped, until_ready, within
from dragoman.conformance.launch import LaunchError, Process, launched, left_running
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_EXIT_S = 10.0
_DRAINS_WITHIN_S = 3.0
_SECRET = "q4Lm-conformance-Tz93-8rWx"  # noqa: S105 - no secret


def started(kit: Kit, name: str, **how: Any) -> AbstractAsyncContextManager[Process]:
    """Start another process of the target, as `launched` does.

    Raises:
        Skip: the kit does not know how.
    """
    if not kit.setup.command:
        raise Skip("the kit did not start the target: give its command after '--'")
    return launched(kit.setup.command, kit.path(name), slowness=kit.setup.slowness, **how)


def _exit_s(kit: Kit) -> float:
    return _EXIT_S * kit.setup.slowness


@check("process.drain")
async def drain(kit: Kit) -> None:
    """Send SIGTERM while a run lives."""
    if kit.is_router:
        raise Skip("a router hands live runs to its successor")
    lock = kit.path("lock")
    exit_s = _exit_s(kit)
    async with started(kit, "drain") as process, kit.beside(process.address) as other:
        request = other.request(f"hold={lock}", "say=ready", "hang", model="MOCK_STALL_MID")
        stream = other.execute(request)
        await until_ready(other, stream, request)
        process.signal(signal.SIGTERM)
        await stream.ending()
        has_ended = await process.ended(exit_s)
        is_stopped = await has_stopped(other, request, lock, kit.setup.slowness)
    expect(has_ended, f"the process has not ended {exit_s:g} s after SIGTERM with a live run")
    expect(is_stopped, "the agent of a live run survives the adapter's end by SIGTERM")
    expect(stream.of("result"), "the stream of a live run ends without its result")


@check("process.draining")
async def draining(kit: Kit) -> None:
    """Send SIGTERM while an agent lives that ignores it, and then a new run."""
    if kit.is_router:
        raise Skip("a router hands live runs to its successor")
    async with started(kit, "draining") as process, kit.beside(process.address) as other:
        request = other.request("deaf", "say=ready", "hang")
        stream = other.execute(request)
        await stream.until_text("ready")
        process.signal(signal.SIGTERM)
        try:
            error = await refused_run(other)
        finally:
            with contextlib.suppress(DragomanError):  # it may refuse this too
                await other.cancel(request.run_id, grace_s=0)
            stream.cancel()
    expect_reason(error, Reason.DRAINING)
    expect(error.retry_after_s is not None, "DRAINING without RetryInfo")


async def refused_run(kit: Kit) -> DragomanError:
    """Return the status that refuses a new run, once SIGTERM has taken effect."""
    async with within(kit, _DRAINS_WITHIN_S, "after SIGTERM new runs are still accepted"):
        while True:
            try:
                await kit.run(kit.request("say=hello"))
            except Violation:
                error = kit.seen.streams[-1].error
                if error is None:
                    raise
                return error


@check("process.secrets")
async def own_output(kit: Kit) -> None:
    """Send secrets in runs that succeed, fail and are rejected, and read what the process has printed."""

    def with_secrets(*steps: str, model: str) -> api.ExecuteRequest:
        request = other.request(*steps, model=model)
        request.env[SECRET_VARIABLE] = _SECRET
        if kit.has(pb.FEATURE_AUTH_TOKEN):
            request.auth_token = _SECRET
        return request

    async with started(kit, "secrets") as process:
        async with kit.beside(process.address) as other:
            rejected = with_secrets(model="")
            rejected.run_id = "not an id"
            await other.rejected(rejected)
            with contextlib.suppress(Skip):
                await other.run(with_secrets(f"env={SECRET_VARIABLE}", "say=done", model="MOCK_TEXT"))
                await other.run(with_secrets(f"env={SECRET_VARIABLE}", "fail=failed", model="MOCK_400"))
        process.signal(signal.SIGTERM)
        await process.ended(_exit_s(kit))
        is_shown = _SECRET.encode() in process.output
    expect(not is_shown, "a secret of a request is in what the process itself prints")


@check("process.sigterm-idle")
async def sigterm_idle(kit: Kit) -> None:
    """Send SIGTERM to an idle adapter."""
    async with started(kit, "idle") as process:
        process.signal(signal.SIGTERM)
        expect(await process.ended(_exit_s(kit)), f"the idle process has not ended {_exit_s(kit):g} s after SIGTERM")


@check("process.second-start")
async def second_start(kit: Kit) -> None:
    """Start a second process on the same socket."""
    async with started(kit, "first") as process:
        async with started(kit, "second", address=process.address, is_awaited=False) as second:
            has_ended = await second.ended(_exit_s(kit))
            code = second.code
        expect(has_ended, "a second process on the socket of a live one keeps running")
        expect(code, "a second process on the socket of a live one exits with 0")
        async with kit.beside(process.address) as other:
            expect(other.described.adapter == kit.described.adapter, "the first process no longer serves its socket")


@check("process.stale-socket")
async def stale_socket(kit: Kit) -> None:
    """Start on a socket that a killed process has left behind."""
    async with started(kit, "killed") as process:
        address = process.address
        process.signal(signal.SIGKILL)
        await process.ended(_exit_s(kit))
        try:
            async with started(kit, "again", address=address):
                pass
        except LaunchError as error:
            expect(False, f"it does not start on the socket of a dead process: {error}")


@check("process.nothing-left")
async def nothing_left(kit: Kit) -> None:
    """Run an agent with a child, end the adapter, and look for processes."""
    async with started(kit, "left") as process:
        async with kit.beside(process.address) as other:
            with contextlib.suppress(Skip):
                await other.run(other.request("say=hello", "child", model="MOCK_TEXT"))
        process.signal(signal.SIGTERM)
        await process.ended(_exit_s(kit))
        async with asyncio.timeout(_exit_s(kit)):
            remaining = await left_running(process.mark)
    expect(not remaining, f"processes are left after the adapter has ended: {remaining}")
