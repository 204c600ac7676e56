"""What the router decides, without a process or a socket."""

import ast
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.identity import is_adapter_type
from dragoman.protocol.order import EPHEMERAL_ALLOWED
from dragoman.protocol.wire import KIND_BY_FIELD
from dragoman.router import _domain
from dragoman.router._domain.admission import admission_problem
from dragoman.router._domain.backoff import LONGEST_DELAY_S, STEADY_AFTER_S, Backoff
from dragoman.router._domain.conduct import ProtocolViolationError
from dragoman.router._domain.detection import CachedDetection, FileMark
from dragoman.router._domain.directory import AdapterSpec, Directory, LaunchSpec
from dragoman.router._domain.paging import PAGE_BYTES, PageTokenError, fitting, page
from dragoman.router._domain.runs import Retention, RunRecord, lost
from dragoman.router._local.detection_file import DetectionFile
from dragoman.router._local.sources import entry_point_specs
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

names = st.sampled_from(["a", "b", "c", "d_1", "Bad Name"])


def launched(name: str, *aliases: str) -> AdapterSpec:
    return AdapterSpec(name, router_pb2.ADAPTER_SOURCE_MANIFEST, aliases, LaunchSpec(("x",)))


def dialed(address: str) -> AdapterSpec:
    return AdapterSpec(address, router_pb2.ADAPTER_SOURCE_ADDRESS, address=address)


def says(name: str, *aliases: str, revision: int = 1, instance_id: str = "i") -> adapter_pb2.DescribeResponse:
    return adapter_pb2.DescribeResponse(adapter=name, aliases=aliases, revision=revision, instance_id=instance_id)


