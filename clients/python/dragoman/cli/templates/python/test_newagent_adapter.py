"""The adapter's test: the real program, through the contract, and what every event stream must keep."""

from pathlib import Path

from dragoman.client import Client, execute_request
from dragoman.sdk import AdapterServer
from dragoman.testkit.streams import check_stream
from dragoman.v1 import event_pb2 as pb
from newagent_adapter import adapter

AGENT = str(Path(__file__).with_name("newagent"))


async def test_a_run_succeeds_and_reports(tmp_path: Path) -> None:
    server = AdapterServer(adapter(), [f"unix:{tmp_path}/newagent.sock"])
    await server.start()
    try:
        async with Client(server.addresses[0]) as client:
            request = execute_request("newagent", "Hello.", cwd=str(tmp_path), config={"command": AGENT})
            async with client.execute(request) as run:
                events = [event async for event in run]
    finally:
        await server.stop()
    check_stream(events)
    assert [event.tool_call.name for event in events if event.HasField("tool_call")] == ["list"]
    assert run.result is not None
    assert run.result.outcome == pb.OUTCOME_SUCCEEDED
    assert run.result.summary == "Read a prompt of 6 bytes."
    assert run.result.tree_confirmed_dead
