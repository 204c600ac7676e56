"""A run's inputs are taken one after the other, also those that its own actions send."""

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.runs import inputs as to
from dragoman.router.runs import state as states
from dragoman.router.runs.actions import Action
from dragoman.router.runs.machine import RunMachine

ERROR = DragomanError(Reason.ADAPTER_UNAVAILABLE, "x")


class Machine(RunMachine):
    """Sends an input from within an action, and fails in the next one."""

    def __init__(self) -> None:
        super().__init__(states.Queued())
        self.done: list[Action] = []
        self.fails = False

    def _execute(self, action: Action) -> None:
        self.done.append(action)
        if self.fails:
            self.send(to.LeaseLost())
            raise ZeroDivisionError


def test_what_waits_behind_an_action_that_fails_does_not_come_with_the_next_input() -> None:
    machine = Machine()
    machine.fails = True
    with pytest.raises(ZeroDivisionError):
        machine.send(to.Refused(ERROR))
    assert machine.done
    assert machine._inbox == []
    assert not isinstance(machine.state, states.Superseded)