class Names(RuleBasedStateMachine):
    """Whoever comes and says whatever: a name has one owner, and nobody loses a name to a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Directory()
        self.owned: dict[str, object] = {}

    @rule(name=names, aliases=st.lists(names, max_size=2))
    def configure(self, name: str, aliases: list[str]) -> None:
        self.directory.add(launched(name, *aliases))

    @rule(address=st.sampled_from(["unix:/1", "unix:/2"]))
    def dial(self, address: str) -> None:
        self.directory.add(dialed(address))

    @rule(data=st.data(), name=names, aliases=st.lists(names, max_size=2), revision=st.integers(0, 1))
    def learn(self, data: st.DataObject, name: str, aliases: list[str], revision: int) -> None:
        if not self.directory.records:
            return
        record = data.draw(st.sampled_from(self.directory.records))
        others = {one: self.directory.find(one) for one in ("a", "b", "c", "d_1")}
        before = record.names
        refusal = self.directory.learn(record, says(name, *aliases, revision=revision))
        for one, owner in others.items():
            if owner is not None and owner is not record:
                assert self.directory.find(one) is owner
        if refusal:
            assert record.is_refused
            assert record.names == before
        else:
            assert record.names >= {name, *aliases}
            assert is_adapter_type(name)

    @invariant()
    def every_name_has_one_owner_that_knows_of_it(self) -> None:
        claimed = [name for record in self.directory.records for name in record.names]
        assert len(claimed) == len(set(claimed))
        for record in self.directory.records:
            assert all(self.directory.find(name) is record for name in record.names)

    @invariant()
    def all_are_listed_and_refused_ones_say_why(self) -> None:
        entries = self.directory.entries()
        assert len(entries) == len(self.directory.records)
        for entry in entries:
            assert bool(entry.reason) == (entry.state == router_pb2.ADAPTER_STATE_REFUSED)


TestNames = Names.TestCase


def test_a_claim_that_fails_takes_nothing() -> None:
    directory = Directory([launched("one"), launched("two", "free", "one")])
    assert directory.records[1].is_refused
    assert directory.find("free") is None
    assert directory.find("two") is None


@pytest.mark.parametrize(
    ("description", "told"),
    [
        (says("other"), "configured as 'one' and calls itself 'other'"),
        (says(""), "Describe left `adapter` empty"),
        (says("one", revision=0), "Describe left `revision` empty"),
        (says("one", instance_id=""), "Describe left `instance_id` empty"),
        (says("one", ""), "alias ''"),
        (says("one", "x" * 200), "longer than 128"),
        (says("One"), "a type is"),
        (says("one", "two"), "'two' belongs to the adapter 'two'"),
    ],
)
def test_descriptions_that_cannot_be_used(description: adapter_pb2.DescribeResponse, told: str) -> None:
    directory = Directory([launched("one"), launched("two")])
    record = directory.records[0]
    assert told in directory.learn(record, description)
    # Its own name still leads to it, and so to the reason.
    assert directory.find("one") is record


def test_near_names_are_one_for_each_adapter() -> None:
    directory = Directory([launched("claude_code", "claude_local"), launched("codex")])
    assert directory.near("claude") == ["claude_code"]
    assert directory.near("zzz") == []


def test_backoff_grows_and_is_bounded_and_forgets_after_a_steady_time() -> None:
    backoff = Backoff()
    waits = []
    for _ in range(40):
        backoff = backoff.failed(100.0, 0.999999)
        waits.append(backoff.wait_s(100.0))
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.25, rel=1e-3)
    assert waits[1] == pytest.approx(0.5, rel=1e-3)
    assert waits[-1] <= LONGEST_DELAY_S
    assert backoff.failures == 40
    again = backoff.failed(200.0, 0.0, ready_since=200.0 - STEADY_AFTER_S)
    assert again.failures == 1
    assert again.wait_s(200.0) == pytest.approx(0.125)
    assert again.wait_s(300.0) == 0.0
    assert backoff.failed(200.0, 0.0, ready_since=199.0).failures == 41


@given(
    st.lists(st.integers(), unique=True, max_size=30),
    st.integers(1, 7),
    st.sets(st.integers(0, 29)),
)
def test_pages_show_everything_once_whatever_is_removed_meanwhile(
    numbers: list[int], size: int, removed: set[int]
) -> None:
    items = sorted(numbers)
    seen: list[int] = []
    token = ""
    left = items
    while True:
        shown, token = page(left, lambda number: [number], size=size, token=token)
        seen += shown
        if not token:
            break
        left = [item for place, item in enumerate(items) if place not in removed]
    assert seen == sorted(set(seen))
    assert {item for place, item in enumerate(items) if place not in removed} <= set(seen)


@pytest.mark.parametrize(
    ("seconds", "nanos", "is_refused"), [(0, 0, False), (3600, 0, False), (3600, 1, True), (0, -1, True)]
)
def test_a_wait_for_a_place_is_an_hour_at_most(seconds: int, nanos: int, is_refused: bool) -> None:
    wait = duration_pb2.Duration(seconds=seconds, nanos=nanos)
    problem = admission_problem(adapter_pb2.ExecuteRequest(admission=adapter_pb2.Admission(longest_wait=wait)))
    assert (problem is not None) is is_refused
    assert problem is None or problem[0] == "admission.longest_wait"


@pytest.mark.parametrize(
    ("lengths", "shown"),
    [([], 0), ([10] * 4, 4), ([PAGE_BYTES // 2] * 4, 1), ([PAGE_BYTES // 4] * 9, 3), ([2 * PAGE_BYTES, 1], 1)],
)
def test_a_page_has_what_one_message_has_room_for_and_never_nothing(lengths: list[int], shown: int) -> None:
    entries = [event_pb2.Text(item_id=str(place), delta="x" * length) for place, length in enumerate(lengths)]
    assert fitting(entries) == entries[:shown]


@pytest.mark.parametrize("token", ["x", "e30=", "bm8=", "WyJhIl0=", b64encode(b"[" * 100_000).decode()])
def test_foreign_page_tokens_are_refused(token: str) -> None:
    with pytest.raises(PageTokenError):
        page([1, 2], lambda number: [number], size=1, token=token)


def event(sequence: int, kind: str, attempt: int = 1, **fields: Any) -> tuple[event_pb2.AgentEvent, int]:
    made = event_pb2.AgentEvent(sequence=sequence, run_id="r", attempt=attempt, **fields)
    getattr(made, kind).SetInParent()
    if kind == "result":
        made.result.outcome = event_pb2.OUTCOME_SUCCEEDED
    return made, made.ByteSize()


def record() -> RunRecord:
    return RunRecord("r", "fake", 1, accepted_at=100.0)


def test_a_record_follows_a_run() -> None:
    run = record()
    course = [("started", 1), ("text", 1), ("attempt_ended", 1), ("started", 2), ("usage", 2), ("result", 2)]
    for number, (kind, attempt) in enumerate(course, start=1):
        assert run.take(*event(number, kind, attempt), 101.0)
        # What another stream brings once more is passed over.
        run.conduct.listen()
        assert not run.take(*event(number, kind, attempt), 101.0)
    assert run.attempt == 2
    assert run.is_over
    assert run.finished_at == 101.0


def test_a_stream_opened_again_may_repeat_but_not_turn_back() -> None:
    run = record()
    for number, kind in enumerate(["started", "text", "text"], start=1):
        assert run.take(*event(number, kind), 101.0)
    run.conduct.listen()
    assert not run.take(*event(2, "text"), 101.0)
    assert not run.take(*event(3, "text"), 101.0)
    assert run.take(*event(4, "text"), 101.0)
    with pytest.raises(ProtocolViolationError, match="sequence 4 came after 4 in one stream"):
        run.take(*event(4, "text"), 101.0)


@pytest.mark.parametrize(
    ("course", "told"),
    [
        ([("started", 0)], "started (sequence 1) is of attempt 0 where 1 is due"),
        ([("started", 2)], "of attempt 2 where 1 is due"),
        ([("started", 1), ("attempt_ended", 1), ("started", 1)], "of attempt 1 where 2 is due"),
        ([("started", 1), ("attempt_ended", 1), ("result", 2)], "of attempt 2 where 1 is due"),
    ],
)
def test_attempts_are_counted(course: list[tuple[str, int]], told: str) -> None:
    run = record()
    for number, (kind, attempt) in enumerate(course[:-1], start=1):
        run.take(*event(number, kind, attempt), 101.0)
    with pytest.raises(ProtocolViolationError, match=re.escape(told)):
        run.take(*event(len(course), *course[-1]), 101.0)


def test_what_may_come_without_a_sequence() -> None:
    run = record()
    for kind in KIND_BY_FIELD.values():
        made, size = event(0, kind)
        if kind in EPHEMERAL_ALLOWED:
            run.conduct.ephemeral(made, kind, size)
        else:
            with pytest.raises(ProtocolViolationError, match=f"{kind} came without a sequence"):
                run.conduct.ephemeral(made, kind, size)
    # A body of a later revision may be anything.
    run.conduct.ephemeral(event_pb2.AgentEvent(), None, 0)


@pytest.mark.parametrize(("first", "last"), [(3, 9), (2, 1)])
def test_a_gap_names_all_that_is_left_out(first: int, last: int) -> None:
    run = record()
    run.take(*event(1, "started"), 101.0)
    with pytest.raises(ProtocolViolationError, match=f"a gap from {first} to {last} came after 1"):
        run.skip(event_pb2.Gap(from_sequence=first, to_sequence=last))


@pytest.mark.parametrize(
    ("told", "kinds"),
    [
        ("out of order", ["text"]),
        ("out of order", ["started", "started"]),
        ("out of order", ["started", "attempt_ended", "text"]),
        ("out of order", ["started", "result", "text"]),
        ("before started", ["result"]),
    ],
)
def test_a_record_refuses_what_is_out_of_order(told: str, kinds: list[str]) -> None:
    run = record()
    for number, kind in enumerate(kinds[:-1], start=1):
        run.take(*event(number, kind), 101.0)
    with pytest.raises(ProtocolViolationError, match=told):
        run.take(*event(len(kinds), kinds[-1]), 101.0)


def test_after_a_gap_anything_but_a_hole_is_possible() -> None:
    for kind in ("text", "started", "attempt_ended", "result"):
        run = record()
        run.take(*event(1, "started"), 101.0)
        run.skip(event_pb2.Gap(from_sequence=2, to_sequence=9))
        assert run.take(*event(10, kind, attempt=3), 101.0)
    back = record()
    back.take(*event(1, "started"), 101.0)
    back.skip(event_pb2.Gap(from_sequence=2, to_sequence=9))
    with pytest.raises(ProtocolViolationError, match="attempt 0"):
        back.take(*event(10, "text", attempt=0), 101.0)
    torn = record()
    torn.take(*event(1, "started"), 101.0)
    with pytest.raises(ProtocolViolationError, match="without a gap"):
        torn.take(*event(3, "text"), 101.0)


def test_a_router_may_end_a_run_that_never_began() -> None:
    run = record()
    sequence, data = run.end(lost(event_pb2.FAILURE_KIND_ADAPTER_LOST, "c", "m"), 103.5)
    made = event_pb2.AgentEvent.FromString(data)
    assert sequence == made.sequence == 1
    assert made.result.duration.ToNanoseconds() == 3_500_000_000
    assert made.time.ToNanoseconds() == 103_500_000_000
    # No adapter may: behind an address is one adapter and no other router.
    with pytest.raises(ProtocolViolationError, match="claims to be a router's"):
        record().take(*event(1, "result", origin=event_pb2.EVENT_ORIGIN_ROUTER), 101.0)


def test_a_record_keeps_the_last_remarks() -> None:
    run = record()
    for number in range(60):
        run.remark(str(number))
    assert run.remarks == [str(number) for number in range(10, 60)]


def test_a_record_counts_a_remark_that_is_made_again() -> None:
    run = record()
    assert [run.remark(text) for text in ("a", "b", "a", "a")] == [True, True, False, False]
    assert run.remarks == ["a (3 times)", "b"]


def finished(run_id: str, at: float) -> RunRecord:
    made = RunRecord(run_id, "fake", 1, accepted_at=0.0)
    made.finished_at = at
    return made


@pytest.mark.parametrize(
    ("retention", "forgotten"),
    [
        (Retention(10, 100, 1000), {"old"}),
        (Retention(1000, 2, 1000), {"old", "c"}),
        (Retention(1000, 100, 25), {"old", "c"}),
        (Retention(1000, 100, 5), {"old", "c", "b", "a"}),
        (Retention(1000, 100, 1000), set()),
    ],
)
def test_what_is_forgotten_first(retention: Retention, forgotten: set[str]) -> None:
    runs = [(finished("old", 1), 10), (finished("c", 92), 10), (finished("b", 93), 10), (finished("a", 94), 10)]
    assert set(retention.to_forget(runs, 100.0)) == forgotten


def test_a_clock_that_goes_back_does_not_keep_findings_for_ever() -> None:
    entry = CachedDetection(1000.0, "1", FileMark(1, 2), b"")
    assert entry.is_fresh(1001.0, 10.0, "1", FileMark(1, 2), "")
    assert not entry.is_fresh(999.0, 10.0, "1", FileMark(1, 2), "")
    assert not entry.is_fresh(1010.0, 10.0, "1", FileMark(1, 2), "")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    )
)
def test_whatever_is_in_the_cache_is_read_or_ignored(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    import json

    path = tmp_path_factory.mktemp("cache") / "detections.json"
    path.write_text(json.dumps({"format": 1, "entries": value}))
    assert DetectionFile(path).load() == {}
    path.write_text(json.dumps({"format": 1, "entries": {"fake": value}}))
    assert DetectionFile(path).load() == {}
    path.write_text(json.dumps(value))
    assert DetectionFile(path).load() == {}


def test_entry_points_are_named_and_never_imported() -> None:
    good, bad = entry_point_specs(["my_agent", "my-agent"])[::-1]
    assert good.launch is not None
    assert good.launch.command[-3:] == ("adapter", "serve", "my_agent")
    assert "must be a type" in bad.problem
    assert {spec.name for spec in entry_point_specs()} >= {"process", "claude_code"}


def test_the_domain_knows_neither_grpc_nor_asyncio_nor_adapters() -> None:
    folder = Path(str(_domain.__file__)).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in found} & {"grpc", "asyncio", "time", "random", "os"}, path


def test_the_router_imports_no_adapter_and_no_sdk() -> None:
    root = Path(str(_domain.__file__)).parent.parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in found:
                assert not name.startswith(("dragoman.sdk", "dragoman.adapters", "dragoman.client")), path
