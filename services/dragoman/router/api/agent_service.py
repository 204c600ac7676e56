"""The RPCs of ``RouterService`` for stored agents."""

from dragoman.protocol.server import Context
from dragoman.router.api.agents import StoredAgents
from dragoman.router.api.authorization import allow
from dragoman.router.api.drain import Drain
from dragoman.v1 import router_pb2 as pb


class Joined:
    """Serves what several parts serve, each its own RPCs.

    Args:
        parts: objects with a coroutine method for each RPC.
    """

    def __init__(self, *parts: object) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> object:
        for part in self._parts:
            if (method := getattr(part, name, None)) is not None:
                return method
        raise AttributeError(name)


class AgentServicer:
    """Serves stored agents."""

    def __init__(self, agents: StoredAgents, drain: Drain) -> None:
        self._agents = agents
        self._drain = drain

    async def CreateAgent(self, request: pb.CreateAgentRequest, _context: Context) -> pb.CreateAgentResponse:  # noqa: N802 - the contract's name
        """Store a new agent."""
        self._drain.refuse_new()
        agent = await self._agents.create(request.agent)
        allow(adapter=agent.adapter)
        return pb.CreateAgentResponse(agent=agent)

    async def GetAgent(self, request: pb.GetAgentRequest, _context: Context) -> pb.GetAgentResponse:  # noqa: N802 - the contract's name
        """Return one agent."""
        return pb.GetAgentResponse(agent=await self._agents.get(request.name))

    async def ListAgents(self, request: pb.ListAgentsRequest, _context: Context) -> pb.ListAgentsResponse:  # noqa: N802 - the contract's name
        """List agents, by name."""
        return await self._agents.page(request)

    async def UpdateAgent(self, request: pb.UpdateAgentRequest, _context: Context) -> pb.UpdateAgentResponse:  # noqa: N802 - the contract's name
        """Replace an agent."""
        self._drain.refuse_new()
        agent = await self._agents.update(request.agent)
        allow(adapter=agent.adapter)
        return pb.UpdateAgentResponse(agent=agent)

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, _context: Context) -> pb.DeleteAgentResponse:  # noqa: N802 - the contract's name
        """Delete an agent."""
        return pb.DeleteAgentResponse(deleted=await self._agents.delete(request.name, request.version))
