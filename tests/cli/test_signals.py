"""Ctrl-C, once, twice and three times; and readers that stop or go away."""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.fakes.adapter import Action, EventFactory, FakeAdapter, Silence, Until, serving
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.cli.program import DESCRIBED, finish, routed, start


def fake_of(*script: Action) -> FakeAdapter:
    return FakeAdapter(script, answers={"Describe": DESCRIBED})


async def test_once_cancels_and_says_that_everything_is_gone() -> None:
    emit = EventFactory()
    begun = emit.started(), emit.text("work")
    fake = fake_of(*begun, Until("cancel"), emit.result(pb.OUTCOME_CANCELLED, tree_confirmed_dead=True))
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", "--run-id", "r1", env=env)
        await fake.gate("called Execute").wait()
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    assert done.err == "cancelling r1; Ctrl-C again kills it\nr1: all processes of the run are confirmed dead\n"
    assert done.last_line.startswith("cancelled in ")
    [request] = fake.requests("Cancel")
    assert request.run_id == "r1"
    assert not request.HasField("grace"), "the run has its own grace"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_other_requests_to_end_cancel_too(number: signal.Signals) -> None:
    emit = EventFactory()
    fake = fake_of(emit.started(), Until("cancel"), emit.result(pb.OUTCOME_CANCELLED))
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", env=env)
        await fake.gate("called Execute").wait()
        process.send_signal(number)
        assert (await finish(process)).code == 130


async def test_twice_kills_and_says_what_is_not_proven() -> None:
    emit = EventFactory()
    started = emit.started()
    fake = fake_of(started, Until("kill"), emit.result(pb.OUTCOME_CANCELLED, tree_confirmed_dead=False))
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", "--run-id", "r1", env=env)
        for gate in ("called Execute", "cancel"):
            await fake.gate(gate).wait()
            process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    assert done.err == (
        "cancelling r1; Ctrl-C again kills it\nkilling r1; Ctrl-C again detaches\n"
        "r1: its processes are NOT confirmed dead; check for them\n"
    )
    assert fake.requests("Cancel")[1].grace.ToNanoseconds() == 0
    assert fake.requests("Cancel")[1].HasField("grace")


@pytest.mark.parametrize("script", [[Silence(), Until("never")], [Until("never")]], ids=["unanswered", "accepted"])
async def test_one_interrupt_leaves_where_no_server_answers(script: list[Action], tmp_path: Path) -> None:
    fake = fake_of(*script)
    address = f"unix:{tmp_path}/r.sock"
    async with serving(fake, address):
        process = await start("run", "fake", "hi", "--run-id", "r1", env={"DRAGOMAN_ROUTER": address})
        await fake.gate("called Execute").wait()
    assert process.stderr is not None
    assert await process.stderr.readline() == b"the stream broke; reconnecting to r1\xe2\x80\xa6\n"
    process.send_signal(signal.SIGINT)
    done = await asyncio.wait_for(finish(process), 30)
    assert done.code == 130
    assert done.err == (
        "cancelling r1; Ctrl-C again kills it\n"
        "the server is unreachable; if the run is live it is cancelled in about a minute, unless a client attaches\n"
        "detached from r1 before its end\n"
    )


async def test_three_times_leaves() -> None:
    fake = fake_of(EventFactory().started(), Until("never"))
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", "--run-id", "r1", env=env)
        for gate in ("called Execute", "cancel", "kill"):
            await fake.gate(gate).wait()
            process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    assert done.err.endswith("detached from r1 before its end\n")


async def test_a_run_that_ends_well_while_it_is_cancelled_has_succeeded() -> None:
    emit = EventFactory()
    fake = fake_of(emit.started(), Until("cancel"), emit.succeeded(tree_confirmed_dead=True))
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", env=env)
        await fake.gate("called Execute").wait()
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 0
    assert done.last_line.startswith("succeeded in ")


async def test_before_the_run_is_accepted_there_is_nothing_to_cancel() -> None:
    unknown = DragomanError(Reason.RUN_NOT_FOUND, "no such run")
    fake = FakeAdapter([Silence(), Until("never")], answers={"Describe": DESCRIBED, "Cancel": unknown})
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", env=env)
        await fake.gate("called Execute").wait()
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    assert "Traceback" not in done.err


