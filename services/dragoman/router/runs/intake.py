"""What a run's adapter sends: validated, evaluated, and published or withheld."""

import asyncio
from typing import Final

from dragoman.protocol.wire import split
from dragoman.router.model.ports import Clock
from dragoman.router.model.stream_validator import READ, ProtocolViolationError, check_batch
from dragoman.router.policy.fallback import needs_candidates
from dragoman.router.runs.actor import Run
from dragoman.router.runs.inputs import Accepted, AttemptFailed, Durable, Replayed, ResultReceived
from dragoman.router.runs.stand_in import StandIn
from dragoman.router.runs.state import Deciding, Starting, is_at_adapter, progress_of
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import DecodeError

_WAITS: Final = frozenset({"batch", "started", "attempt_ended", "result"})
"""Kinds of events that something may have to wait for: a batch for its turn, the others for the session."""
_HEARD: Final = frozenset({"input_request", "notice"})
"""Kinds of events that others than readers may want to know of."""
_AT_ONCE: Final = 256
"""Events of a batch that are taken before others get their turn: a few milliseconds."""


class EventIntake:
    """Takes the events of one run from its adapters."""

    def __init__(self, run: Run, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self.stand_in: StandIn | None = None
        """Does what the present adapter leaves to the router; ``None`` if that is nothing."""
        self.cwd = ""
        """Where the agent works, as far as its adapter has reported it."""

    def take_at_once(self, event: pb.AgentEvent, message: bytes) -> bool:
        """Take an event that nothing waits for, as is so of almost all; False if it is for ``take_waiting``.

        Raises:
            ProtocolViolationError: the contract does not allow it.
        """
        run, kind = self._run, event.WhichOneof("body")
        if not event.sequence or kind in _WAITS or self.stand_in is not None:
            return False
        if not run.ledger.is_ready(event.sequence):
            return False
        if not run.is_ending:
            self._take_one(event, message, is_withheld=False)
        return True

    async def take_waiting(self, event: pb.AgentEvent, message: bytes) -> None:
        """Take any event, once it may be published; those of a batch as if they had come one by one.

        Raises:
            ProtocolViolationError: as above.
        """
        if event.HasField("batch"):
            check_batch(event, len(message))
            for number, (one, data) in enumerate(zip(event.batch.events, split(message), strict=True), 1):
                if not self.take_at_once(one, data):
                    await self.take_waiting(one, data)
                elif not number % _AT_ONCE:
                    await asyncio.sleep(0)
            return
        for one, data in [(event, message)] if self.stand_in is None else self.stand_in.take(event, message):
            await self._take_alone(one, data)

    async def _take_alone(self, event: pb.AgentEvent, message: bytes) -> None:
        run = self._run
        if event.HasField("result") and run.spending is not None and run.spending.ends(event):
            message = event.SerializeToString()
        # Decided once: the run may be cancelled during the waits, and a withheld result's session is stored when
        # that result is released.
        is_withheld = self._withholds(event, len(message))
        if run.session is not None and not is_withheld:
            await run.session.hear(event)
        if not run.ledger.is_ready(event.sequence):
            await run.ledger.may_publish(event.sequence)
        if run.is_ending:
            return  # meanwhile
        self._take_one(event, message, is_withheld=is_withheld)

    async def release(self) -> None:
        """Let the withheld result be the run's, as no attempt follows."""
        run, state = self._run, self._run.state
        assert isinstance(state, Deciding)
        if run.session is not None:
            await run.session.hear(state.result)
        if isinstance(run.state, Deciding):
            self._take_durable(state.result, state.data)

    def _take_one(self, event: pb.AgentEvent, data: bytes, *, is_withheld: bool) -> None:
        run, state = self._run, self._run.state
        if not is_at_adapter(state):
            raise ProtocolViolationError("an event followed the result")
        if not event.sequence:
            self._take_ephemeral(event, data)
        elif is_withheld:
            if run.spending is not None:
                run.spending.take(event, "result")
            run.send(AttemptFailed(event, data))
        else:
            self._take_durable(event, data)

    def _take_durable(self, event: pb.AgentEvent, data: bytes) -> None:
        run, kind, withheld = self._run, event.WhichOneof("body"), ""
        if kind == "result":
            if not progress_of(run.state).is_cancelling:
                withheld = run.course.withheld_reason(event.result)
            # Put behind, not written anew: what a later revision says in a result stays as it came.
            more = pb.AgentEvent(result=self._annotations(event.result, withheld))
            data += more.SerializeToString() if more.result.ListFields() else b""
            event.MergeFrom(more)
        if not run.record.accept(event, len(data), self._clock.time()):
            return
        if isinstance(run.state, Starting):
            run.send(Accepted())
        if withheld:
            run.notices.warn("fallback_withheld", withheld)
        if kind == "started":
            self.cwd = event.started.cwd or self.cwd
            run.course.reports_tools = run.backend.record.declares(pb.FEATURE_TOOL_START)
        run.course.observe(event, kind)
        if run.spending is not None:
            run.spending.take(event, kind)
        if run.record.result is None:
            # Asked only of a message: a field that is not set would be made for the question.
            is_input = kind == "message" and bool(event.message.input_id)
            run.append(event.sequence, data, changes_record=is_input or kind in READ)
        else:
            run.send(ResultReceived(Durable(event.sequence, data)))
        if kind in _HEARD:
            run.hear(event)

    def _annotations(self, result: pb.Result, withheld: str) -> pb.Result:
        """Return what the router adds to an adapter's result."""
        run, more = self._run, pb.Result()
        if (withheld or run.course.rules.has_no_fallback) and needs_candidates(result):
            tried = {backend.record.type for backend in run.backends}
            names = run.suggest(result.failure.kind)
            more.fallback_candidates.extend(name for name in names if name not in tried)
        notes = [text for text in (*run.notices.rejections, withheld) if text]
        if notes and result.HasField("failure"):
            more.failure.errors.extend(notes)
        # Odd, and so never zero nanoseconds, which would leave the adapter's in their place.
        took_ns = int((self._clock.time() - run.record.accepted_at) * 1e9) | 1
        if (
            run.record.attempt > 1 or progress_of(run.state).was_queued
        ) and took_ns > result.duration.ToNanoseconds():
            more.duration.FromNanoseconds(took_ns)
        return more

    def _withholds(self, event: pb.AgentEvent, size: int) -> bool:
        run = self._run
        return (
            event.HasField("result")
            and bool(event.sequence)
            and not progress_of(run.state).is_cancelling
            and run.course.may_continue(event.result)
            and run.record.validator.would_accept(event, "result", size)
        )

    def _take_ephemeral(self, event: pb.AgentEvent, data: bytes) -> None:
        run, kind = self._run, event.WhichOneof("body")
        run.record.validator.check_ephemeral(event, kind, len(data))
        if kind == "gap":
            run.record.accept_gap(event.gap)
            run.ledger.skip(event.gap.to_sequence)
            run.course.assume_effects()
        elif kind == "replay_done":
            # All that its adapter ever sent is here; a router before this one cannot have published more.
            run.record.published_before = 0
            run.ledger.changed()
            run.send(Replayed())
        elif kind != "input_request" or run.record.remember_request(event):
            run.fanout.send_ephemeral(data)


def parsed(message: bytes) -> pb.AgentEvent:
    """Return an adapter's message as an event.

    Raises:
        ProtocolViolationError: it is none.
    """
    try:
        return pb.AgentEvent.FromString(message)
    except DecodeError as error:
        raise ProtocolViolationError("a message is not a valid AgentEvent") from error
