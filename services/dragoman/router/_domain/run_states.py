"""Every state of a run in the router, and every way from one to another: one table.

It is not what the agent does (that is ``RunPhase``, told by the adapter), nor what may follow in a stream (that is
``dragoman.protocol.order``), but where the router stands with the run.
"""

import enum
from typing import Final


class RunState(enum.Enum):
    """Where the router stands with a run."""

    WAITING = "waiting"
    """Accepted; its adapter is not there yet, or has no place for it."""
    FOLLOWED = "followed"
    """Its adapter's stream is read."""
    BROKEN = "broken"
    """The stream broke; it is being followed again."""
    HELD_BACK = "held_back"
    """The attempt has ended, and it is decided whether another one follows."""
    ADRIFT = "adrift"
    """The router that followed it is gone; its adapter is looked for."""
    ENDED = "ended"
    """Its result is known."""
    REFUSED = "refused"
    """It never was: the call was wrong, or there is no adapter."""
    ELSEWHERE = "elsewhere"
    """Another router has taken it."""


class Step(enum.Enum):
    """What moves a run from one state to another."""

    PINNED = "an adapter's process has it"
    BROKE = "the stream breaks"
    MENDED = "the stream goes on"
    FAILED = "an attempt fails that another may follow"
    ANOTHER = "another attempt, or another adapter, follows"
    ENDED = "the result comes"
    LOST = "nobody can tell how it ended"
    STOPPED = "it is cancelled before its adapter has it"
    REFUSED = "the adapter does not take it"
    TAKEN = "another router takes it"
    ASKED = "its request comes again, as no adapter had it"
    NEVER_CAME = "its adapter never got it"


_S, _T = RunState, Step

TABLE: Final[dict[RunState, dict[Step, RunState]]] = {
    _S.WAITING: {
        _T.PINNED: _S.FOLLOWED,
        _T.STOPPED: _S.ENDED,
        _T.ENDED: _S.ENDED,
        _T.LOST: _S.ENDED,
        _T.REFUSED: _S.REFUSED,
        _T.TAKEN: _S.ELSEWHERE,
    },
    _S.FOLLOWED: {
        _T.BROKE: _S.BROKEN,
        _T.ANOTHER: _S.WAITING,
        _T.FAILED: _S.HELD_BACK,
        _T.ENDED: _S.ENDED,
        _T.LOST: _S.ENDED,
        _T.REFUSED: _S.REFUSED,
        _T.TAKEN: _S.ELSEWHERE,
    },
    _S.BROKEN: {
        _T.MENDED: _S.FOLLOWED,
        _T.NEVER_CAME: _S.ADRIFT,
        _T.ANOTHER: _S.WAITING,
        _T.ENDED: _S.ENDED,
        _T.LOST: _S.ENDED,
        _T.REFUSED: _S.REFUSED,
        _T.TAKEN: _S.ELSEWHERE,
    },
    _S.HELD_BACK: {
        _T.ANOTHER: _S.WAITING,
        _T.ENDED: _S.ENDED,
        _T.LOST: _S.ENDED,
        _T.TAKEN: _S.ELSEWHERE,
    },
    _S.ADRIFT: {
        _T.PINNED: _S.FOLLOWED,
        _T.ASKED: _S.WAITING,
        _T.LOST: _S.ENDED,
        _T.STOPPED: _S.ENDED,
        _T.TAKEN: _S.ELSEWHERE,
    },
    _S.ENDED: {},
    _S.REFUSED: {},
    _S.ELSEWHERE: {},
}
"""``TABLE[state][step]`` is the next state; a step that is missing cannot be taken there."""

BEGINNINGS: Final = (RunState.WAITING, RunState.ADRIFT)
"""A run that is accepted, and one that was taken over."""


def after(state: RunState, step: Step) -> RunState | None:
    """Return the state that a step leads to; ``None`` if it cannot be taken there."""
    return TABLE[state].get(step)


def diagram() -> str:
    """Return the table as a Mermaid diagram, for the README."""
    lines = ["stateDiagram-v2", *(f"    [*] --> {state.value}" for state in BEGINNINGS)]
    for state, steps in TABLE.items():
        by_target: dict[RunState, list[str]] = {}
        for step, target in steps.items():
            by_target.setdefault(target, []).append(step.value)
        lines += [f"    {state.value} --> {target.value}: {', or '.join(told)}" for target, told in by_target.items()]
        if not steps:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join(lines)
