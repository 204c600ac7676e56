"""Changes of a run's model or permission mode while its agent works. The agent takes each, or nothing changes.

A change is given to the agent whenever that may take one (``on_update``). One that it has not answered by the end of
a turn is given again in the next one. What it has taken holds for the rest of the attempt, its later turns included.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.sdk._output.parser import Update
from dragoman.sdk._request.settings import Settings
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct
from msgspec.structs import replace

MOST_WAITING: Final = 64
"""Changes of a run that may wait for its agent."""
_RETRY_S: Final = 1.0
_MOST_WORDS: Final = 500
"""Characters of the agent's own words that an error repeats."""


class _Waiting(Struct, frozen=True):
    update: Update
    sender: str
    sequence: "asyncio.Future[int]"
    """Of ``run_updated``, once the agent has taken it."""


class UpdatedRun(Protocol):
    """What changes need of their run; ``Run`` says what each member means."""

    run_id: str
    redactor: Redactor

    def emit(self, event: pb.AgentEvent) -> None:
        """Write an event."""


class RunUpdates:
    """The changes of one run.

    Args:
        run: the run.
    """

    def __init__(self, run: UpdatedRun) -> None:
        self._run = run
        self._waiting: dict[str, _Waiting] = {}
        self._offered: set[str] = set()
        """Those that the agent has got in its present turn, and has not answered."""
        self._count = 0
        self._closed = False
        self._model = ""
        self._permission_mode = ""
        self.on_update: Callable[[Update], bool] | None = None
        """Gives the agent a change; False if it takes none just now. None: nothing can."""

    async def make(self, request: adapter_pb2.UpdateRunRequest, sender: str) -> int:
        """Make a change, and return the sequence of ``run_updated`` once the agent has taken it.

        Raises:
            DragomanError: UPDATE_REFUSED by the agent; RUN_FINISHED; or TOO_MANY_INPUTS.
        """
        if self._closed:
            raise self._finished()
        if len(self._waiting) >= MOST_WAITING:
            raise DragomanError(
                Reason.TOO_MANY_INPUTS,
                f"{MOST_WAITING} changes wait for the agent; make more once it has taken one",
                {"run_id": self._run.run_id},
                retry_after_s=_RETRY_S,
            )
        self._count += 1
        update = Update(f"update-{self._count}", model=request.model, permission_mode=request.permission_mode)
        sequence: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[update.update_id] = _Waiting(update, sender, sequence)
        self.offer()
        try:
            return await sequence
        finally:
            if update.update_id not in self._offered:
                self._waiting.pop(update.update_id, None)  # no caller waits for it any more

    def offer(self) -> None:
        """Give the agent what it was not given yet, in order, as far as it takes it now."""
        for update_id in [name for name in self._waiting if name not in self._offered]:
            waiting = self._waiting.get(update_id)
            if waiting is None:
                continue
            if self.on_update is None:
                return
            self._offered.add(update_id)  # first: the agent's answer may come at once
            if not self.on_update(waiting.update):
                self._offered.discard(update_id)
                return

    def take(self, update_id: str, exact_model: str = "") -> None:
        """Write that the agent has taken a change; later turns name ``exact_model``, if there is one."""
        waiting = self._settled(update_id)
        if waiting is None:
            return
        update = waiting.update
        updated = pb.RunUpdated(sender=waiting.sender)
        if update.model:
            updated.model = update.model
            self._model = exact_model or update.model
        else:
            self._permission_mode = updated.permission_mode = update.permission_mode
        event = pb.AgentEvent(run_updated=updated, origin=pb.EVENT_ORIGIN_OPERATOR)
        self._run.emit(event)
        if not waiting.sequence.done():
            waiting.sequence.set_result(event.sequence)

    def refuse(self, update_id: str, why: str) -> None:
        """Note that the agent has rejected a change; ``why`` is in its own words."""
        waiting = self._settled(update_id)
        if waiting is not None:
            words = self._run.redactor.text(why)[:_MOST_WORDS]
            message = f"the agent rejects the change: {words}" if words else "the agent rejects the change"
            self._fail(waiting, DragomanError(Reason.UPDATE_REFUSED, message, {"run_id": self._run.run_id}))

    def end_turn(self) -> None:
        """Note that the present turn is over: what the agent has not answered is for the next one."""
        self.on_update = None
        self._offered.clear()

    def end_attempt(self) -> None:
        """Note that the attempt is over, and with it what was changed."""
        self.end_turn()
        self._model = self._permission_mode = ""

    def close(self) -> None:
        """Make no change any more; those that wait fail."""
        self._closed = True
        self.end_turn()
        waiting, self._waiting = list(self._waiting.values()), {}
        for one in waiting:
            self._fail(one, self._finished())

    def applied(self, settings: Settings) -> Settings:
        """Return the settings of another turn of the attempt."""
        if self._model:
            settings = replace(settings, model=self._model)
        if self._permission_mode:
            permissions = pb.Permissions()
            permissions.CopyFrom(settings.permissions)
            permissions.native_mode = self._permission_mode
            settings = replace(settings, permissions=permissions)
        return settings

    def _settled(self, update_id: str) -> _Waiting | None:
        self._offered.discard(update_id)
        return self._waiting.pop(update_id, None)

    def _finished(self) -> DragomanError:
        run_id = self._run.run_id
        return DragomanError(Reason.RUN_FINISHED, f"run {run_id!r} takes no change any more", {"run_id": run_id})

    @staticmethod
    def _fail(waiting: _Waiting, error: DragomanError) -> None:
        if not waiting.sequence.done():
            waiting.sequence.set_exception(error)
