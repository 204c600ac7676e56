"""One broken router per rule that only routers have to keep, as ``breaks`` has the adapters."""

import asyncio

from dragoman.protocol.errors import Reason
from dragoman.v1 import router_pb2

from tests.conformance.breaks import answer, no_field, reason
from tests.conformance.proxy import Break, Call, Events


def _longer(call: Call) -> None:
    if call.method == "RegisterAdapter" and call.request.lease.seconds == 1:
        call.request.lease.seconds = 60


def _as_configured(call: Call, came: router_pb2.ListAdaptersResponse) -> None:
    del call
    for entry in came.adapters:
        entry.source = router_pb2.ADAPTER_SOURCE_ADDRESS


async def _first_alone(call: Call, events: Events) -> Events:
    async for came in events:
        yield came
        if call.method == "WatchAdapters":
            await asyncio.Event().wait()


def _any_version(call: Call) -> None:
    if call.method == "DeleteAgent":
        call.request.version = 0


def _without_secrets(call: Call) -> None:
    if call.method == "CreateAgent":
        call.request.agent.ClearField("env")


def _without_task(call: Call) -> None:
    if call.method == "GetAgent":
        call.request.ClearField("task_key")


def _more_runs(_call: Call, came: router_pb2.GetSessionResponse) -> None:
    came.session.runs += 1


ROUTER_BREAKS: dict[str, Break] = {
    "registration.listed": answer("ListAdapters", _as_configured),
    "registration.lease": answer(
        "RegisterAdapter",
        lambda call, came: setattr(came.expires_at, "seconds", 0) if not call.request.HasField("lease") else None,
    ),
    "registration.lease-bounds": no_field("lease"),
    "registration.expires": Break(request=_longer),
    "registration.taken": reason(Reason.ADAPTER_TAKEN, Reason.ADAPTER_REFUSED),
    "registration.unreachable": reason(Reason.ADAPTER_UNREACHABLE, Reason.ADAPTER_REFUSED),
    "registration.unregister": answer("UnregisterAdapter", lambda _, came: setattr(came, "unregistered", True)),
    "registration.restart": reason(Reason.ADAPTER_NOT_LAUNCHED, Reason.ADAPTER_REFUSED),
    "router.runs": answer("GetRun", lambda _, came: came.run.ClearField("finished_at")),
    "router.run-unknown": reason(Reason.RUN_NOT_FOUND, Reason.REQUEST_NOT_FOUND, method="GetRun"),
    "router.page-token": reason(Reason.INVALID_PAGE_TOKEN, Reason.INVALID_REQUEST),
    "router.watch": Break(events=_first_alone),
    "router.session": answer("GetSession", _more_runs),
    "router.session-unknown": reason(Reason.SESSION_NOT_FOUND, Reason.RUN_NOT_FOUND),
    "router.session-adapter": reason(Reason.ADAPTER_REQUIRED, Reason.INVALID_REQUEST, method="GetSession"),
    "router.agents": answer("ListAgents", lambda _, came: came.ClearField("agents")),
    "router.agent-exists": reason(Reason.AGENT_EXISTS, Reason.INVALID_REQUEST),
    "router.agent-unknown": reason(Reason.AGENT_NOT_FOUND, Reason.RUN_NOT_FOUND, method="UpdateAgent"),
    "router.agent-version": Break(request=_any_version),
    "router.agent-secret": Break(request=_without_secrets),
    "router.agent-active": Break(request=_without_task),
    "router.agent-run": answer(
        "ListRuns", lambda call, came: came.ClearField("runs") if call.request.agent_name else None
    ),
}
"""What breaks each rule that only a router has to keep."""


def _rename(call: Call, came: router_pb2.GetAgentResponse) -> None:
    if call.request.task_key:
        came.agent.name = "another"


ROUTER_STRICTER = {
    ("router.agents", "CreateAgent answers the agent 'another'"): answer(
        "CreateAgent", lambda _, came: setattr(came.agent, "name", "another")
    ),
    ("router.agents", "a new agent has the version 2"): answer(
        "CreateAgent", lambda _, came: setattr(came.agent, "version", 2)
    ),
    ("router.agents", "GetAgent answers another agent"): answer(
        "GetAgent", lambda _, came: setattr(came.agent, "description", "another")
    ),
    ("router.agent-version", "a changed agent has the version 7"): answer(
        "UpdateAgent", lambda _, came: setattr(came.agent, "version", 7)
    ),
    ("router.agent-version", "changed or lost by a call with an earlier version"): answer(
        "GetAgent", lambda _, came: came.agent.labels.update(kit="another")
    ),
    ("router.agent-run", "is of the adapter 'another'"): answer(
        "GetRun", lambda _, came: setattr(came.run, "adapter", "another")
    ),
    ("router.agent-run", "agent_name is 'another'"): answer(
        "GetRun", lambda _, came: setattr(came.run, "agent_name", "another")
    ),
    ("router.agent-run", "does not get the labels of its agent"): answer(
        "GetRun", lambda _, came: came.run.labels.update(kit="another")
    ),
    ("router.agent-active", "a new task has the active agent 'another'"): answer(
        "SetActiveAgent", lambda _, came: setattr(came, "previous_agent_name", "another")
    ),
    ("router.agent-active", "the active agent of the task is 'another'"): answer("GetAgent", _rename),
}
"""More ways to break them, and what the kit says of each."""
