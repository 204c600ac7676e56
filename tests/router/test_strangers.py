"""Adapters written with nothing of ours: what the router makes of their statuses and streams."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from tests.router.harness import PATIENCE_S, Caller, config, failure, routing


def started(run_id: str) -> bytes:
    """Return the first event of a run."""
    event = event_pb2.AgentEvent(sequence=1, run_id=run_id, attempt=1, started=event_pb2.Started())
    return event.SerializeToString()


@contextlib.asynccontextmanager
async def stranger(folder: Path, **methods: Any) -> AsyncIterator[Caller]:
    """A router of an adapter that is written with nothing of ours: without our error boundary, without health."""

    async def describe(_request: bytes, _context: Any) -> bytes:
        return pb.DescribeResponse(adapter="plain", revision=1, instance_id="i").SerializeToString()

    plain = grpc.aio.server()
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: stream(method) if name in {"Execute", "Attach"} else unary(method)
        for name, method in {"Describe": describe, **methods}.items()
    }
    plain.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("dragoman.v1.AdapterService", handlers),))
    address = f"unix:{folder}/a.sock"
    plain.add_insecure_port(address)
    await plain.start()
    try:
        async with routing(config(folder, addresses=(address,))) as (_router, caller):
            await caller.until("plain", router_pb2.ADAPTER_STATE_READY)
            yield caller
    finally:
        await plain.stop(0)


async def test_the_text_of_an_exception_is_not_passed_on(folder: Path) -> None:
    async def fail(_request: bytes, _context: Any) -> bytes:
        raise RuntimeError("sk-secret")

    async with stranger(folder, ListModels=fail) as caller:
        error = await failure(caller.adapter.ListModels(pb.ListModelsRequest(adapter="plain")))
        assert "sk-secret" not in error.message
        assert error.reason is Reason.INTERNAL
        assert error.metadata == {"adapter_code": "UNKNOWN"}
        # A method that is not served is recognised nevertheless.
        unserved = await failure(caller.adapter.ListSkills(pb.ListSkillsRequest(adapter="plain")))
        assert unserved.reason is Reason.NOT_IMPLEMENTED
        assert unserved.metadata == {"adapter_code": "UNIMPLEMENTED"}
        assert "Method not found" not in unserved.message


@pytest.mark.parametrize(
    ("code", "foreign", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, False, Reason.INTERNAL),
        (grpc.StatusCode.INVALID_ARGUMENT, True, Reason.INTERNAL),
        (grpc.StatusCode.NOT_FOUND, False, Reason.INTERNAL),
        (grpc.StatusCode.UNAVAILABLE, False, Reason.ADAPTER_UNAVAILABLE),
    ],
)
async def test_only_statuses_in_the_contracts_words_are_passed_on(
    folder: Path, code: grpc.StatusCode, foreign: bool, reason: Reason
) -> None:
    text = "Traceback (most recent call last): KeyError"

    async def refuse(_request: bytes, context: Any) -> Any:
        status = status_pb2.Status(code=code.value[0], message=text)
        if foreign:
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason="INVALID_REQUEST", domain="elsewhere"))
        await context.abort_with_status(rpc_status.to_status(status))

    async with stranger(folder, Execute=refuse, ListModels=refuse, Detect=refuse) as caller:
        error = await failure(caller.adapter.ListModels(pb.ListModelsRequest(adapter="plain")))
        assert error.reason is reason
        assert "KeyError" not in str(error)
        if reason is Reason.INTERNAL:
            assert error.metadata == {"adapter_code": code.name}
            assert not any("elsewhere" in str(detail) for detail in error.details)
            assert code.name in error.message
            executed = await caller.execute("plain").error()
            assert executed.reason is reason
            assert executed.metadata == {"adapter_code": code.name}
            assert "KeyError" not in str(executed)
        found = await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        assert "KeyError" not in str(found)


async def test_a_deadline_that_the_adapter_misses_is_reported_in_our_words(folder: Path) -> None:
    async def dawdle(_request: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with stranger(folder, ListModels=dawdle) as caller:
        error = await failure(caller.adapter.ListModels(pb.ListModelsRequest(adapter="plain"), timeout=0.3))
        assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED


def beginning(then: Any) -> Any:
    """Return an Execute that starts a run and goes on like this."""

    async def execute(request: bytes, context: Any) -> None:
        run_id = pb.ExecuteRequest.FromString(request).run_id
        await context.write(started(run_id))
        await then(context)

    return execute


async def test_a_stream_that_breaks_and_cannot_be_followed_again_says_why_it_broke(
    folder: Path,
) -> None:
    async def fail(context: Any) -> None:
        await context.abort(grpc.StatusCode.INTERNAL, "sk-secret")

    with structlog.testing.capture_logs() as logs:
        async with stranger(folder, Execute=beginning(fail)) as caller:
            events = await caller.execute("plain", run_id="r").rest()
            message = events[-1].result.failure.message
            assert "does not implement Attach (UNIMPLEMENTED)" in message
            assert "its stream broke (INTERNAL)" in message
            assert events[-1].result.outcome == event_pb2.OUTCOME_LOST
            assert "(INTERNAL)" in (await caller.run("r")).run.remarks[0]
    assert [line["cause"] for line in logs if line.get("code") == "adapter_stream_broken"] == ["INTERNAL"]
    assert "sk-secret" not in f"{logs} {events}"


def ending(run_id: str, sequence: int, outcome: event_pb2.Outcome.ValueType) -> bytes:
    result = event_pb2.Result(outcome=outcome)
    event = event_pb2.AgentEvent(sequence=sequence, run_id=run_id, attempt=1, result=result)
    return event.SerializeToString()


async def test_a_failure_that_does_not_say_why_breaks_the_contract(folder: Path) -> None:
    async def fail(context: Any) -> None:
        await context.write(ending("r", 2, event_pb2.OUTCOME_FAILED))

    async with stranger(folder, Execute=beginning(fail)) as caller:
        failure = (await caller.execute("plain", run_id="r").rest())[-1].result.failure
        assert failure.code == "adapter_protocol_violation"
        assert "outcome OUTCOME_FAILED but no `failure`" in failure.message


async def test_a_second_result_changes_nothing_and_is_remarked(folder: Path) -> None:
    async def twice(context: Any) -> None:
        await context.write(ending("r", 2, event_pb2.OUTCOME_SUCCEEDED))
        await context.write(ending("r", 3, event_pb2.OUTCOME_CANCELLED))

    with structlog.testing.capture_logs() as logs:
        async with stranger(folder, Execute=beginning(twice)) as caller:
            events = await caller.execute("plain", run_id="r").rest()
            # The remark may reach the reader before the result does, which is written down first.
            outcomes = [event.result.outcome for event in events if event.HasField("result")]
            assert outcomes == [event_pb2.OUTCOME_SUCCEEDED]
            async with asyncio.timeout(PATIENCE_S):
                while not (await caller.run("r")).run.remarks:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
            (remark,) = (await caller.run("r")).run.remarks
            assert remark == "Adapter 'plain' violated the protocol: it sent an event after the result."
    assert [line["log_level"] for line in logs if line.get("code") == "adapter_protocol_violation"] == ["warning"]


async def test_an_event_that_is_too_large_to_be_received_breaks_the_contract(folder: Path) -> None:
    async def boast(context: Any) -> None:
        await context.write(bytes(20 * 2**20))

    async with stranger(folder, Execute=beginning(boast)) as caller:
        events = await caller.execute("plain").rest()
        assert events[-1].result.failure.code == "adapter_protocol_violation"
        assert "an event of over 17 MiB" in events[-1].result.failure.message
