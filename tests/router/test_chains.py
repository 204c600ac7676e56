"""What comes of a run that an adapter in its chain cannot have, or that no other may follow, and how it is told."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.v1 import event_pb2
from google.protobuf import duration_pb2

from tests.router.harness import Stream, config, manifest, routing
from tests.router.test_fallback import AUTH, WORKS, among, durable, notices, request, told

SPAWN, LIMITED = event_pb2.FAILURE_KIND_SPAWN_FAILED, event_pb2.FAILURE_KIND_RATE_LIMITED


@pytest.mark.parametrize("on", [(SPAWN,), (LIMITED, AUTH)])
async def test_a_first_adapter_that_cannot_be_started_is_passed_over_where_the_request_names_that(
    folder: Path, on: Sequence[Any]
) -> None:
    named = [manifest(folder, "one", command=[str(folder / "nothing")]), manifest(folder, "two")]
    async with routing(config(folder, manifests=tuple(named))) as (_router, caller):
        asked = request({"one": [WORKS], "two": [WORKS]}, "nobody", "two", on=on)
        if SPAWN not in on:
            assert (await Stream(caller.adapter.Execute(asked)).error()).reason is Reason.ADAPTER_UNAVAILABLE
            return
        events = await told(caller, asked)
        assert durable(events) == ["started", "text:b", "result"]
        assert notices(events) == ["fallback_refused", "adapter_skipped"]
        asked = request({"one": [WORKS]}, "nobody", on=on, run_id="s")
        assert (await Stream(caller.adapter.Execute(asked)).error()).reason is Reason.ADAPTER_UNAVAILABLE


@pytest.mark.parametrize("on", [(LIMITED,), (SPAWN, AUTH)])
@pytest.mark.parametrize("wait_ns", [0, 50_000_000])
async def test_a_first_adapter_without_a_place_is_passed_over_where_the_request_names_that(
    folder: Path, on: Sequence[Any], wait_ns: int
) -> None:
    async with among(folder, ("one", "two"), max_runs={"one": 1}) as (caller, sidecars):
        busy = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}]]}, run_id="busy")))
        await busy.until("started")
        asked = request({"one": [WORKS], "two": [WORKS]}, "two", on=on)
        asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(nanos=wait_ns))
        if LIMITED in on:
            events = await told(caller, asked)
            assert durable(events) == ["started", "text:b", "result"]
            assert notices(events) == ["adapter_skipped"]
            assert [event.state.phase for event in events if event.HasField("state")] == [1] * bool(wait_ns)
        elif not wait_ns:
            assert (await Stream(caller.adapter.Execute(asked)).error()).reason is Reason.TOO_MANY_RUNS
        assert len(sidecars["one"].requests("Execute")) == 1
