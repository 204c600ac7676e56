"""What the router decides, without a process or a socket."""

import re
from base64 import b64encode
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import is_adapter_type
from dragoman.protocol.order import EPHEMERAL_ALLOWED, OrderChecker
from dragoman.protocol.wire import KIND_BY_FIELD
from dragoman.router.adapters.detection import CachedDetection, FileMark
from dragoman.router.adapters.detection_file import DetectionFile
from dragoman.router.adapters.discovery import entry_point_specs
from dragoman.router.adapters.launch_spec import LaunchSpec
from dragoman.router.adapters.registry import AdapterRegistry
from dragoman.router.adapters.restart_delay import LONGEST_DELAY_S, STEADY_AFTER_S, RestartDelay
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.router.api.paging import PAGE_BYTES, fitting, page
from dragoman.router.model.retention import RetainedRuns
from dragoman.router.model.run_record import RunRecord, lost_result
from dragoman.router.model.stream_validator import ProtocolViolationError
from dragoman.router.policy.concurrency import admission_problem
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

names = st.sampled_from(["a", "b", "c", "d_1", "Bad Name"])


def launched(name: str, *aliases: str) -> AdapterSpec:
    return AdapterSpec(name, Source.MANIFEST, aliases, LaunchSpec(("x",)))


def dialed(address: str) -> AdapterSpec:
    return AdapterSpec(address, Source.ADDRESS, address=address)


def schema(text: str) -> adapter_pb2.DescribeResponse:
    description = says("one")
    description.config_schema_json = text
    return description


def says(name: str, *aliases: str, revision: int = 1, instance_id: str = "i") -> adapter_pb2.DescribeResponse:
    return adapter_pb2.DescribeResponse(adapter=name, aliases=aliases, revision=revision, instance_id=instance_id)


