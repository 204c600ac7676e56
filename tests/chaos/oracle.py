"""What must hold of a run whatever was killed, judged by what its agent journalled. Pure.

It compares the agent's journal, the run log as a fresh router replays it, and the events of each client; also the
rows of the database, read without a router, and the database's notes of the run's owners.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dragoman.testkit.streams import StreamProblem, check_stream
from dragoman.v1 import event_pb2 as pb

from tests.chaos.cases import HELD, PAIRS, REPLICAS, Case
from tests.chaos.databases import Rows

_TOKEN: Final = re.compile(r"<\d+:[0-9a-f]{8}>")
_REPORTING: Final = {"text", "tool_call", "tool_result"}
_IN_FLIGHT: Final = 1
"""An agent that is killed may have journalled one output that it could not say any more."""

SUCCEEDED, FAILED, LOST = pb.OUTCOME_SUCCEEDED, pb.OUTCOME_FAILED, pb.OUTCOME_LOST


_ON_ITS_WAY: Final = {"agent", "guard", "sidecar", "sidecar_guard", "router_sidecar"}
"""Victims with which an agent may end that has noted an input, and could not say so any more, or was to get one."""


class Problem(AssertionError):  # noqa: N818 - it reads as what it is in a failed test
    """The witnesses do not agree, or the run ended as it must not."""


@dataclass
class Sent:
    """An input that a run was sent.

    Attributes:
        input_id: its ID, which the agent notes when it takes the input.
        answers: to each call that was answered, in order: the sequence; 0: the run takes none, or is unknown.
    """

    input_id: str
    answers: list[int] = field(default_factory=list)


@dataclass
class Evidence:
    """What is known of one run.

    Attributes:
        case: what was done to it.
        journal: what its agent noted; empty if none was ever started.
        log: the events a fresh router replayed from the log; ``None`` if it does not know the run.
        readers: the events of each client, over all its streams.
        refused: how the call was refused; empty if it was not.
        secret: a text that no event, row or file may contain.
    """

    case: Case
    journal: list[dict[str, Any]]
    log: list[pb.AgentEvent] | None
    readers: list[list[pb.AgentEvent]]
    refused: str = ""
    secret: str = ""
    rows: Rows = field(default_factory=list)
    """What the database has of it, row by row."""
    moves: list[tuple[str, str]] = field(default_factory=list)
    """From which router to which it went, where the database notes that."""
    ended_first: bool = False
    """Whether its end was in the log when its router died; no other router may change the run then."""
    is_asked_for: bool = False
    """Whether a caller repeated its request as long as it had no event of the run."""
    sent: Sent | None = None
    """What the run was sent on its way."""


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Return what an agent noted; a last line that was cut is left out."""
    if not path.exists():
        return []
    *lines, _cut = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def tokens(events: Iterable[pb.AgentEvent]) -> list[str]:
    """Return the tokens of events, in order; one that an event has twice (as title and as input) once."""
    found: list[str] = []
    for event in events:
        if event.WhichOneof("body") in _REPORTING:
            found += dict.fromkeys(_TOKEN.findall(str(event)))
    return found


def judge(evidence: Evidence) -> pb.Outcome.ValueType | None:
    """Judge a run; return its outcome, ``None`` if it was refused.

    Raises:
        Problem: something is wrong.
    """
    if evidence.refused:
        _judge_refused(evidence)
        return None
    # Who read that no adapter had it has the end of another run than who requested it once more.
    readers = [one for one in evidence.readers if _is_started(one) or not evidence.is_asked_for]
    evidence = replace(evidence, readers=readers)
    if evidence.log is None:
        raise Problem("the log does not know the run")
    for who, events in [("the log", evidence.log), *((f"client {n}", e) for n, e in enumerate(evidence.readers))]:
        try:
            check_stream(events, secrets=[evidence.secret])
        except StreamProblem as problem:
            raise Problem(f"{who}: {problem}") from problem
    _judge_identity(evidence.log, evidence.readers)
    result = evidence.log[-1].result
    _judge_gap(evidence, evidence.log, result)
    printed = [note["said"] for note in evidence.journal if "said" in note]
    for who, events in [("the log", evidence.log), *((f"client {n}", e) for n, e in enumerate(evidence.readers))]:
        _judge_tokens(who, tokens(events), printed, result, evidence)
    _judge_outcome(evidence, result)
    _judge_starts(evidence)
    _judge_rows(evidence.rows, evidence.log)
    _judge_moves(evidence)
    _judge_input(evidence, evidence.log, result)
    _judge_budget(evidence, evidence.log, result)
    return result.outcome


