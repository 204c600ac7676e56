"""Who calls, and what that caller may do: by RPC, by adapter, and by who started a run.

Calls over a Unix socket are of this user, who may do everything; so are calls over TCP with the user's own token.
Other credentials have scopes. The table ``RULES`` has a row for each RPC of the contract; one without a row is for
``admin`` alone.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Final, Literal

from dragoman.protocol.errors import DragomanError, Reason
from msgspec import Struct

SCOPES: Final = {
    "read": "see adapters, and all runs with their events",
    "run": "start runs, and follow, cancel, answer, change and send inputs to those that the same token started",
    "respond": "answer the input requests of all runs",
    "adapter": "register and unregister adapters, if it is for all their names",
    "admin": "everything",
}
"""What a token may be for."""
ADMIN: Final = "admin"
_PUBLIC: Final = frozenset(
    {"/grpc.health.v1.Health", "/grpc.reflection.v1.ServerReflection", "/grpc.reflection.v1alpha.ServerReflection"}
)
"""Services that say nothing that is not public."""

_Target = Literal["none", "adapter", "run"]
"""What else decides about a call, beside its method: nothing, the adapter that it names, or its run."""


class RpcRule(Struct, frozen=True):
    """Who may call an RPC."""

    scopes: frozenset[str]
    """One of them is needed, or ``admin``."""
    target: _Target = "none"
    of_run: frozenset[str] = frozenset()
    """One of them suffices in a token that is for one run."""


def _for(*scopes: str, target: _Target = "none", of_run: Iterable[str] = ()) -> RpcRule:
    return RpcRule(frozenset(scopes), target, frozenset(of_run))


_ADAPTER, _ROUTER = "/dragoman.v1.AdapterService/", "/dragoman.v1.RouterService/"
RULES: Final[dict[str, RpcRule]] = {
    f"{_ADAPTER}Describe": _for("read", "run", "respond", "adapter"),
    # These start an agent's program, which their settings name, or read and write its files.
    f"{_ADAPTER}Detect": _for("run", target="adapter"),
    f"{_ADAPTER}TestEnvironment": _for("run", target="adapter"),
    f"{_ADAPTER}ListModels": _for("run", target="adapter"),
    f"{_ADAPTER}GetQuota": _for("run", target="adapter"),
    # All later runs use the account that it leaves.
    f"{_ADAPTER}Login": _for(target="adapter"),
    f"{_ADAPTER}ListSkills": _for("run", target="adapter"),
    f"{_ADAPTER}SyncSkills": _for(target="adapter"),
    f"{_ADAPTER}Execute": _for("run", target="adapter"),
    f"{_ADAPTER}Attach": _for("read", "run", target="run", of_run=("read",)),
    f"{_ADAPTER}Cancel": _for("run", target="run"),
    f"{_ADAPTER}Respond": _for("run", "respond", target="run", of_run=("respond",)),
    # What is sent gives the agent new work: more than an answer to what it asks.
    f"{_ADAPTER}Send": _for("run", target="run"),
    f"{_ADAPTER}UpdateRun": _for("run", target="run"),
    f"{_ADAPTER}GetChanges": _for("read", "run", target="run", of_run=("read",)),
    f"{_ADAPTER}ReadArtifact": _for("read", "run", target="run", of_run=("read",)),
    f"{_ROUTER}ListAdapters": _for("read", "run", "respond", "adapter"),
    f"{_ROUTER}WatchAdapters": _for("read", "run", "respond", "adapter"),
    f"{_ROUTER}RegisterAdapter": _for("adapter", target="adapter"),
    f"{_ROUTER}UnregisterAdapter": _for("adapter", target="adapter"),
    f"{_ROUTER}RestartAdapter": _for(target="adapter"),
    f"{_ROUTER}ListRuns": _for("read", "run"),
    f"{_ROUTER}GetRun": _for("read", "run", "respond", target="run", of_run=("read",)),
    f"{_ROUTER}ListSessions": _for(),
    f"{_ROUTER}GetSession": _for(),
    f"{_ROUTER}DeleteSession": _for(),
    f"{_ROUTER}CreateAgent": _for(),
    f"{_ROUTER}GetAgent": _for("read"),
    f"{_ROUTER}ListAgents": _for("read"),
    f"{_ROUTER}UpdateAgent": _for(),
    f"{_ROUTER}DeleteAgent": _for(),
    # It decides what the requests of other callers run.
    f"{_ROUTER}SetActiveAgent": _for(),
    # It names those who spend: companies, tasks.
    f"{_ROUTER}ListBudgets": _for("read"),
}
"""By RPC, who may call it."""
_ADMINS: Final = _for()


class Caller(Struct, frozen=True):
    """Who calls, as a server authenticated it."""

    name: str
    """For the record: ``uid 1000``, ``token`` for the user's own, ``token NAME`` for one with scopes, ``run ID`` for
    one of a run, ``jwt ISSUER SUBJECT``, or the URI of a certificate."""
    scopes: frozenset[str] = frozenset({ADMIN})
    adapters: tuple[str, ...] = ("*",)
    """Patterns of the adapters that it may use, by type."""
    run_id: str = ""
    """The only run that it may see or answer; empty if it is not for one run."""

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything."""
        return ADMIN in self.scopes and not self.run_id

    def check_method(self, method: str) -> None:
        """Refuse a method that no scope of the caller is for.

        Args:
            method: its full name, as in ``/package.Service/Method``.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        service, _, name = method.rpartition("/")
        if self.is_admin or service in _PUBLIC:
            return
        rule = RULES.get(method, _ADMINS)
        if not self.scopes & (rule.of_run if self.run_id else rule.scopes):
            if self.run_id:
                raise self.refusal(f"the token of a run is not for {name}")
            needed = " or ".join(sorted({*rule.scopes, ADMIN}))
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

    def may_read(self, started_by: str, run_id: str = "") -> bool:
        """Return whether it may see a run.

        Args:
            started_by: the name of the caller who started it.
            run_id: the run.
        """
        if self.run_id:
            return run_id == self.run_id and "read" in self.scopes
        return self.is_admin or "read" in self.scopes or self._started(started_by)

    def check_read(self, started_by: str, run_id: str = "") -> None:
        """Refuse to show a run to a caller who may not see it.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        if not self.may_read(started_by, run_id):
            raise self.refusal("the run of another caller needs a token with the scope read or admin")

    def check_control(self, started_by: str) -> None:
        """Refuse to cancel or resume a run for a caller who may not.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        if not self.is_admin and not self._started(started_by):
            raise self.refusal("the run of another caller needs a token with the scope admin")

    def check_answer(self, started_by: str, run_id: str = "") -> None:
        """Refuse to answer an input request of a run for a caller who may not.

        Raises:
            DragomanError: NOT_PERMITTED.
        """
        may = run_id == self.run_id if self.run_id else self.is_admin or self._started(started_by)
        if not may and (self.run_id or "respond" not in self.scopes):
            raise self.refusal("the run of another caller needs a token with the scope respond or admin")

    def _started(self, started_by: str) -> bool:
        return "run" in self.scopes and self.name == started_by and not self.run_id

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
    return sorted(set(scopes) - set(SCOPES))
