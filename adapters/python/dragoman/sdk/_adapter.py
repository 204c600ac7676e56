"""What an adapter is: the few things that are its own. Everything else of the contract the SDK serves."""

import abc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, TypedDict

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk._run import Run
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked for."""

    id: str
    label: str = ""
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What an adapter is. Known without looking at the machine."""

    type: str
    """``[a-z][a-z0-9_]*``, unique across a router."""
    label: str
    """A name for people."""
    version: str
    """The adapter's own version."""
    configuration_doc: str
    """Markdown: use when, don't use when, fields; dangerous ones named as dangerous."""
    config_schema: Mapping[str, Any]
    """JSON Schema of ``config``."""
    capabilities: event_pb2.Capabilities = field(default_factory=event_pb2.Capabilities)
    aliases: Sequence[str] = ()
    """Its names in other systems."""
    models: Sequence[Model] = ()
    """Models known without asking anybody."""
    login_variables: Sequence[str] = ()
    """Variables that its agent logs in with: names, or patterns (``ACME_*``), which mean what looks like a login.
    Empty: what the agent inherits; if nothing, it is not said. Told in the schema: ``x-login-variables``."""

    def has(self, feature: event_pb2.Feature.ValueType) -> bool:
        """Tell whether a capability is declared."""
        return any(item.feature == feature for item in self.capabilities.items)


class Documents(TypedDict):
    """What an adapter's folder holds for those who configure it, as ``AdapterInfo`` takes it."""

    configuration_doc: str
    config_schema: Mapping[str, Any]


def shipped_documents(package: str) -> Documents:
    """Return ``configuration.md`` and ``config.schema.json`` of a package; pass ``__package__``."""
    folder = files(package)
    return Documents(
        configuration_doc=(folder / "configuration.md").read_text(encoding="utf-8"),
        config_schema=json.loads((folder / "config.schema.json").read_text(encoding="utf-8")),
    )


def capabilities(
    *features: event_pb2.Feature.ValueType,
    resume: event_pb2.ResumeStyle.ValueType = event_pb2.RESUME_STYLE_UNSPECIFIED,
    cancel: event_pb2.CancelStyle.ValueType = event_pb2.CANCEL_STYLE_SIGNAL,
    permission_mode: event_pb2.PermissionMode.ValueType = event_pb2.PERMISSION_MODE_UNSPECIFIED,
    context_window: int | None = None,
    notes: Mapping[event_pb2.Feature.ValueType, str] | None = None,
) -> event_pb2.Capabilities:
    """Return declared capabilities."""
    made = event_pb2.Capabilities(
        resume_style=resume,
        cancel_style=cancel,
        permission_mode=permission_mode,
        context_window_hint=context_window,
    )
    for feature in features:
        note = (notes or {}).get(feature, "")
        made.items.add(feature=feature, origin=event_pb2.CAPABILITY_ORIGIN_DECLARED, note=note)
    return made


class Adapter(abc.ABC):
    """Wraps one agent. Subclass ``CommandLineAdapter`` for agents that are programs.

    All methods run in one event loop. ``describe`` and ``accept`` are quick and have no side effects.
    """

    @abc.abstractmethod
    def describe(self) -> AdapterInfo:
        """Say what the adapter is. Called once."""

    @abc.abstractmethod
    def accept(self, request: pb.ExecuteRequest) -> Any:
        """Check a request before its run exists, and return what ``execute`` needs of it.

        Raises:
            DragomanError: INVALID_REQUEST with the wrong fields, or NOT_SUPPORTED.
        """

    def session_in_use(self, accepted: Any) -> str:
        """Return the session that a run goes on with, so that no other does at the same time; empty if there is none.

        Args:
            accepted: what ``accept`` returned.
        """
        del accepted
        return ""

    @abc.abstractmethod
    async def execute(self, run: Run) -> event_pb2.Result:
        """Do one run: emit its events, obey ``run.cancel_wish``, and return its result.

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