def _is_started(events: Sequence[pb.AgentEvent]) -> bool:
    return events[-1].result.failure.code != "not_started"


def _judge_refused(evidence: Evidence) -> None:
    # Where there is another router, who is refused asks that one.
    may_be = evidence.case.state == "before" and evidence.case.victim != "client"
    if not may_be or evidence.case.storage in PAIRS:
        raise Problem(f"the call was refused: {evidence.refused}")
    if evidence.journal:
        raise Problem(f"the call was refused ({evidence.refused}), and the agent ran")
    if evidence.log is not None:
        raise Problem(f"the call was refused ({evidence.refused}), and the log has the run")


def _durable(events: Sequence[pb.AgentEvent]) -> dict[int, bytes]:
    return {event.sequence: event.SerializeToString(deterministic=True) for event in events if event.sequence}


def _judge_identity(log: Sequence[pb.AgentEvent], readers: Sequence[Sequence[pb.AgentEvent]]) -> None:
    """No sequence names two events; no client has an event that the log does not have, except those of a gap."""
    kept = _durable(log)
    gaps = [event.gap for event in log if event.WhichOneof("body") == "gap"]
    missing = {number for gap in gaps for number in range(gap.from_sequence, gap.to_sequence + 1)}
    everything = dict(kept)
    for number, events in enumerate(readers):
        received = _durable(events)
        if events[-1].result.outcome != log[-1].result.outcome:
            ends = [pb.Outcome.Name(one[-1].result.outcome) for one in (events, log)]
            raise Problem(f"client {number} got {ends[0]}, but the log has {ends[1]}")
        for sequence, data in received.items():
            if everything.setdefault(sequence, data) != data:
                raise Problem(f"client {number}: sequence {sequence} names two events")
        if beyond := [one for one in received if one not in kept and one not in missing]:
            raise Problem(f"client {number}: the log does not have {beyond[:5]}")
        own = [event.gap for event in events if event.WhichOneof("body") == "gap"]
        unseen = {one for gap in own for one in range(gap.from_sequence, gap.to_sequence + 1)}
        if lacking := [one for one in kept if one not in received and one not in unseen]:
            raise Problem(f"client {number} lacks {lacking[:5]} of {len(kept)}")
        if own and not gaps:
            raise Problem(f"client {number} has a gap that the log has not: {own}")


_LOSES_A_ROUTER: Final = {"router", "router_sidecar", "claim", *REPLICAS}
"""Victims that include a router, which may have published more than it stored."""


def _judge_gap(evidence: Evidence, log: Sequence[pb.AgentEvent], result: pb.Result) -> None:
    """A gap is the end of what is known: only LOST comes behind it, and from another router always with one."""
    bodies = [event.WhichOneof("body") for event in log]
    if evidence.ended_first and "gap" in bodies:
        raise Problem(f"it had ended, and a gap came into it: {bodies[-5:]}")
    is_anothers = evidence.case.victim == "router_sidecar" and not evidence.ended_first
    if is_anothers and evidence.case.state in HELD and "gap" not in bodies:
        raise Problem(f"LOST by another router, and no gap covers what may be missing: {bodies[-5:]}")
    if "gap" in bodies and evidence.case.victim not in _LOSES_A_ROUTER:
        raise Problem(f"its router lived and knew all of it, and yet there is a gap: {bodies[-5:]}")
    behind = bodies[bodies.index("gap") + 1 :] if "gap" in bodies else []
    if behind and (set(behind[:-1]) - {"input_dropped"} or result.outcome != LOST):
        raise Problem(f"a gap, and then more than LOST: {bodies[-5:]}")


