"""The file with the operator's policy: read at the start, and again when it has changed."""

import os
from pathlib import Path

from dragoman.protocol.errors import FieldViolation
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import file_stamp
from dragoman.router.model.ports import Asked, RequestPolicy
from dragoman.router.model.quotas import Quotas
from dragoman.router.model.spending import LabelBudget
from dragoman.router.policy.operator_policy import (
    OperatorPolicy,
    PolicyError,
    caller_objections,
    denied,
    input_objections,
    objections,
    parse_policy,
    permitted,
    update_objections,
)
from dragoman.v1 import adapter_pb2, event_pb2

_log = Logger("dragoman.router")


class OperatorPolicyFile(RequestPolicy):
    """The policy in a file. If a change is invalid, the policy before it stays in force.

    Raises:
        PolicyError: it cannot be read, or is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = file_stamp(path)
        self._policy = read_policy(path)

    def current(self) -> OperatorPolicy:
        """Return the policy in force: read again if the file is another one, as a changed ConfigMap's is."""
        stamp = file_stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._policy = read_policy(self._path)
                _log.info("policy changed", file=str(self._path))
            except PolicyError as error:
                _log.error("policy kept as it was", file=str(self._path), why=str(error))
        return self._policy

    def check(self, request: Asked, adapter: str) -> None:
        """Refuse a request, as the caller sent it, that asks for more than is allowed of an adapter's type.

        Raises:
            DragomanError: POLICY_DENIED.
        """
        policy, wrong = self.current(), list[FieldViolation]()
        match request:
            case adapter_pb2.ExecuteRequest():
                wrong += objections(policy, request, adapter, os.path.realpath)
                wrong += caller_objections(policy, request)
            case adapter_pb2.SendRequest():
                wrong += input_objections(policy, request, os.path.realpath)
            case adapter_pb2.UpdateRunRequest():
                wrong += update_objections(policy, request, adapter)
        if wrong:
            _log.info("request denied by policy", adapter=adapter, fields=[one.path for one in wrong])
            raise denied(wrong)

    def permit(self, request: adapter_pb2.ExecuteRequest, adapter: str) -> None:
        """Complete what an adapter gets by what the policy adds, in place.

        Raises:
            DragomanError: POLICY_DENIED.
        """
        request.CopyFrom(permitted(self.current(), request, adapter, os.path.realpath))

    def allows_adapter(self, adapter: str) -> bool:
        """Return whether runs may use an adapter, by its type."""
        return self.current().allows_adapter(adapter)

    def quotas(self) -> Quotas:
        """Return how much each caller may have."""
        return self.current().quotas

    def budget(self) -> event_pb2.Budget:
        """Return the budget that each run has at most; empty for none."""
        return self.current().budget

    def budgets(self) -> tuple[LabelBudget, ...]:
        """Return the budgets that runs share."""
        return self.current().budgets


def read_policy(path: Path) -> OperatorPolicy:
    """Read a policy.

    Raises:
        PolicyError: the file cannot be read, or is invalid.
    """
    try:
        return parse_policy(path.read_bytes())
    except OSError as error:
        raise PolicyError(f"cannot be read: {error.strerror}") from error
