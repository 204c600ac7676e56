"""The acceptance of a run: its adapter, its session, and what must be right before it starts."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from dragoman.protocol import audit
from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid, invalid_fields, not_supported
from dragoman.protocol.identity import new_run_id
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.api.agents import StoredAgents
from dragoman.router.api.call_quotas import CallQuotas
from dragoman.router.api.drain import Drain
from dragoman.router.model.ports import RequestPolicy
from dragoman.router.model.stored import TaskId
from dragoman.router.policy.fallback import settings_problem
from dragoman.router.runs.actor import Run
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.runs.sending import Sent
from dragoman.v1 import adapter_pb2 as pb

if TYPE_CHECKING:
    from dragoman.protocol.run_tokens import RunTokens

_Chain: TypeAlias = Mapping[str, AdapterBackend | None]
"""The adapters that a run may fall back to, as far as they are known, by their names in the request."""


class Acceptance:
    """Accepts runs.

    Args:
        agents: those that requests name, with the adapters.
        tokens: returns what issues tokens for runs now; ``None`` if nothing does.
    """

    def __init__(
        self,
        agents: StoredAgents,
        runs: RunRegistry,
        drain: Drain,
        policy: RequestPolicy,
        quotas: CallQuotas,
        tokens: Callable[[], "RunTokens | None"],
    ) -> None:
        self._quotas = quotas
        self._tokens = tokens
        self._agents = agents
        self._adapters = agents.adapters
        self._runs = runs
        self._drain = drain
        self.policy = policy

    async def accept(self, request: pb.ExecuteRequest) -> tuple[Run, bool]:
        """Return the run that a request starts, and whether it is new to its readers.

        Raises:
            DragomanError: the run is refused.
        """
        sent, agent_name = request, await self._agent_name(request)
        if agent_name:
            request = await self._agents.fill(request, agent_name)
        backend = await self._adapters.get(request.adapter)
        if backend.record.is_rejected:
            raise backend.refusal()
        chain: _Chain = {name: self._adapters.present(name) for name in request.fallback.adapters}
        self._check_caller(request, backend.record.type, chain)
        self.policy.check(request, backend.record.type)
        session = await self._runs.sessions.find(request, backend)
        self._drain.refuse_new()
        # Another call may have been faster while the adapter, or the run whose session is resumed, was looked up.
        if (known := self._runs.same(sent)) is not None:
            return known, False
        self._quotas.check_runs(self._live)
        self._runs.exclusion.refuse_beside((request.agent.company_id, request.agent.id, request.task_key), backend)
        _refuse_unknown_settings(request, chain)
        issued = self._issue(request)
        run = self._runs.execute(request, backend, session, sent, agent_name)
        run.adapter_token = issued
        self._note_unknown_fallbacks(run, chain)
        return run, True

    async def check_sent(self, request: Sent, run: Run) -> Callable[[], None]:
        """Return what refuses something sent to a run that the policy does not allow for the adapter it has by then.

        Raises:
            DragomanError: INVALID_REQUEST: the stored agent of the run decides about it; or RUN_LOG_UNAVAILABLE.
        """
        if isinstance(request, pb.UpdateRunRequest) and run.record.agent_name and request.HasField("permission_mode"):
            wrong = await self._agents.mode_problem(run.record.agent_name, request.permission_mode)
            if wrong:
                raise invalid("permission_mode", wrong)
        return lambda: self.policy.check(request, run.record.adapter)

    async def _agent_name(self, request: pb.ExecuteRequest) -> str:
        """Return the stored agent that a request names, or the active one of its task; empty if it names an adapter.

        Raises:
            DragomanError: ADAPTER_REQUIRED, or RUN_LOG_UNAVAILABLE.
        """
        if request.agent_name or request.adapter or not request.task_key:
            return request.agent_name
        task = TaskId(request.agent.company_id, request.task_key)
        if name := await self._agents.active.use(task):
            return name
        message = (
            f"Task {request.task_key[:200]!r} has no active agent; name an adapter or an agent in the request, or set"
            " the task's agent with SetActiveAgent."
        )
        raise DragomanError(Reason.ADAPTER_REQUIRED, message)

    def _live(self, name: str) -> int:
        return sum(run.record.started_by == name for run in self._runs.live())

    def _issue(self, request: pb.ExecuteRequest) -> str:
        """Put a token for the agent into a request that asks for one; return the adapter's, empty for none.

        Raises:
            DragomanError: NOT_SUPPORTED, or INVALID_REQUEST.
        """
        asked = request.admission.run_token if request.admission.HasField("run_token") else None
        tokens = self._tokens()
        if tokens is None:
            if asked is not None:
                raise not_supported("admission.run_token", "this router issues no tokens; see DRAGOMAN_TRUST")
            return ""
        from dragoman.router.api.run_token import agent_token, of_adapter  # noqa: PLC0415 - few routers issue tokens

        request.run_id = request.run_id or new_run_id()
        if asked is not None:
            request.auth_token = agent_token(tokens, request, asked)
        return of_adapter(tokens, request)

    def _check_caller(self, request: pb.ExecuteRequest, adapter: str, chain: _Chain) -> None:
        """Refuse adapters that the caller may not use; an alias that is unknown by now counts as a type."""
        caller = current_caller()
        audit.about(adapter=adapter, run_id=request.run_id)
        caller.check_adapter(adapter)
        for name, following in chain.items():
            caller.check_adapter(following.record.type if following is not None else name)

    def _note_unknown_fallbacks(self, run: Run, chain: _Chain) -> None:
        """Emit a notice for each unknown fallback adapter: no error, as adapters report aliases at their start."""
        for name, following in chain.items():
            if following is None:
                near = self._adapters.similar_names(name)
                hint = f"did you mean {' or '.join(near)}?" if near else "it may be an alias of one not yet started."
                run.notices.warn("fallback_unknown", f"Fallback adapter {name[:200]!r} not found; {hint}")


def _refuse_unknown_settings(request: pb.ExecuteRequest, chain: _Chain) -> None:
    """Refuse a run whose fallback would refuse its settings, as far as the adapters were described."""
    wrong = []
    for name, following in chain.items():
        described = following.record.description if following is not None else None
        problem = settings_problem(request, name, described.config_schema_json) if described is not None else ""
        if problem:
            wrong.append(FieldViolation(f"fallback.configs.{name}", problem))
    if wrong:
        raise invalid_fields(wrong)
