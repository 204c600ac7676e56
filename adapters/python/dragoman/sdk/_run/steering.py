"""Giving an agent an input in its present turn, or a change of its model or mode, as its parser knows how."""

from collections.abc import Callable

from dragoman.sdk._output.parser import NotUpdated, Output, Steering, Steers, Update, Updates
from dragoman.sdk._run.run import Run


class Steerer:
    """Gives inputs to the agent of one attempt.

    Args:
        run: the run.
        parser: knows how.
        take: takes what the parser makes of an input.
    """

    def __init__(self, run: Run, parser: Steers, take: Callable[[Output], None]) -> None:
        self._run = run
        self._parser = parser
        self._take = take

    def give(self, steering: Steering) -> bool:
        """Give the agent an input; False if it takes none just now."""
        try:
            outputs = self._parser.steer(steering)
            if outputs is None:
                return False
            for output in outputs:
                self._take(output)
        except Exception as error:  # noqa: BLE001 - it waits for the next turn instead
            consequence = "the input waits for another turn"
            self._run.faults.report(error, self._parser, "steer_failed", "parser.steer", consequence)
        return True


class Updater:
    """Gives changes to the agent of one attempt.

    Args:
        run: the run.
        parser: knows how.
        take: takes what the parser makes of a change.
    """

    def __init__(self, run: Run, parser: Updates, take: Callable[[Output], None]) -> None:
        self._run = run
        self._parser = parser
        self._take = take

    def give(self, update: Update) -> bool:
        """Give the agent a change; False if it takes none just now."""
        try:
            outputs = self._parser.update(update)
            if outputs is None:
                return False
            for output in outputs:
                self._take(output)
        except Exception as error:  # noqa: BLE001 - the caller learns that nothing was changed
            self._run.faults.report(error, self._parser, "update_failed", "parser.update", "nothing was changed")
            self._take(NotUpdated(update.update_id, "the adapter failed to put it into the agent's form"))
        return True