def _judge_tokens(who: str, reported: list[str], printed: list[str], result: pb.Result, evidence: Evidence) -> None:
    if reported != printed[: len(reported)]:
        wrong = next(n for n, token in enumerate(reported) if printed[n : n + 1] != [token])
        raise Problem(
            f"{who}: output {wrong + 1} is {reported[wrong : wrong + 2]}, printed was {printed[wrong : wrong + 2]}"
        )
    missing = len(printed) - len(reported)
    if (result.outcome == SUCCEEDED or _is_over_budget(result)) and missing:
        raise Problem(f"{who}: {missing} outputs of a run that was not cut short are missing")
    if evidence.case.victim == "agent" and result.outcome == FAILED and missing > _IN_FLIGHT:
        raise Problem(f"{who}: {missing} outputs of a killed agent are missing")


def _judge_starts(evidence: Evidence) -> None:
    """An agent is started once for each turn of an attempt, and nothing here asks for a second one."""
    assert evidence.log is not None
    births = sum("born" in note for note in evidence.journal)
    attempts = {event.attempt for event in evidence.log if event.WhichOneof("body") == "started"}
    # What a router did not get any more, of one that is lost, may be that another turn began.
    is_unknown = evidence.sent is not None and evidence.log[-1].result.outcome == LOST
    turns = 1 + (is_unknown or len(_taken(evidence, evidence.log)))
    if births > turns or attempts - {1}:
        raise Problem(f"the agent ran {births} times, in attempts {sorted(attempts)}")


def _judge_rows(rows: Rows, log: Sequence[pb.AgentEvent]) -> None:
    """What is kept is kept once: each row begins where the one before ended, and the log replays no more."""
    expected = 1
    for first, last, _kept in rows:
        if first != expected or last < first:
            raise Problem(f"rows of events overlap, or leave a hole: {rows}")
        expected = last + 1
    kept = {number for first, last, is_kept in rows if is_kept for number in range(first, last + 1)}
    if (replayed := set(_durable(log))) != kept:
        raise Problem(
            f"the log replays {sorted(replayed - kept)[:5]} that are not stored, and"
            f" not {sorted(kept - replayed)[:5]}"
        )


def _judge_moves(evidence: Evidence) -> None:
    """A run changes its router only when that one is gone, and then once."""
    case = evidence.case
    # What two routers were asked for at once may be either one's when one of them dies.
    stays = case.victim == "database_held" or (case.victim == "neighbour" and case.state != "before")
    if case.storage in PAIRS and len(evidence.moves) > (0 if stays else 1):
        raise Problem(f"the run went from router to router: {evidence.moves}")


_ALLOWED: Final = {
    "client": {SUCCEEDED},
    "database": {SUCCEEDED},
    "database_held": {SUCCEEDED},
    "commit": {SUCCEEDED},
    "claim": {SUCCEEDED},
    "router": {SUCCEEDED},
    "owner": {SUCCEEDED},
    "neighbour": {SUCCEEDED},
    "owner_drained": {SUCCEEDED},
    "sidecar": {LOST},
    "sidecar_guard": {LOST},
    "router_sidecar": {LOST},
    "agent": {FAILED},
    "guard": {FAILED},
}
_MAY_LOSE_A_BEGINNER: Final = {"router", "claim", *REPLICAS}
"""Those whose death may catch a run that no adapter has yet: it is LOST, until its request comes again."""


