"""What an adapter is: the few things that are its own. Everything else of the contract the SDK serves."""

import abc
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk._run.run import Run
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

__all__ = ["Adapter"]


class Adapter(abc.ABC):
    """Wraps one agent. Subclass ``CommandLineAdapter`` for agents that are programs.

    All methods run in one event loop. ``describe`` and ``accept`` are quick and have no side effects.
    """

    duties: Sequence[pb.Duty.ValueType] = ()
    """What it does itself, so that no router does it."""

    starts_programs = False
    """Whether its runs start programs, for the first of which the server of a command makes ready."""

    @abc.abstractmethod
    def describe(self) -> AdapterInfo:
        """Return what the adapter is: always the same."""

    @abc.abstractmethod
    def accept(self, request: pb.ExecuteRequest) -> Any:
        """Check a request before its run exists, and return what ``execute`` needs of it.

        Raises:
            DragomanError: INVALID_REQUEST with the wrong fields, or NOT_SUPPORTED.
        """

    def session_in_use(self, accepted: Any) -> str:
        """Return the session that a run resumes, so that no other run does at the same time; empty if there is none.

        Args:
            accepted: what ``accept`` returned.
        """
        del accepted
        return ""

    def workspace_of(self, accepted: Any) -> str:
        """Return the directory that a run works in, absolute, for GetChanges; empty if there is none.

        Args:
            accepted: what ``accept`` returned.
        """
        del accepted
        return ""

    @abc.abstractmethod
    async def execute(self, run: Run) -> event_pb2.Result:
        """Do one run: emit its events, obey ``run.cancellation``, and return its result.

        When this returns, nothing of the run is left running. An exception becomes a FAILED result of kind
        INTERNAL. The task is cancelled only when the server stops and the run goes on long after its grace.
        """

    @abc.abstractmethod
    async def detect(self, request: pb.DetectRequest) -> pb.Detection:
        """Look for the agent. Expected findings are data; time is bounded."""

    @abc.abstractmethod
    async def test_environment(self, request: pb.TestEnvironmentRequest) -> Sequence[pb.EnvironmentCheck]:
        """Check a set-up. Findings are checks, never exceptions."""

    async def list_models(self, request: pb.ListModelsRequest) -> pb.ListModelsResponse:
        """List models; without an own way, those of ``describe``."""
        del request
        response = pb.ListModelsResponse(source=pb.MODEL_SOURCE_STATIC)
        for model in self.describe().models:
            response.models.add(id=model.id, label=model.label, is_default=model.is_default)
        return response

    async def get_quota(self, request: pb.GetQuotaRequest) -> pb.GetQuotaResponse:
        """Ask the agent how much of its account's rate limits is used; its adapter declares FEATURE_QUOTA.

        Why there is no answer is ``failure``, never an exception; time is bounded.
        """
        del request
        raise NotImplementedError("an adapter with FEATURE_QUOTA has to report it")

    def log_in(self, request: pb.LoginRequest) -> AsyncGenerator[pb.LoginResponse, None]:
        """Have the agent log its user in; its adapter declares FEATURE_LOGIN.

        Why it failed is the outcome, never an exception; after the outcome nothing follows. Closed, the iterator ends
        the agent's program.

        Raises:
            DragomanError: INVALID_REQUEST: the agent has no such method.
        """
        del request
        raise NotImplementedError("an adapter with FEATURE_LOGIN has to do it")

    async def list_skills(self, request: pb.ListSkillsRequest) -> pb.ListSkillsResponse:
        """List the skills that the agent finds by itself."""
        del request
        raise DragomanError(Reason.NOT_IMPLEMENTED, f"{self.describe().type} has no skills of its own")

    async def sync_skills(self, request: pb.SyncSkillsRequest) -> pb.SyncSkillsResponse:
        """Put skills where the agent keeps its own."""
        del request
        raise DragomanError(
            Reason.NOT_IMPLEMENTED,
            f"{self.describe().type} is given its skills with each run (ExecuteRequest.skills); nothing is kept",
        )

    async def close(self) -> None:  # noqa: B027 - most adapters have nothing that outlives runs
        """End what outlives runs. Called once, when the server has stopped."""
