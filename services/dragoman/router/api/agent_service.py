"""The RPCs of ``RouterService`` for stored agents."""

from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.server import Context
from dragoman.router.api.agents import StoredAgents
from dragoman.router.api.authorization import allow
from dragoman.router.api.calls import refuse
from dragoman.router.api.drain import Drain
from dragoman.router.api.validation import list_objection
from dragoman.router.model.stored import TaskId
from dragoman.v1 import router_pb2 as pb


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
        """Return one agent, or that of a task."""
        task = TaskId(request.company_id, request.task_key)
        if not request.task_key:
            if request.company_id:
                raise invalid("company_id", "is of use only with task_key; leave it out, or set task_key")
            return pb.GetAgentResponse(agent=await self._agents.get(request.name))
        if request.name:
            raise invalid("task_key", "must be left out if name is set")
        refuse(list_objection({"company_id": task.company_id, "task_key": task.task_key}))
        if name := await self._agents.active.name(task):
            return pb.GetAgentResponse(agent=await self._agents.get(name))
        message = f"Task {task.task_key[:200]!r} has no active agent; set one with SetActiveAgent."
        raise DragomanError(Reason.AGENT_NOT_FOUND, message)

    async def SetActiveAgent(self, request: pb.SetActiveAgentRequest, _context: Context) -> pb.SetActiveAgentResponse:  # noqa: N802 - the contract's name
        """Give a task an agent, or leave it without one."""
        self._drain.refuse_new()
        if not request.task_key:
            raise invalid("task_key", "is missing; name the task")
        task = TaskId(request.company_id, request.task_key)
        refuse(list_objection({"company_id": task.company_id, "task_key": task.task_key}))
        before = await self._agents.active.name(task)
        if not request.agent_name:
            await self._agents.active.clear(task)
            return pb.SetActiveAgentResponse(previous_agent_name=before)
        agent = await self._agents.get(request.agent_name)
        while not await self._agents.active.set(task, agent.name):
            agent = await self._agents.get(request.agent_name)  # it was deleted meanwhile
        allow(adapter=agent.adapter)
        return pb.SetActiveAgentResponse(previous_agent_name=before)

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
