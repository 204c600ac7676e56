"""The turns of one attempt: the agent's answer to the prompt, and to each input that was queued meanwhile.

Each turn is a program, or a call, of its own, which counts and numbers anew. What it emits is made to fit behind the
turns before it: IDs stay unique in the attempt, and totals are those of the run.
"""

from decimal import Decimal, InvalidOperation

from dragoman.sdk._output.parser import Report
from dragoman.sdk._output.usage import add_call, amount_text
from dragoman.v1 import event_pb2 as pb


class Turns:
    """The turns of the present attempt.

    Attributes:
        number: the present one, from 1.
        usage: what the turns before the present one used; None if nothing is known of it.
        count: the agent's own turns in them; None if it counts none.
        all_dead: whether nothing of them is left running, as far as that is known.
        output_bytes: how much they have printed.

    Args:
        printed_bytes: what the attempts before have printed.
    """

    def __init__(self, printed_bytes: int = 0) -> None:
        self._printed_bytes = printed_bytes
        self.output_bytes = 0
        self.number = 1
        self.usage: pb.Usage | None = None
        self.count: int | None = None
        self.all_dead = True

    def follow(self, report: Report, counters: pb.RunCounters, *, confirmed_dead: bool) -> None:
        """Begin another turn.

        Args:
            report: what the one before it came to.
            counters: the run's.
            confirmed_dead: whether nothing of it is left running.
        """
        self.usage = total(self.usage, report.usage)
        self.count = counted(self.count, report.turns)
        self.all_dead = self.all_dead and confirmed_dead
        self.output_bytes = printed(counters) - self._printed_bytes
        self.number += 1

    def own_id(self, identifier: str) -> str:
        """Return an ID of the present turn as one of the attempt."""
        return identifier if self.number == 1 or not identifier else f"{identifier}.turn{self.number}"

    def adjust(self, event: pb.AgentEvent, kind: str) -> None:
        """Make an event of a later turn fit behind the turns before it."""
        if event.HasField("lineage"):
            _rename(event.lineage, self)
        if kind == "usage":
            usage = event.usage
            if usage.scope == pb.USAGE_SCOPE_RUN and usage.semantics == pb.USAGE_SEMANTICS_CUMULATIVE:
                usage.CopyFrom(total(self.usage, usage) or usage)
            return
        if kind in {"tool_call", "subagent"}:
            body = getattr(event, kind)
            body.id = self.own_id(body.id)
        if kind:
            _rename(getattr(event, kind), self)
        if kind == "input_request" and event.input_request.HasField("subject"):
            _rename(event.input_request.subject, self)


_IDS = ("item_id", "tool_call_id", "parent_tool_call_id", "subagent_id")


def _rename(body: object, turns: Turns) -> None:
    for name in _IDS:
        if identifier := getattr(body, name, ""):
            setattr(body, name, turns.own_id(identifier))


def printed(counters: pb.RunCounters) -> int:
    """Return the bytes that a run's agents have printed."""
    return counters.stdout_bytes + counters.stderr_bytes


def total(before: pb.Usage | None, now: pb.Usage | None) -> pb.Usage | None:
    """Return what turns have used together.

    Args:
        before: the turns before; None if that is unknown.
        now: the last one. A report about the whole session includes the turns before.
    """
    if before is None or now is None or now.scope == pb.USAGE_SCOPE_SESSION or before.scope != now.scope:
        return now if now is not None else before
    usage = pb.Usage()
    usage.CopyFrom(now)
    summed = add_call(before, now)
    if summed.tokens.ListFields():
        usage.tokens.CopyFrom(summed.tokens)
    shares = {share.model: share for share in usage.models}
    for share in summed.models:
        kept = shares.get(share.model) or usage.models.add(model=share.model)
        if share.tokens.ListFields():
            kept.tokens.CopyFrom(share.tokens)
    for earlier in before.models:
        now_costs = shares.get(earlier.model)
        share = next(item for item in usage.models if item.model == earlier.model)
        if earlier.HasField("cost"):
            _add_cost(share.cost, earlier.cost, is_new=now_costs is None or not now_costs.HasField("cost"))
    if before.HasField("cost"):
        _add_cost(usage.cost, before.cost, is_new=not usage.HasField("cost"))
    return usage


def _add_cost(cost: pb.Cost, more: pb.Cost, *, is_new: bool) -> None:
    if is_new:
        cost.CopyFrom(more)
        return
    if cost.currency != more.currency:
        return
    try:
        cost.amount = amount_text(Decimal(cost.amount) + Decimal(more.amount))
    except InvalidOperation:
        return  # an amount that is no number stays what the agent made it


def counted(before: int | None, now: int | None) -> int | None:
    """Return the sum of numbers that may be unknown; None if both are."""
    return now if before is None else before + (now or 0)
