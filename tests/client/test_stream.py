"""RunStream against a real gRPC server that breaks where the script says."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator

import grpc
import pytest
from dragoman.client import Client, DragomanError, Reason, RunStream, execute_request
from dragoman.client._reconnect import ReconnectPolicy
from dragoman.protocol.errors import not_supported
from dragoman.protocol.order import OrderChecker
from dragoman.testkit.fakes.adapter import Action, EventFactory, Fail, FakeAdapter, Silence, Until, serving
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

SLOW = DragomanError(Reason.SLOW_CONSUMER, "too slow", {"last_sequence": "2"})
DRAINING = DragomanError(Reason.DRAINING, "going down", retry_after_s=0.01)


@contextlib.asynccontextmanager
async def client_of(fake: FakeAdapter, *, reattach_s: float = 5) -> AsyncIterator[Client]:
    async with serving(fake) as address, Client(address, reattach_s=reattach_s) as client:
        yield client


def kinds(events: list[pb.AgentEvent]) -> list[str]:
    return [event.WhichOneof("body") or "" for event in events]


async def collect(run: RunStream) -> list[pb.AgentEvent]:
    return [event async for event in run]


async def test_a_run_from_start_to_result() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), emit.text("hello"), emit.succeeded(summary="hello")])
    async with client_of(fake) as client:
        run = client.execute(execute_request("fake", "hi"))
        events = await collect(run)
    assert kinds(events) == ["started", "text", "result"]
    assert run.result is not None
    assert run.result.summary == "hello"
    assert {event.run_id for event in events} == {run.run_id}
    assert fake.ended == ["ok"], "the server ended its call by itself"


async def test_the_request_goes_out_with_an_id_and_thirty_seconds_for_orphans() -> None:
    request = execute_request("fake", "hi")
    fake = FakeAdapter([EventFactory().succeeded()])
    async with client_of(fake) as client:
        run = client.execute(request)
        await run.wait()
    sent = fake.requests("Execute")[0]
    assert sent.run_id == run.run_id != ""
    assert sent.orphan_after.seconds == 30
    assert not request.run_id, "the caller's request is the caller's"


@pytest.mark.parametrize("seconds", [0, 7])
async def test_what_the_caller_says_about_orphans_holds(seconds: int) -> None:
    request = execute_request("fake")
    request.run_id = "mine"
    request.orphan_after.FromSeconds(seconds)
    fake = FakeAdapter([EventFactory().succeeded()])
    async with client_of(fake) as client:
        await client.execute(request).wait()
    sent = fake.requests("Execute")[0]
    assert sent.orphan_after.seconds == seconds
    assert sent.run_id == "mine"


async def test_batches_come_unrolled() -> None:
    emit = EventFactory()
    started = emit.started()
    batch = emit.batch(emit.text("a"), emit.text("b"))
    async with client_of(FakeAdapter([started, batch, emit.succeeded()])) as client:
        events = await collect(client.execute(execute_request("fake")))
    assert kinds(events) == ["started", "text", "text", "result"]


async def test_batches_are_requested_of_every_server() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), Fail(SLOW)], [emit.succeeded()], [emit.succeeded()])
    request = execute_request("fake")
    async with client_of(fake) as client:
        await client.execute(request).wait()
        await client.attach("r").wait()
    assert [(name, call.HasField("batching")) for name, call in fake.calls] == [
        ("Execute", True),
        ("Attach", True),
        ("Attach", True),
    ]
    assert not request.HasField("batching"), "the caller's request is the caller's"


NO_BATCHES = Fail(not_supported("batching", "this router does not support batching; leave it out"))


async def test_a_server_that_has_no_batches_is_used_without() -> None:
    emit = EventFactory()
    whole = [emit.started(), emit.text("a"), emit.succeeded()]
    fake = FakeAdapter([Silence(), NO_BATCHES], whole, whole, whole)
    async with client_of(fake) as client:
        assert kinds(await collect(client.execute(execute_request("fake")))) == ["started", "text", "result"]
        await client.execute(execute_request("fake")).wait()
        assert kinds(await collect(client.attach("r"))) == ["started", "text", "result"]
    assert [call.HasField("batching") for _name, call in fake.calls] == [True, False, False, False]
    first, second = fake.requests("Execute")[:2]
    first.ClearField("batching")
    assert first == second, "the same request, whose run is the same"


async def test_runs_that_were_begun_at_once_go_on_without_batches() -> None:
    emit = EventFactory()
    whole = [emit.started(), emit.succeeded()]
    fake = FakeAdapter([Silence(), Until("both"), NO_BATCHES], [Silence(), NO_BATCHES], whole, whole)
    async with client_of(fake) as client:
        runs = [asyncio.ensure_future(client.execute(execute_request("fake")).wait())]
        await fake.gate("called Execute").wait()
        runs.append(asyncio.ensure_future(client.execute(execute_request("fake")).wait()))
        await fake.gate("ended 1").wait()  # the second call: the server's answer to it is known before the first's
        fake.open("both")
        assert [result.outcome for result in await asyncio.gather(*runs)] == [pb.OUTCOME_SUCCEEDED] * 2


async def test_a_stream_goes_on_at_a_server_that_has_no_batches() -> None:
    emit = EventFactory()
    fake = FakeAdapter(
        [emit.started(), emit.batch(emit.text("a"), emit.text("b")), Fail(DRAINING)],
        [Silence(), NO_BATCHES],
        [emit.text("c"), emit.succeeded()],
    )
    async with client_of(fake) as client:
        events = await collect(client.execute(execute_request("fake")))
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    attached = [(call.after_sequence, call.HasField("batching")) for call in fake.requests("Attach")]
    assert attached == [(3, True), (3, False)]


async def test_what_else_is_not_supported_is_a_rejection() -> None:
    fake = FakeAdapter([Silence(), Fail(not_supported("fallback", "no"))])
    async with client_of(fake) as client:
        with pytest.raises(DragomanError) as rejected:
            await client.execute(execute_request("fake")).wait()
    assert rejected.value.reason is Reason.NOT_SUPPORTED
    assert fake.names == ["Execute"]


async def test_unknown_bodies_are_handed_on() -> None:
    emit = EventFactory()
    started, later = emit.started(), emit.event()
    async with client_of(
        FakeAdapter([started, later.SerializeToString() + b"\xfa\x05\x00", emit.succeeded()])
    ) as client:
        events = await collect(client.execute(execute_request("fake")))
    assert [event.sequence for event in events] == [1, 2, 3]


@pytest.mark.parametrize(
    "breaking",
    [
        pytest.param([Fail(SLOW)], id="slow consumer"),
        pytest.param([Fail(DRAINING)], id="draining"),
        pytest.param([Fail(DragomanError(Reason.INTERNAL, "oops"))], id="internal, with a reason"),
        pytest.param([Fail.bare(grpc.StatusCode.UNAVAILABLE)], id="unavailable"),
        pytest.param([Fail.bare(grpc.StatusCode.INTERNAL)], id="reset"),
        pytest.param([Fail.bare(grpc.StatusCode.CANCELLED)], id="cancelled by a hop"),
        pytest.param([], id="ended without a result"),
    ],
)
async def test_a_broken_stream_is_followed_from_its_last_sequence(breaking: list[Action]) -> None:
    emit = EventFactory()
    fake = FakeAdapter(
        [emit.started(), emit.text("a"), *breaking],
        [emit.text("b"), emit.ephemeral(replay_done=pb.ReplayDone()), emit.succeeded()],
    )
    async with client_of(fake) as client:
        run = client.execute(execute_request("fake"))
        events = await collect(run)
    assert kinds(events) == ["started", "text", "text", "result"]
    [attach] = fake.requests("Attach")
    expected = api.AttachRequest(run_id=run.run_id, after_sequence=2, hold=True, adapter="fake")
    expected.batching.SetInParent()
    assert attach == expected


async def test_a_reader_that_reconnects_at_the_result_gets_the_result_and_nothing_twice() -> None:
    emit = EventFactory("r1")
    script = [emit.started(), emit.succeeded(summary="done")]
    fake = FakeAdapter(script[1:])
    async with client_of(fake) as client:
        run = client.attach("r1", after_sequence=2)
        assert await collect(run) == []
    assert run.result == script[1].result
    assert [request.after_sequence for request in fake.requests("Attach")] == [2]


async def test_a_live_run_whose_streams_end_with_nothing_new_is_followed() -> None:
    emit = EventFactory("r1")
    script = [emit.started(), emit.text("a"), emit.succeeded()]
    fake = FakeAdapter([], [], [], script[2:])
    async with client_of(fake) as client:
        assert kinds(await collect(client.attach("r1", after_sequence=2))) == ["result"]
    assert [request.after_sequence for request in fake.requests("Attach")] == [2, 2, 2, 2]


async def test_a_sequence_never_comes_twice() -> None:
    emit = EventFactory()
    first = [emit.started(), emit.text("a"), emit.text("b")]
    fake = FakeAdapter([*first, Fail(SLOW)], [*first, first[2], emit.succeeded()])
    async with client_of(fake) as client:
        events = await collect(client.execute(execute_request("fake")))
    checker = OrderChecker()
    checker.observe_all(events)
    checker.finish()


async def test_a_gap_is_passed_on_and_moves_the_cursor() -> None:
    emit = EventFactory()
    first = [emit.started(), emit.text("a")]
    emit.sequence = 9
    gap = emit.ephemeral(gap=pb.Gap(from_sequence=2, to_sequence=9, reason=pb.GAP_REASON_EVICTED))
    fake = FakeAdapter([*first, Fail(SLOW)], [gap, Fail(SLOW)], [gap, emit.succeeded()])
    async with client_of(fake) as client:
        events = await collect(client.execute(execute_request("fake")))
    assert kinds(events) == ["started", "text", "gap", "result"]
    assert events[2].gap.from_sequence == 3, "what was read is not missing"
    assert fake.requests("Attach")[1].after_sequence == 9


async def test_repeated_requests_are_not_asked_twice() -> None:
    emit = EventFactory()
    asks = emit.started(), emit.event(input_request=pb.InputRequest(id="r1"))
    copy = emit.ephemeral(input_request=pb.InputRequest(id="r1"))
    other = emit.ephemeral(input_request=pb.InputRequest(id="r2"))
    done = emit.ephemeral(replay_done=pb.ReplayDone())
    fake = FakeAdapter([*asks, Fail(SLOW)], [copy, other, done, emit.succeeded()])
    async with client_of(fake) as client:
        events = await collect(client.execute(execute_request("fake")))
    assert [event.input_request.id for event in events if event.HasField("input_request")] == ["r1", "r2"]
    assert "replay_done" not in kinds(events), "no replay was requested"


async def test_attach_passes_replay_done_on_once() -> None:
    emit = EventFactory()
    started = emit.started()
    done = emit.ephemeral(replay_done=pb.ReplayDone(last_sequence=1))
    fake = FakeAdapter([started, Fail(DRAINING)], [done, Fail(DRAINING)], [done, emit.succeeded()])
    async with client_of(fake) as client:
        run = client.attach("run-1", after_sequence=0)
        events = await collect(run)
    assert kinds(events) == ["started", "replay_done", "result"]
    assert [request.after_sequence for request in fake.requests("Attach")] == [0, 1, 1]
    assert not any(request.hold for request in fake.requests("Attach"))


async def test_a_lost_server_is_found_again() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), Until("never")], [emit.succeeded()])
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/fake.sock"
        async with Client(address) as client:
            run = client.execute(execute_request("fake"))
            async with serving(fake, address):
                await anext(run)
            async with serving(fake, address):
                await run.wait()
    assert fake.names == ["Execute", "Attach"]


async def test_execute_is_sent_again_only_while_the_run_is_not_accepted_and_with_the_same_id() -> None:
    emit = EventFactory()
    fake = FakeAdapter(
        [Silence(), Fail.bare(grpc.StatusCode.UNAVAILABLE)],
        [Silence(), emit.started(), Fail.bare(grpc.StatusCode.UNAVAILABLE)],
        [emit.succeeded()],
        answers={"Describe": api.DescribeResponse()},
    )
    async with client_of(fake) as client:
        await client.describe()
        await client.execute(execute_request("fake")).wait()
    assert fake.names == ["Describe", "Execute", "Execute", "Attach"]
    first, second = fake.requests("Execute")
    assert first == second


async def test_an_adapter_that_accepted_a_run_is_never_asked_again_even_before_its_first_event() -> None:
    fake = FakeAdapter([Fail.bare(grpc.StatusCode.UNAVAILABLE)], [EventFactory().succeeded()])
    async with client_of(fake) as client:
        await client.execute(execute_request("fake")).wait()
    assert fake.names == ["Execute", "GetRun", "Attach"]


async def test_an_absent_server_is_reported_at_once() -> None:
    async with Client("127.0.0.1:1") as client:
        run = client.execute(execute_request("fake"))
        with pytest.raises(DragomanError) as caught:
            await asyncio.wait_for(run.wait(), 5)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("reason", [Reason.INVALID_REQUEST, Reason.ADAPTER_UNAVAILABLE, Reason.RUN_ID_REUSED])
async def test_a_refusal_is_raised_where_the_stream_is_entered(reason: Reason) -> None:
    fake = FakeAdapter([Silence(), Fail(DragomanError(reason, "no"))])
    async with client_of(fake) as client:
        with pytest.raises(DragomanError) as caught:
            async with client.execute(execute_request("fake")):
                raise AssertionError("it was refused")
    assert caught.value.reason is reason
    assert fake.names == ["Execute"]


async def test_a_forgotten_run_is_not_followed_for_long() -> None:
    gone = Fail(DragomanError(Reason.RUN_NOT_FOUND, "gone"))
    fake = FakeAdapter([EventFactory().started(), Fail(SLOW)], [Silence(), gone])
    async with client_of(fake) as client:
        with pytest.raises(DragomanError) as caught:
            await client.execute(execute_request("fake")).wait()
    assert caught.value.reason is Reason.RUN_NOT_FOUND


async def test_gives_up_after_the_limit_and_says_what_broke() -> None:
    fake = FakeAdapter([EventFactory().started(), Fail(SLOW)], *[[Fail(DRAINING)]] * 200)
    async with client_of(fake, reattach_s=0.2) as client:
        run = client.execute(api.ExecuteRequest(adapter="fake", run_id="run-7"))
        with pytest.raises(DragomanError) as caught:
            await run.wait()
    assert caught.value.reason is Reason.DRAINING
    assert "run-7 broke, and reconnecting failed for 0.2 s: going down" in str(caught.value)


@pytest.mark.parametrize("end", [[Fail(SLOW)], []], ids=["slow consumer", "ok"])
async def test_a_stream_that_only_repeats_its_greeting_is_abandoned(end: list[Action]) -> None:
    greeting: list[Action] = [EventFactory().ephemeral(replay_done=pb.ReplayDone()), *end]
    fake = FakeAdapter([EventFactory().started(), *end], *[greeting] * 500)
    async with client_of(fake, reattach_s=0.2) as client:
        with pytest.raises(DragomanError, match=r"reconnecting failed for 0\.2 s"):
            await client.execute(execute_request("fake")).wait()


async def test_the_server_may_end_its_call_after_the_result() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), emit.succeeded(), Until("tidied up")])
    async with client_of(fake) as client:
        async for event in client.execute(execute_request("fake")):
            if event.HasField("result"):
                asyncio.get_running_loop().call_later(0.05, fake.open, "tidied up")
    assert fake.ended == ["ok"]


async def test_leaving_early_ends_the_stream_and_not_the_run() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), emit.text("a"), Until("never")])
    async with client_of(fake) as client:
        async with client.execute(execute_request("fake")) as run:
            async for _event in run:
                break
        await fake.gate("ended 1").wait()
        with pytest.raises(RuntimeError, match="closed before its result"):
            await run.wait()
    assert fake.ended == ["cancelled"]
    assert "Cancel" not in fake.names


async def test_a_cancelled_read_loses_nothing() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), Until("never")], [emit.text("a"), emit.succeeded()])
    async with client_of(fake) as client:
        run = client.execute(execute_request("fake"))
        await anext(run)
        reading = asyncio.ensure_future(anext(run))
        await asyncio.wait([reading], timeout=0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert kinds(await collect(run)) == ["text", "result"]
    assert fake.requests("Attach")[0].after_sequence == 1


async def test_closing_the_stream_ends_a_read_that_waits() -> None:
    fake = FakeAdapter([EventFactory().started(), Until("never")])
    async with client_of(fake) as client:
        run = client.execute(execute_request("fake"))
        await anext(run)
        reading = asyncio.ensure_future(collect(run))
        await asyncio.wait([reading], timeout=0.05)
        await run.aclose()
        assert await reading == []


async def test_closing_the_client_ends_a_read_with_an_error_and_not_with_a_cancellation() -> None:
    fake = FakeAdapter([EventFactory().started(), Until("never")])
    async with client_of(fake) as client:
        run = client.execute(execute_request("fake"))
        await anext(run)
        reading = asyncio.ensure_future(anext(run))
        await asyncio.wait([reading], timeout=0.05)
        await client.close()
        with pytest.raises(DragomanError, match="closed"):
            await reading
        with pytest.raises(DragomanError, match="closed"):
            await anext(run)


async def test_closing_the_client_ends_a_stream_that_is_not_resumed() -> None:
    fake = FakeAdapter([EventFactory().started(), Until("never")])
    async with client_of(fake) as client:
        channel = client._channel
        messages = channel.messages(channel.adapter.Execute, execute_request("fake"))
        await messages.aclose()
        assert fake.names == [], "what is not read is not called"
        messages = channel.messages(channel.adapter.Execute, execute_request("fake"))
        await anext(messages)
        reading = asyncio.ensure_future(anext(messages))
        await asyncio.wait([reading], timeout=0.05)
        await client.close()
        with pytest.raises(DragomanError, match="closed"):
            await reading


async def test_cancel_asks_for_the_run_and_its_events_go_on() -> None:
    emit = EventFactory()
    cancelled = emit.started(), Until("cancel"), emit.result(pb.OUTCOME_CANCELLED, tree_confirmed_dead=True)
    fake = FakeAdapter(cancelled)
    async with client_of(fake) as client, client.execute(execute_request("fake")) as run:
        cancelling = asyncio.ensure_future(run.cancel(grace_s=2.5, reason="enough"))
        assert kinds(await collect(run)) == ["started", "result"]
        response = await cancelling
    assert response.outcome == pb.OUTCOME_CANCELLED
    assert response.tree_confirmed_dead
    [sent] = fake.requests("Cancel")
    assert (sent.run_id, sent.adapter, sent.reason) == (run.run_id, "fake", "enough")
    assert sent.grace.ToMilliseconds() == 2500


async def test_respond_names_the_run_and_the_request() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), Until("respond"), emit.succeeded()])
    async with client_of(fake) as client, client.execute(execute_request("fake")) as run:
        await run.respond("r1", pb.InputAnswer(option_ids=["allow"]), responder="me")
        await run.wait()
    [sent] = fake.requests("Respond")
    assert (sent.run_id, sent.request_id, sent.responder) == (run.run_id, "r1", "me")
    assert list(sent.answer.option_ids) == ["allow"]


async def test_a_quiet_run_whose_streams_are_cut_again_and_again_is_not_abandoned() -> None:
    emit = EventFactory()
    beat = emit.ephemeral(heartbeat=pb.Heartbeat())
    cut = Fail.bare(grpc.StatusCode.UNAVAILABLE)
    fake = FakeAdapter([emit.started(), cut], [beat, cut], [beat, cut], [emit.succeeded()])
    time = 0.0
    async with client_of(fake) as client:
        run = client.execute(execute_request("fake"))
        run._calls._policy = ReconnectPolicy(5, lambda: time)
        async for _event in run:
            time += 4  # never 5 without a sign of life
    assert fake.names == ["Execute", "Attach", "Attach", "Attach"]
