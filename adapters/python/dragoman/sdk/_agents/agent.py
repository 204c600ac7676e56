"""What all agents share, programs or not: an author's hooks, served as the contract asks.

``CommandLineAdapter`` is for agents that are programs, ``InProcessAdapter`` for those that are asked over a network.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from dragoman.protocol.duties import ALL_DUTIES
from dragoman.sdk._agents.accepting import accepted
from dragoman.sdk._agents.agent_run import AgentRun
from dragoman.sdk._agents.environment import check_environment
from dragoman.sdk._agents.hooks import AgentHooks
from dragoman.sdk._detection.auth import LoginMemory
from dragoman.sdk._encoding.protobuf import struct_to_dict
from dragoman.sdk._encoding.schema import ConfigSchema
from dragoman.sdk._request.sessions import SessionPlan
from dragoman.sdk._request.settings import Settings
from dragoman.sdk._run.run import Run
from dragoman.sdk.adapter import Adapter
from dragoman.sdk.spec import AdapterInfo, AgentSpec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb


class AgentAdapter(AgentHooks, Adapter):
    """An adapter for an agent of any kind. Subclass one of its two subclasses."""

    duties = ALL_DUTIES

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Refuse a class that does not say what its agent is.

        Raises:
            TypeError: it has no ``spec``.
        """
        if not isinstance(getattr(cls, "spec", None), AgentSpec):
            raise TypeError(
                f"{cls.__name__} has no spec. Write `spec = agent_spec(__package__)` in the class, with"
                " adapter.toml beside it, or `spec = AgentSpec(type=..., ...)`."
            )
        return super().__new__(cls)

    @cached_property
    def schema(self) -> ConfigSchema:
        """The schema of ``config``, compiled once."""
        return ConfigSchema(self.spec.config_schema)

    @cached_property
    def _logins(self) -> LoginMemory:
        return LoginMemory()

    def describe(self) -> AdapterInfo:
        """Return what the adapter is."""
        return self.spec

    def accept(self, request: adapter_pb2.ExecuteRequest) -> Settings:
        """Check the request and read its settings."""
        return accepted(self, self.schema, request)

    def session_in_use(self, accepted: Any) -> str:
        """Return the session that is resumed; a copy leaves it alone."""
        session: SessionPlan = accepted.session
        return session.native_id if session.disposition == pb.SESSION_DISPOSITION_RESUME else ""

    def workspace_of(self, accepted: Any) -> str:
        """Return the directory that the run works in."""
        settings: Settings = accepted
        return settings.cwd if self.spec.has(pb.FEATURE_WORKSPACE) else ""

    async def detect(self, request: adapter_pb2.DetectRequest) -> adapter_pb2.Detection:
        """Look for the agent."""
        return await self.look(self.surroundings(request.env), struct_to_dict(request.config))

    async def test_environment(
        self, request: adapter_pb2.TestEnvironmentRequest
    ) -> Sequence[adapter_pb2.EnvironmentCheck]:
        """Check a set-up."""
        return await check_environment(self, self.schema, self._run_once, request)

    async def execute(self, run: Run) -> pb.Result:
        """Do one run."""
        with run.guards.marker() as marker:
            return await AgentRun(self, run, self._logins, marker).go()

    async def _run_once(self, request: adapter_pb2.ExecuteRequest) -> tuple[pb.Result, str]:
        """Do a run for a check; return its result and all that it said."""
        run = Run(request, self.accept(request), adapter=self.spec.type, instance_id="")
        result = await self.execute(run)
        run.finish(result)
        parts = [result.summary]
        reader = run.event_buffer.reader()  # only now: the turn is read once it is over
        while chunk := await reader.read():
            events = [pb.AgentEvent.FromString(data) for data in chunk]
            parts += [event.text.delta + event.text.whole + event.log.text for event in events]
        return result, "".join(parts)
