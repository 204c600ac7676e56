"""The interfaces of the machine that several packages need; ``dragoman.router.system`` implements them."""

from collections.abc import Sequence
from typing import Protocol

from dragoman.router.model.quotas import Quotas
from dragoman.router.model.spending import LabelBudget
from dragoman.v1 import adapter_pb2, event_pb2

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


class RequestPolicy(Protocol):
    """What the operator of a router allows requests."""

    def check(self, request: adapter_pb2.ExecuteRequest, adapter: str) -> None:
        """Refuse a request, as the caller sent it, that asks for more than is allowed of an adapter's type.

        Raises:
            DragomanError: POLICY_DENIED.
        """

    def check_update(self, request: adapter_pb2.UpdateRunRequest, adapter: str) -> None:
        """Refuse a change of a run that asks for more than is allowed of an adapter's type.

        Raises:
            DragomanError: POLICY_DENIED.
        """

    def check_input(self, request: adapter_pb2.SendRequest) -> None:
        """Refuse an input in mid-run that asks for more than is allowed.

        Raises:
            DragomanError: POLICY_DENIED.
        """

    def permit(self, request: adapter_pb2.ExecuteRequest, adapter: str) -> None:
        """Complete what an adapter gets by what the policy adds, in place.

        Raises:
            DragomanError: POLICY_DENIED.
        """

    def allows_adapter(self, adapter: str) -> bool:
        """Return whether runs may use an adapter, by its type."""

    def quotas(self) -> Quotas:
        """Return how much each caller may have."""

    def budget(self) -> event_pb2.Budget:
        """Return the budget that each run has at most; empty for none."""

    def budgets(self) -> Sequence[LabelBudget]:
        """Return the budgets that runs share."""


class Unrestricted:
    """The policy of a router whose operator has set none."""

    def check(self, request: adapter_pb2.ExecuteRequest, adapter: str) -> None:
        """Allow everything."""

    def check_update(self, request: adapter_pb2.UpdateRunRequest, adapter: str) -> None:
        """Allow everything."""

    def check_input(self, request: adapter_pb2.SendRequest) -> None:
        """Allow everything."""

    def permit(self, request: adapter_pb2.ExecuteRequest, adapter: str) -> None:
        """Add nothing."""

    def allows_adapter(self, adapter: str) -> bool:  # noqa: ARG002 - any adapter
        """Return True."""
        return True

    def quotas(self) -> Quotas:
        """Return no quotas."""
        return _NO_QUOTAS

    def budget(self) -> event_pb2.Budget:
        """Return no caps."""
        return event_pb2.Budget()

    def budgets(self) -> Sequence[LabelBudget]:
        """Return no budgets."""
        return ()
