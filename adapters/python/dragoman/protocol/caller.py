"""Who a call comes from, and what that caller may do. Pure, but for the variable that holds the caller of a call."""

from collections.abc import Iterable
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from msgspec import Struct

__all__ = [
    "CALLER",
    "SCOPES",
    "Caller",
    "current_caller",
]

SCOPES: Final = {
    "read": "see adapters, and all runs with their events",
    "run": "start runs, and follow, cancel and answer those that the same token started",
    "respond": "answer the input requests of all runs",
    "admin": "everything",
}
"""What a token may be for."""
ADMIN: Final = "admin"

_ANY: Final = frozenset(SCOPES)
_BY_METHOD: Final[dict[str, frozenset[str]]] = {
    "Describe": _ANY,
    "ListAdapters": _ANY,
    "WatchAdapters": _ANY,
    # These start an agent's program, which their settings name.
    "Detect": frozenset({"run"}),
    "TestEnvironment": frozenset({"run"}),
    "ListModels": frozenset({"run"}),
    "ListSkills": frozenset({"run"}),
    "Execute": frozenset({"run"}),
    "Attach": frozenset({"read", "run"}),
    "GetRun": frozenset({"read", "run", "respond"}),
    "ListRuns": frozenset({"read", "run"}),
    "Cancel": frozenset({"run"}),
    "Respond": frozenset({"run", "respond"}),
}
"""Which scopes let a method be called, beside ``admin``. Other methods need that."""


class Caller(Struct, frozen=True):
    """Who calls, as a server authenticated it."""

    name: str
    """For the record: ``uid 1000``, ``token`` for the user's own, ``token NAME`` for one with scopes, the URI of a
    certificate."""
    scopes: frozenset[str] = frozenset({ADMIN})
    adapters: tuple[str, ...] = ("*",)
    """Patterns of the adapters that it may use, by type."""

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything."""
        return ADMIN in self.scopes

    def check_method(self, method: str) -> None:
        """Refuse a method that no scope of the caller is for.

        Args:
            method: its full name, as in ``/package.Service/Method``.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        service, _, name = method.rpartition("/")
        if self.is_admin or service.startswith("/grpc."):
            return  # health and reflection say nothing that is not public
        allowed = _BY_METHOD.get(name, frozenset())
        if not self.scopes & allowed:
            needed = " or ".join(sorted({*allowed, ADMIN}))
            raise self.refusal(f"{name} needs a token with the scope {needed}")

    def check_admin(self) -> None:
        """Refuse a caller who may not do everything.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        if not self.is_admin:
            raise self.refusal("an adapter does not know who started a run, and answers only who has the scope admin")

    def check_adapter(self, adapter: str) -> None:
        """Refuse an adapter that the caller may not use.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        if not self.is_admin and not any(fnmatchcase(adapter, pattern) for pattern in self.adapters):
            raise self.refusal(f"this token is not for adapter {adapter!r}, only for {', '.join(self.adapters)}")

    def may_read(self, started_by: str) -> bool:
        """Return whether it may see a run.

        Args:
            started_by: the name of the caller who started it.
        """
        return self.is_admin or "read" in self.scopes or self._started(started_by)

    def check_read(self, started_by: str) -> None:
        """Refuse to show a run to a caller who may not see it.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        if not self.may_read(started_by):
            raise self.refusal("the run of another caller needs a token with the scope read or admin")

    def check_control(self, started_by: str) -> None:
        """Refuse to cancel or resume a run for a caller who may not.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        if not self.is_admin and not self._started(started_by):
            raise self.refusal("the run of another caller needs a token with the scope admin")

    def check_answer(self, started_by: str) -> None:
        """Refuse to answer an input request of a run for a caller who may not.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        if not self.is_admin and "respond" not in self.scopes and not self._started(started_by):
            raise self.refusal("the run of another caller needs a token with the scope respond or admin")

    def _started(self, started_by: str) -> bool:
        return "run" in self.scopes and self.name == started_by

    def refusal(self, why: str) -> DragomanError:
        """Return the error for what it may not do: NOT_PERMITTED.

        Args:
            why: a clause.
        """
        return DragomanError(
            Reason.NOT_PERMITTED,
            f"{self.name} is not permitted to do this: {why}.",
            {"caller": self.name, "scopes": ",".join(sorted(self.scopes))},
        )


_SERVER: Final = Caller("")
"""The server itself: outside of calls."""
CALLER: ContextVar[Caller] = ContextVar("dragoman_caller", default=_SERVER)
"""The caller of the present call. The server's gate sets it before the call's handler begins."""


def current_caller() -> Caller:
    """Return the caller of the present call."""
    return CALLER.get()


def unknown_scopes(scopes: Iterable[str]) -> list[str]:
    """Return those that are no scopes."""
    return sorted(set(scopes) - _ANY)