@pytest.mark.parametrize("thread", ["any", "another"])
async def test_before_anything_was_asked_for_it_just_ends(thread: str) -> None:
    class Hanging(FakeAdapter):
        async def _answer(self, name: str, request: object) -> pb.Result:
            await self.gate("never").wait()
            raise AssertionError

    hanging = Hanging()
    async with routed(hanging) as env:
        process = await start("run", "fake", "hi", env=env)
        await hanging.gate("called Describe").wait()
        if thread == "any":
            process.send_signal(signal.SIGINT)
        else:  # as the system may choose, of a process that was just stopped for instance
            youngest = max(int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir())
            assert youngest != process.pid
            assert ctypes.CDLL(None).tgkill(process.pid, youngest, signal.SIGINT) == 0
        done = await finish(process)
    assert (done.code, done.out, done.err) == (130, "", "\ninterrupted\n")


async def test_attach_only_leaves() -> None:
    fake = FakeAdapter([EventFactory().started(), Until("never")])
    async with routed(fake) as env:
        process = await start("attach", "run-1", env=env)
        assert process.stdout is not None
        await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    assert done.err == "detached from run-1 before its end\n"
    assert "Cancel" not in fake.names


async def test_the_reason_why_cancelling_failed_is_shown() -> None:
    emit = EventFactory()
    error = DragomanError(Reason.INTERNAL, "internal error")
    script: list[Action] = [
        emit.started(),
        Until("shown"),
        emit.succeeded(),
    ]  # once the run has ended, this does no harm
    fake = FakeAdapter(script, answers={"Describe": DESCRIBED, "Cancel": error})
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", env=env)
        await fake.gate("called Execute").wait()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while await process.stderr.readline() != b"error: internal error\n":
            assert not process.stderr.at_eof()
        fake.open("shown")
        assert (await finish(process)).code == 0


@contextlib.asynccontextmanager
async def piped(env: dict[str, str], *arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Run with standard output in a pipe; yields the program and the end that is to be read."""
    ours, theirs = os.pipe()
    try:
        process = await start(*(arguments or ("run", "fake", "hi")), env=env, stdout=theirs)
    finally:
        os.close(theirs)
    yield process, ours
    with contextlib.suppress(OSError):
        os.close(ours)


_FULL = 60_000
"""A pipe holds 64 KiB, less what is lost at the seams of its pages."""


def unread(pipe: int) -> int:
    """Return how many bytes wait in a pipe."""
    answer = fcntl.ioctl(pipe, termios.FIONREAD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


async def test_a_reader_that_goes_away_cancels_the_run() -> None:
    emit = EventFactory()
    script: list[Action] = [emit.started(), *(emit.text("x" * 1000 + "\n") for _ in range(200)), Until("never")]
    cancelled = api.CancelResponse(outcome=pb.OUTCOME_CANCELLED)
    fake = FakeAdapter(script, answers={"Describe": DESCRIBED, "Cancel": cancelled})
    async with routed(fake) as env, piped(env) as (process, ours):
        await fake.gate("called Execute").wait()
        os.close(ours)
        done = await finish(process)
    assert (done.code, done.err) == (1, "")
    assert len(fake.requests("Cancel")) == 1


async def test_a_reader_that_goes_away_leaves_the_run_of_another_client_alone() -> None:
    emit = EventFactory()
    script: list[Action] = [emit.started(), *(emit.text("x" * 1000 + "\n") for _ in range(200)), Until("never")]
    fake = FakeAdapter(script, answers={"Cancel": api.CancelResponse(outcome=pb.OUTCOME_CANCELLED)})
    async with routed(fake) as env, piped(env, "attach", "run-1") as (process, ours):
        await fake.gate("called Attach").wait()
        os.close(ours)
        done = await finish(process)
    assert (done.code, done.err) == (1, "")
    assert "Cancel" not in fake.names


async def test_a_reader_that_stops_does_not_keep_ctrl_c_from_working() -> None:
    emit = EventFactory()
    fake = fake_of(emit.started(), *(emit.text("x" * 100_000 + "\n") for _ in range(20)), Until("never"))
    async with routed(fake) as env, piped(env) as (process, ours):  # no one reads, as with `less` at its first page
        while unread(ours) < _FULL:  # noqa: ASYNC110 - a pipe has no event for being full
            await asyncio.sleep(0.01)
        for gate in ("cancel", "kill"):
            process.send_signal(signal.SIGINT)
            await fake.gate(gate).wait()
        process.send_signal(signal.SIGINT)
        assert (await asyncio.wait_for(finish(process), 20)).code == 130


async def test_json_lines_come_at_once() -> None:
    emit = EventFactory()
    fake = fake_of(emit.started(), Until("read"), emit.succeeded())
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", "--json", env=env)
        assert process.stdout is not None
        first = json.loads(await process.stdout.readline())
        assert "started" in first
        fake.open("read")
        assert (await finish(process)).code == 0
