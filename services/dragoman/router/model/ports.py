"""What several packages need of the machine, as ``dragoman.router.system`` implements it, and of the operator."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from dragoman.router.model.quotas import Quotas
from dragoman.router.model.spending import LabelBudget
from dragoman.v1 import adapter_pb2, event_pb2

Asked: TypeAlias = (
    adapter_pb2.ExecuteRequest | adapter_pb2.RespondRequest | adapter_pb2.SendRequest | adapter_pb2.UpdateRunRequest
)
"""Requests that a policy may refuse."""
_NO_QUOTAS = Quotas()


class Processes(Protocol):
    """The visible processes of this machine."""

    def started(self, pid: int) -> int | None:
        """Return the start mark of a living process, which distinguishes uses of one pid; ``None`` if it is gone."""

    def own_name(self) -> str:
        """Return a globally unique name for this process."""

    def is_gone(self, name: str) -> bool:
        """Return whether the process with this name is one of this machine and is certainly gone."""


class Clock(Protocol):
    """Time and randomness."""

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock."""

    def time(self) -> float:
        """Return seconds since the epoch."""

    def chance(self) -> float:
        """Return a random number in [0, 1)."""


class RequestPolicy:
    """What the operator of a router allows requests: everything, unless a subclass says otherwise."""

    def check(self, request: Asked, adapter: str) -> None:
        """Refuse a request, as the caller sent it, that asks for more than is allowed of an adapter's type.

        Raises:
            DragomanError: POLICY_DENIED.
        """

    def permit(self, request: adapter_pb2.ExecuteRequest, adapter: str) -> None:
        """Complete what an adapter gets by what the policy adds, in place.

        Raises:
            DragomanError: POLICY_DENIED.
        """

    def allows_adapter(self, adapter: str) -> bool:  # noqa: ARG002 - any adapter
        """Return whether runs may use an adapter, by its type."""
        return True

    def quotas(self) -> Quotas:
        """Return how much each caller may have."""
        return _NO_QUOTAS

    def budget(self) -> event_pb2.Budget:
        """Return the budget that each run has at most; empty for none."""
        return event_pb2.Budget()

    def budgets(self) -> Sequence[LabelBudget]:
        """Return the budgets that runs share."""
        return ()