class Names(RuleBasedStateMachine):
    """Whatever adapters come and declare: a name has one owner, and no adapter loses a name to a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = AdapterRegistry()
        self.owned: dict[str, object] = {}

    @rule(name=names, aliases=st.lists(names, max_size=2))
    def configure(self, name: str, aliases: list[str]) -> None:
        self.directory.add(launched(name, *aliases))

    @rule(address=st.sampled_from(["unix:/1", "unix:/2"]))
    def dial(self, address: str) -> None:
        self.directory.add(dialed(address))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if not self.directory.records:
            return
        record = data.draw(st.sampled_from(self.directory.records))
        self.directory.remove(record)
        assert record not in self.directory.records
        for name in record.names:
            assert self.directory.find(name) is not record

    @invariant()
    def no_free_name_is_refused(self) -> None:
        for record in self.directory.records:
            if record.is_rejected and not record.names and record.spec.launch is not None:
                claimed = {record.spec.name, *record.spec.aliases}
                assert any(self.directory.find(name) is not None for name in claimed)

    @rule(data=st.data(), name=names, aliases=st.lists(names, max_size=2), revision=st.integers(0, 1))
    def learn(self, data: st.DataObject, name: str, aliases: list[str], revision: int) -> None:
        if not self.directory.records:
            return
        record = data.draw(st.sampled_from(self.directory.records))
        others = {one: self.directory.find(one) for one in ("a", "b", "c", "d_1")}
        before = record.names
        refusal = self.directory.describe(record, says(name, *aliases, revision=revision))
        for one, owner in others.items():
            if owner is not None and owner is not record:
                assert self.directory.find(one) is owner
        if refusal:
            assert record.is_rejected
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
        entries = [record.entry() for record in self.directory.by_type()]
        assert len(entries) == len(self.directory.records)
        for entry in entries:
            assert bool(entry.reason) == (entry.state == router_pb2.ADAPTER_STATE_REFUSED)


TestNames = Names.TestCase


def test_a_claim_that_fails_takes_nothing() -> None:
    directory = AdapterRegistry([launched("one"), launched("two", "free", "one")])
    assert directory.records[1].is_rejected
    assert directory.find("free") is None
    assert directory.find("two") is None


@pytest.mark.parametrize(
    ("description", "reported"),
    [
        (says("other"), "configured as 'one', but its DescribeResponse says 'other'"),
        (says(""), "its DescribeResponse has no `adapter`"),
        (says("one", revision=0), "its DescribeResponse has no `revision`"),
        (says("one", instance_id=""), "its DescribeResponse has no `instance_id`"),
        (schema("{"), "`config_schema_json` is not JSON"),
        (schema("[" * 100_000), "`config_schema_json` is not JSON"),
        (schema("[]"), "`config_schema_json` is not a JSON object"),
        (says("one", ""), "alias ''"),
        (says("one", "x" * 200), "longer than 128"),
        (says("One"), "a type matches"),
        (says("one", "two"), "'two' is already used by adapter 'two'"),
    ],
)
def test_descriptions_that_cannot_be_used(description: adapter_pb2.DescribeResponse, reported: str) -> None:
    directory = AdapterRegistry([launched("one"), launched("two")])
    record = directory.records[0]
    assert reported in directory.describe(record, description)
    # Its own name still leads to it, and so to the reason.
    assert directory.find("one") is record


def test_near_names_are_one_for_each_adapter() -> None:
    directory = AdapterRegistry([launched("claude_code", "claude_local"), launched("codex")])
    assert directory.similar_names("claude") == ["claude_code"]
    assert directory.similar_names("zzz") == []


def test_backoff_grows_and_is_bounded_and_forgets_after_a_steady_time() -> None:
    backoff = RestartDelay()
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


@pytest.mark.parametrize(("seconds", "nanos", "is_refused"), [(0, 0, False), (3600, 0, False), (3600, 1, True)])
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
    with pytest.raises(DragomanError, match="page token"):
        page([1, 2], lambda number: [number], size=1, token=token)


def event(sequence: int, kind: str, attempt: int = 1, **fields: Any) -> tuple[event_pb2.AgentEvent, int]:
    message = event_pb2.AgentEvent(sequence=sequence, run_id="r", attempt=attempt, **fields)
    getattr(message, kind).SetInParent()
    if kind == "result":
        message.result.outcome = event_pb2.OUTCOME_SUCCEEDED
    return message, message.ByteSize()


def record() -> RunRecord:
    return RunRecord("r", "fake", accepted_at=100.0)


def test_a_record_follows_a_run() -> None:
    run = record()
    course = [("started", 1), ("text", 1), ("attempt_ended", 1), ("started", 2), ("usage", 2), ("result", 2)]
    for number, (kind, attempt) in enumerate(course, start=1):
        assert run.accept(*event(number, kind, attempt), 101.0)
        # What another stream brings once more is passed over.
        run.validator.begin_stream()
        assert not run.accept(*event(number, kind, attempt), 101.0)
    assert run.attempt == 2
    assert run.result is not None
    assert run.finished_at == 101.0


def test_a_stream_opened_again_may_repeat_but_not_turn_back() -> None:
    run = record()
    for number, kind in enumerate(["started", "text", "text"], start=1):
        assert run.accept(*event(number, kind), 101.0)
    run.validator.begin_stream()
    assert not run.accept(*event(2, "text"), 101.0)
    assert not run.accept(*event(3, "text"), 101.0)
    assert run.accept(*event(4, "text"), 101.0)
    with pytest.raises(ProtocolViolationError, match="sequence 4 followed 4 in one stream"):
        run.accept(*event(4, "text"), 101.0)


@pytest.mark.parametrize(
    ("course", "reported"),
    [
        ([("started", 0)], "started (sequence 1) has attempt 0, expected 1"),
        ([("started", 2)], "has attempt 2, expected 1"),
        ([("started", 1), ("attempt_ended", 1), ("started", 1)], "has attempt 1, expected 2"),
        ([("started", 1), ("attempt_ended", 1), ("result", 2)], "has attempt 2, expected 1"),
    ],
)
def test_attempts_are_counted(course: list[tuple[str, int]], reported: str) -> None:
    run = record()
    for number, (kind, attempt) in enumerate(course[:-1], start=1):
        run.accept(*event(number, kind, attempt), 101.0)
    with pytest.raises(ProtocolViolationError, match=re.escape(reported)):
        run.accept(*event(len(course), *course[-1]), 101.0)


def says_text(sequence: int, offset: int, delta: str, kind: str = "text") -> tuple[event_pb2.AgentEvent, int]:
    message, _size = event(sequence, kind)
    piece = message.text if kind == "text" else message.thinking
    piece.item_id, piece.offset, piece.delta = "i", offset, delta
    return message, message.ByteSize()


@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_a_delta_goes_on_where_the_last_one_ended(kind: str) -> None:
    run = record()
    run.accept(*event(1, "started"), 101.0)
    run.accept(*says_text(2, 0, "für", kind), 101.0)
    run.accept(*says_text(3, 4, " alle", kind), 101.0)
    with pytest.raises(
        ProtocolViolationError, match=rf"{kind} \(sequence 4\) has a delta at offset 3 where 9 is due"
    ):
        run.accept(*says_text(4, 3, "x", kind), 101.0)


def test_a_delta_is_taken_as_it_comes_where_what_came_before_was_not_seen() -> None:
    late = record()
    late.validator.resume_at(7, attempt=1)
    late.accept(*says_text(8, 500, "x"), 101.0)
    with pytest.raises(ProtocolViolationError, match="where 501 is due"):
        late.accept(*says_text(9, 500, "x"), 101.0)
    gapped = record()
    gapped.accept(*event(1, "started"), 101.0)
    gapped.accept(*says_text(2, 0, "x"), 101.0)
    gapped.accept_gap(event_pb2.Gap(from_sequence=3, to_sequence=9))
    gapped.accept(*says_text(10, 70, "x"), 101.0)
    again, _size = event(12, "started", 2)
    gapped.accept(*event(11, "attempt_ended"), 101.0)
    gapped.accept(again, again.ByteSize(), 101.0)
    fresh, _size = says_text(13, 1, "x")
    fresh.attempt = 2
    with pytest.raises(ProtocolViolationError, match="where 0 is due"):
        gapped.accept(fresh, fresh.ByteSize(), 101.0)


@pytest.mark.parametrize("outcome", ["FAILED", "TIMED_OUT", "LOST", "UNSPECIFIED", "CANCELLED"])
def test_a_result_says_why_it_failed(outcome: str) -> None:
    run = record()
    run.accept(*event(1, "started"), 101.0)
    message, size = event(2, "result")
    message.result.outcome = event_pb2.Outcome.Value(f"OUTCOME_{outcome}")
    if outcome == "CANCELLED":
        assert run.accept(message, size, 101.0)
        return
    with pytest.raises(ProtocolViolationError, match=r"has (no outcome|outcome OUTCOME_\w+ but no `failure`)"):
        run.accept(message, size, 101.0)


def test_what_may_come_without_a_sequence() -> None:
    run = record()
    for kind in KIND_BY_FIELD.values():
        message, size = event(0, kind)
        if kind in EPHEMERAL_ALLOWED:
            run.validator.check_ephemeral(message, kind, size)
        else:
            with pytest.raises(ProtocolViolationError, match=f"{kind} has no sequence"):
                run.validator.check_ephemeral(message, kind, size)
    # A body of a later revision may be anything.
    run.validator.check_ephemeral(event_pb2.AgentEvent(), None, 0)


@pytest.mark.parametrize(("first", "last"), [(3, 9), (2, 1)])
def test_a_gap_names_all_that_is_left_out(first: int, last: int) -> None:
    run = record()
    run.accept(*event(1, "started"), 101.0)
    with pytest.raises(ProtocolViolationError, match=f"a gap from {first} to {last} followed sequence 1"):
        run.accept_gap(event_pb2.Gap(from_sequence=first, to_sequence=last))


@pytest.mark.parametrize(
    ("reported", "kinds"),
    [
        ("out of order", ["text"]),
        ("out of order", ["started", "started"]),
        ("out of order", ["started", "attempt_ended", "text"]),
        ("out of order", ["started", "result", "text"]),
        ("precedes started", ["result"]),
    ],
)
def test_a_record_refuses_what_is_out_of_order(reported: str, kinds: list[str]) -> None:
    run = record()
    for number, kind in enumerate(kinds[:-1], start=1):
        run.accept(*event(number, kind), 101.0)
    with pytest.raises(ProtocolViolationError, match=reported):
        run.accept(*event(len(kinds), kinds[-1]), 101.0)


def test_after_a_gap_anything_but_a_hole_is_possible() -> None:
    for kind in ("text", "started", "attempt_ended", "result"):
        run = record()
        run.accept(*event(1, "started"), 101.0)
        run.accept_gap(event_pb2.Gap(from_sequence=2, to_sequence=9))
        assert run.accept(*event(10, kind, attempt=3), 101.0)
    back = record()
    back.accept(*event(1, "started"), 101.0)
    back.accept_gap(event_pb2.Gap(from_sequence=2, to_sequence=9))
    with pytest.raises(ProtocolViolationError, match="attempt 0"):
        back.accept(*event(10, "text", attempt=0), 101.0)
    torn = record()
    torn.accept(*event(1, "started"), 101.0)
    with pytest.raises(ProtocolViolationError, match="without a gap"):
        torn.accept(*event(3, "text"), 101.0)


def test_a_router_that_ends_a_run_drops_the_inputs_that_wait() -> None:
    run, checker = record(), OrderChecker()
    began = [event(1, "started"), *(event(number, "input_accepted") for number in (2, 3, 4))]
    for number, (message, _size) in enumerate(began, 1):
        if number > 1:
            message.input_accepted.input_id = f"i{number}"
    taken, size = event(5, "message")
    taken.message.input_id = "i2"
    dropped, _ = event(6, "input_dropped")
    dropped.input_dropped.input_id = "i3"
    for message in (*(message for message, _ in began), taken, dropped):
        run.accept(message, size, 101.0)
        checker.observe(message)
    assert list(run.summary(0).waiting_input_ids) == ["i4"]
    lost = run.end(lost_result(event_pb2.FAILURE_KIND_ADAPTER_LOST, "c", "m"), 103.5)
    messages = [event_pb2.AgentEvent.FromString(data) for _, data in lost]
    assert [message.sequence for message in messages] == [sequence for sequence, _ in lost] == [7, 8]
    assert (messages[0].input_dropped.input_id, messages[0].input_dropped.reason) == ("i4", "agent_lost")
    for message in messages:
        checker.observe(message)
    checker.finish()
    assert not run.summary(0).waiting_input_ids


def test_a_router_may_end_a_run_that_never_began() -> None:
    run = record()
    ((sequence, data),) = run.end(lost_result(event_pb2.FAILURE_KIND_ADAPTER_LOST, "c", "m"), 103.5)
    message = event_pb2.AgentEvent.FromString(data)
    assert sequence == message.sequence == 1
    assert message.result.duration.ToNanoseconds() == 3_500_000_000
    assert message.time.ToNanoseconds() == 103_500_000_000
    # No adapter may: behind an address is one adapter and no other router.
    with pytest.raises(ProtocolViolationError, match="has origin ROUTER"):
        record().accept(*event(1, "result", origin=event_pb2.EVENT_ORIGIN_ROUTER), 101.0)


def test_a_record_keeps_the_last_remarks() -> None:
    run = record()
    for number in range(60):
        run.remark(str(number))
    assert run.remarks == [str(number) for number in range(10, 60)]


def test_a_record_counts_a_repeated_remark() -> None:
    run = record()
    assert [run.remark(text) for text in ("a", "b", "a", "a")] == [True, True, False, False]
    assert run.remarks == ["a (3 times)", "b"]


@pytest.mark.parametrize(
    ("retained", "forgotten"),
    [
        (RetainedRuns(10, 100), ["old"]),
        (RetainedRuns(1000, 2), ["old", "c"]),
        (RetainedRuns(1000, 0), ["old", "c", "b", "a"]),
        (RetainedRuns(1000, 100), []),
    ],
)
def test_what_is_forgotten_first(retained: RetainedRuns, forgotten: list[str]) -> None:
    for run_id, at in (("old", 1), ("c", 92), ("b", 93), ("a", 94)):
        retained.add(run_id, 10, at)
    assert list(retained.expired(100.0)) == forgotten
    assert list(retained.expired(100.0)) == []
    assert list(retained.expired(2000.0)) == [name for name in ("old", "c", "b", "a") if name not in forgotten]
    assert retained.next_end_s(2000.0) is None


def test_runs_that_the_log_does_not_have_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.router.model.retention.MOST_BYTES", 32)
    retained = RetainedRuns(1000, 100)
    for at, run_id in enumerate("abcd"):
        retained.add(run_id, 10, at)
    assert list(retained.expired(10.0)) == ["a"]
    retained.discard("b")
    retained.add("c", 20, 11.0)  # not counted twice
    assert list(retained.expired(12.0)) == []
    retained.add("e", 3, 12.0)
    assert list(retained.expired(12.0)) == ["d"]


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
    path.write_text(json.dumps({"format": 3, "entries": value}))
    assert DetectionFile(path).load() == {}
    path.write_text(json.dumps({"format": 3, "entries": {"fake": value}}))
    assert DetectionFile(path).load() == {}
    path.write_text(json.dumps(value))
    assert DetectionFile(path).load() == {}


def test_entry_points_are_named_and_never_imported() -> None:
    installed = [EntryPoint(name, "mine.my_agent:adapter [extra]", "g") for name in ("my_agent", "my-agent")]
    good, bad = entry_point_specs(installed)[::-1]
    assert good.launch is not None
    assert good.launch.command[-2:] == ("-m", "dragoman.sidecar")
    assert good.launch.env == {"DRAGOMAN_ADAPTER": "mine.my_agent:adapter"}
    assert "my_agent" not in " ".join(good.launch.command), "an agent that ends its own programs by name"
    assert "not a valid adapter type" in bad.problem
    assert {spec.name for spec in entry_point_specs()} >= {"process", "claude_code"}
