"""What the present attempt of a run has done, and what may follow it."""

from collections.abc import Callable
from typing import Final

from dragoman.protocol.budgets import BudgetMeter
from dragoman.protocol.work import EFFECTS, note_work
from dragoman.router.model.tasks import nothing
from dragoman.router.policy.next_step import End, Failed, History, NextStep, Outcome, Rules, next_step
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

_WORK: Final = EFFECTS | {"text", "thinking", "plan", "compaction"}
_WITHHELD: Final = (
    "No fallback: the agent called a tool, changed a file or requested input, or may have done so unreported. Set"
    " fallback.after_side_effects to allow it."
)


class Course(Struct, eq=False):
    """The attempts of one run."""

    rules: Rules
    admission: adapter_pb2.Admission = field(default_factory=adapter_pb2.Admission)
    """The caller's."""
    history: History = field(default_factory=History)
    reports_tools: bool = True
    """Whether the present adapter reports tool calls when they start."""
    did_work: bool = False
    had_effects: bool = False
    has_shown_effects: bool = False
    """Whether an event shows them; ``had_effects`` also covers those that may be unreported."""
    on_progress: Callable[[], None] = nothing
    """Called whenever the agent reports work; ``did_work`` also covers work that may be unreported."""
    meter: BudgetMeter | None = None
    """Counts what all attempts use, if the run has a budget."""

    def begin(self) -> None:
        """Begin an attempt of the same or another adapter."""
        self.reports_tools = True
        self.did_work = self.had_effects = self.has_shown_effects = False

    def observe(self, event: pb.AgentEvent, kind: str | None) -> None:
        """Observe a durable event; an unknown body may be anything."""
        if self.meter is not None:
            self.meter.take(event)
        self.did_work = self.did_work or kind is None or kind in _WORK
        self.has_shown_effects = self.has_shown_effects or kind in EFFECTS
        # Another attempt would begin with the first prompt, without an input that was taken.
        has_taken = kind == "message" and bool(event.message.input_id)
        self.had_effects = self.had_effects or kind is None or self.has_shown_effects or has_taken
        if kind in _WORK:
            self.on_progress()
        is_running = kind == "state" and event.state.phase == pb.RUN_PHASE_RUNNING
        if not self.reports_tools and (is_running or self.did_work):
            self.assume_effects()

    def assume_effects(self) -> None:
        """Assume side effects, as events may be missing or unreported."""
        self.did_work = self.had_effects = True

    def note_work(self, result: pb.Result) -> None:
        """Write into a result of the router's own that work had begun, if events show it; else that is unknown."""
        if self.has_shown_effects and result.HasField("failure"):
            note_work(result.failure, begun=True)

    def failed(self, result: pb.Result) -> Failed:
        """Return the outcome of the present attempt, which ends with this result."""
        if self.meter is not None:
            self.meter.state(result.usage, result.counters)
        return Failed(result, self.did_work, self.had_effects)

    def after(self, outcome: Outcome, chance: float = 0.0) -> NextStep:
        """Return what follows the present attempt: nothing if the budget of the run is used up."""
        if self.meter is not None and self.meter.is_used_up:
            return End()
        return next_step(self.rules, self.history, outcome, chance)

    def may_continue(self, result: pb.Result) -> bool:
        """Return whether another attempt could follow this result, so that it must not be published yet."""
        return not isinstance(self.after(self.failed(result)), End)

    def withheld_reason(self, result: pb.Result) -> str:
        """Return that only side effects prevent a fallback; empty if that is not so."""
        return _WITHHELD if self.after(self.failed(result)) == End(is_withheld=True) else ""
