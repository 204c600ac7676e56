"""Giving an agent an input in its present turn, or a change of its model or mode, as its parser knows how."""

from collections.abc import Callable, Iterable

from dragoman.sdk._output.parser import NotUpdated, Output, Steering, Steers, Update, Updates
from dragoman.sdk._run.run import Run

Take = Callable[[Output], None]
"""Takes what the parser makes of an input or a change."""


def steer(run: Run, parser: Steers, take: Take, steering: Steering) -> bool:
    """Give the agent an input; False if it takes none just now."""
    try:
        return _is_taken(parser.steer(steering), take)
    except Exception as error:  # noqa: BLE001 - it waits for the next turn instead
        run.faults.report(error, parser, "steer_failed", "parser.steer", "the input waits for another turn")
        return True


def update(run: Run, parser: Updates, take: Take, change: Update) -> bool:
    """Give the agent a change; False if it takes none just now."""
    try:
        return _is_taken(parser.update(change), take)
    except Exception as error:  # noqa: BLE001 - the caller learns that nothing was changed
        run.faults.report(error, parser, "update_failed", "parser.update", "nothing was changed")
        take(NotUpdated(change.update_id, "the adapter failed to put it into the agent's form"))
        return True


def _is_taken(outputs: Iterable[Output] | None, take: Take) -> bool:
    for output in outputs or ():
        take(output)
    return outputs is not None
