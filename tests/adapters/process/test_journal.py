"""What the fake agent journalled equals what the client received: through its pipe, its sidecar and the client."""

import asyncio
from pathlib import Path

import pytest
from dragoman.client import Client
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.process.arena import SECRETS, Arena, duration
from tests.adapters.process.journal import journalled, read_journal, received
from tests.sdk.serving import DEADLINE_S

# Characters that have broken line splitters, decoders and JSON parsers; none that cannot be an argument.
TEXT = st.text(alphabet=st.sampled_from(list("ab {}[]\"'\\,:%$=é€\U0001f600\u2028\u2029\u0085\ufeff\t")), max_size=40)
PLAIN = st.sampled_from(["out", "err"])
TYPED = st.sampled_from(["answer", "piece", "piece", "thinking", "user", "system", "tool", "out", "err"])
NOISE = st.sampled_from(["raw=", "flood=3", "long=70000", "answer=$ENV_SECRET", "piece=$ENV_SECRET"])


def steps(words: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Draw what an agent says, in order."""
    step = st.builds(lambda word, text: f"{word}={text}".replace("=$", "= $"), words, TEXT)
    return st.lists(step, max_size=25)


async def compare(arena: Arena, script: list[str], output: str) -> None:
    """Run the agent, read it with the client, and compare."""
    arena.journal.unlink(missing_ok=True)
    request = arena.agent(*script, output=output)
    async with Client(arena.sidecar.address) as client, client.execute(request) as run:
        events = [event async for event in run]
    check_stream(events, secrets=SECRETS)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    expected = journalled(read_journal(arena.journal)) if script else {"stdout": [], "stderr": []}
    for stream, entries in expected.items():
        expected[stream] = [one._replace(text=one.text.replace(SECRETS[1], "[redacted]")) for one in entries]
    assert received(events) == expected


through = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@through
@given(script=steps(PLAIN))
async def test_lines(arena: Arena, script: list[str]) -> None:
    await compare(arena, script, "text")


@through
@given(script=steps(TYPED), noise=st.lists(NOISE, max_size=3))
async def test_json_lines_amid_noise(arena: Arena, script: list[str], noise: list[str]) -> None:
    mixed = [step for pair in zip(script, [*noise, *[""] * len(script)], strict=False) for step in pair if step]
    await compare(arena, [*mixed, "result=ok"], "jsonl")


@pytest.mark.parametrize("how", ["kill=9", "exit=0", "hang"])
async def test_whatever_ends_it_what_was_received_is_a_prefix_of_what_was_written(arena: Arena, how: str) -> None:
    request = arena.agent("flood=2000", "out=ready", how)
    stream = arena.begin(request)
    run_id = (await stream.until("started")).run_id
    if how == "hang":
        await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(0)), timeout=DEADLINE_S)
    events = await asyncio.wait_for(stream.rest(), DEADLINE_S)
    written, got = journalled(arena.entries()), received(events)
    for name, lines in got.items():
        complete = lines if lines == written[name] else lines[:-1]  # the last may have been cut by the end
        assert complete == written[name][: len(complete)]
    if how != "hang":
        assert {name: len(lines) for name, lines in got.items()} == {"stdout": 2001, "stderr": 2000}


def test_a_journal_that_was_cut_is_read_to_its_last_whole_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"is": "log", "stream": "stdout", "n": 1, "text": "a"}\n{"is": "lo')
    assert len(read_journal(path)) == 1
