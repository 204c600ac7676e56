"""The adapter's test: the real program, through the contract, and what every event stream must keep."""

from pathlib import Path

from dragoman.client import Client, execute_request
from dragoman.sdk import AdapterServer
from dragoman.testkit.streams import check_stream
from dragoman.v1 import event_pb2 as pb
from scribe_adapter import adapter  # type: ignore[import-not-found, unused-ignore]

SCRIBE = str(Path(__file__).with_name("scribe"))


async def test_a_run_writes_and_reports(tmp_path: Path) -> None:
    server = AdapterServer(adapter(), [f"unix:{tmp_path}/scribe.sock"])
    await server.start()
    try:
        async with Client(server.addresses[0]) as client:
            request = execute_request("scribe", "Buy milk.", cwd=str(tmp_path), config={"command": SCRIBE})
            async with client.execute(request) as run:
                events = [event async for event in run]
    finally:
        await server.stop()
    check_stream(events)
    assert run.result is not None
    assert run.result.outcome == pb.OUTCOME_SUCCEEDED
    assert run.result.summary == "Noted."
    assert run.result.tree_confirmed_dead
    assert (tmp_path / "NOTES.md").read_text() == "Buy milk.\n"