def _judge_outcome(evidence: Evidence, result: pb.Result) -> None:
    case, journal = evidence.case, evidence.journal
    is_over_budget = _is_over_budget(result)
    outcome = SUCCEEDED if is_over_budget else result.outcome
    if is_over_budget != (case.has_budget and outcome == SUCCEEDED):
        raise Problem(f"{pb.Outcome.Name(result.outcome)}, and its budget says otherwise: {case.has_budget}")
    has_begun = any("born" in note for note in journal)
    allowed = _ALLOWED[case.victim]
    if case.state == "finishing":
        allowed = allowed | {SUCCEEDED}
    if case.state == "before" and case.victim in _MAY_LOSE_A_BEGINNER and not (evidence.is_asked_for or has_begun):
        allowed = allowed | {LOST}
    if case.state == "before" and "sidecar" in case.victim:
        allowed = allowed | {SUCCEEDED}  # it came just after the kill
    if outcome not in allowed:
        name, failure = pb.Outcome.Name(result.outcome), result.failure
        how = "its agent began" if has_begun else f"its agent never began, asked for again: {evidence.is_asked_for}"
        raise Problem(f"{name} ({pb.FailureKind.Name(failure.kind)}: {failure.message}); {how}")
    births, done = (sum(what in note for note in journal) for what in ("born", "done"))
    if result.outcome == SUCCEEDED and done < max(births, 1):
        raise Problem("SUCCEEDED, and the agent was not done")


def _is_over_budget(result: pb.Result) -> bool:
    return result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED


def _taken(evidence: Evidence, log: Sequence[pb.AgentEvent]) -> list[pb.AgentEvent]:
    sent = evidence.sent
    return [event for event in log if sent is not None and event.message.input_id == sent.input_id]


def _judge_input(evidence: Evidence, log: Sequence[pb.AgentEvent], result: pb.Result) -> None:
    """An input is refused, or accepted once and then taken or dropped, once; and what is said of it is so."""
    sent = evidence.sent
    if sent is None:
        return
    noted = sum(note.get("took") == sent.input_id for note in evidence.journal)
    accepted = [event.sequence for event in log if event.input_accepted.input_id == sent.input_id]
    dropped = [event.input_dropped for event in log if event.input_dropped.input_id == sent.input_id]
    taken = _taken(evidence, log)
    gaps = [event.gap for event in log if event.HasField("gap")]
    what = f"answered {sent.answers}, accepted {accepted}, taken {len(taken)}, dropped {dropped}, noted {noted}"
    if noted > 1 or len(accepted) > 1:
        raise Problem(f"an input came twice: {what}")
    if gaps and not accepted:
        return  # it may be in the gap
    if set(sent.answers) != set(accepted or [0]):
        raise Problem(f"an answer about an input is not so: {what}")
    if len(taken) + len(dropped) != len(accepted):
        raise Problem(f"an input is lost or doubled: {what}")
    if result.outcome == SUCCEEDED and (dropped or noted != len(taken)):
        raise Problem(f"a run that succeeded has not taken its input: {what}")
    if taken and not noted and evidence.case.victim not in _ON_ITS_WAY:
        raise Problem(f"an input was not taken: {what}")
    if noted and not taken and evidence.case.victim not in _ON_ITS_WAY:
        raise Problem(f"an input was taken, and the log does not say so: {what}")


def fate(evidence: Evidence) -> str:
    """Return what became of the input that a run was sent: taken, refused, or why it was dropped."""
    log = evidence.log or []
    if _taken(evidence, log):
        return "taken"
    reasons = [event.input_dropped.reason for event in log if event.HasField("input_dropped")]
    return reasons[0] if reasons else "refused"


def _judge_budget(evidence: Evidence, log: Sequence[pb.AgentEvent], result: pb.Result) -> None:
    """A budget is warned of once, and one that is exceeded ends the agent in its own way."""
    if not evidence.case.has_budget:
        return
    warned = [event for event in log if event.notice.code == "budget_warning"]
    if len(warned) > 1 or (_is_over_budget(result) and not warned):
        raise Problem(f"the budget was warned of {len(warned)} times")
    has_stopped = any("stopped" in note for note in evidence.journal)
    if _is_over_budget(result) and not has_stopped and evidence.case.victim not in _ON_ITS_WAY:
        raise Problem("the budget is exceeded, and the agent was not stopped in its own way")
