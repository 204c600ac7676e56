"""The client: every RPC of the contract, typed."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Any, Self, TypeVar

import grpc
from dragoman.client._artifacts import pieces
from dragoman.client._channel import Channel
from dragoman.client._control import RunControl
from dragoman.client._requests import duration, optional_duration, to_config
from dragoman.client._stream import RunStream
from dragoman.protocol.addresses import is_served
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import new_run_id
from dragoman.protocol.limits import CLIENT_ORPHAN_AFTER_S, MAX_REQUEST_BYTES, REATTACH_S
from dragoman.protocol.private import ROUTER_VARIABLE, default_address
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

_LIVE_REQUEST_S = 60
_CHANGES_S = 120
"""Seconds that a large workspace may take to be compared."""
_PAGE = 1000
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class Client:
    """A client of a router or of one adapter; an asynchronous context manager.

    ``adapter`` is the name of the adapter; a client of one adapter may leave it empty. Every method raises
    `DragomanError` if the call fails; its ``reason`` is stable, for programs.

    Args:
        address: ``unix:/path`` or ``host:port``; default: ``DRAGOMAN_ROUTER``, else this user's router.
        token: the credential of calls over TCP; default: ``DRAGOMAN_TOKEN``, else this user's token if the server is
            this user's. Unix sockets need none.
        reattach_s: seconds without progress after which reconnecting a broken stream is given up.
        timeout_s: time limit of each call, in seconds; ``None`` for no limit. It does not apply to streams, nor to
            `cancel`, which waits for the end of the run.

    Example::

        async with Client() as client:
            for detection in await client.detect():
                print(detection.adapter, detection.version)
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        reattach_s: float = REATTACH_S,
        timeout_s: float | None = 120.0,
    ) -> None:
        self.address = address or os.environ.get(ROUTER_VARIABLE) or default_address()
        self._is_default = self.address == default_address()
        self._token = token
        self._reattach_s = reattach_s
        self._timeout = timeout_s
        self._open_channel: Channel | None = None

    def __repr__(self) -> str:
        return f"<Client {self.address}{'' if self._open_channel else ' (closed)'}>"

    async def __aenter__(self) -> Self:
        if self._is_default and not is_served(self.address):
            raise DragomanError(
                Reason.ADAPTER_UNAVAILABLE,
                f"no router is running at {self.address}; start one with 'dragoman serve', or pass another address "
                f"to Client or in {ROUTER_VARIABLE}",
            )
        # A channel belongs to the running loop, so it is not created in the constructor.
        self._open_channel = Channel(self.address, token=self._token)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and detach from all runs."""
        if self._open_channel is not None:
            await self._open_channel.close()
        self._open_channel = None

    @property
    def _channel(self) -> Channel:
        if self._open_channel is None:
            raise RuntimeError("the client is not open; use it as 'async with Client(...) as client'")
        return self._open_channel

    async def _ask(
        self, rpc: "grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]", request: _Request
    ) -> _Response:
        return await self._channel.answer(rpc(request, timeout=self._timeout))

    async def describe(self, adapter: str = "") -> pb.DescribeResponse:
        """Return the adapter's version, capabilities and configuration schema. It has no side effects."""
        return await self._ask(self._channel.adapter.Describe, pb.DescribeRequest(adapter=adapter))

    async def detect(
        self,
        adapter: str = "",
        *,
        refresh: bool = False,
        env: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> list[pb.Detection]:
        """Detect agents: executable, version, directories, login.

        Args:
            adapter: the adapter; empty for all of a router's.
            refresh: detect now, without a cache.
            env: environment variables for the detection, e.g. ``PATH``.
            config: settings for the detection; ``command`` names the executable.
        """
        request = pb.DetectRequest(adapter=adapter, refresh=refresh, env=env, config=to_config(config))
        return list((await self._ask(self._channel.adapter.Detect, request)).detections)

    async def test_environment(
        self,
        adapter: str = "",
        *,
        live: bool = False,
        cwd: str = "",
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        request: pb.TestEnvironmentRequest | None = None,
    ) -> pb.TestEnvironmentResponse:
        """Check whether a run with these options can work.

        Args:
            adapter: the adapter.
            live: make one short request to the model, which spends a few tokens.
            cwd: the run's working directory, absolute; empty for ``config["cwd"]``.
            config: the run's settings.
            env: the run's environment variables.
            request: further fields, such as ``model``, ``company_id`` and ``timeout`` (of the live request; 60
                seconds by default); not changed.
        """
        merged = pb.TestEnvironmentRequest(adapter=adapter, env=env, config=to_config(config))
        merged.mode = pb.TEST_MODE_LIVE if live else pb.TEST_MODE_QUICK
        if cwd:
            merged.workspace.cwd = cwd
        if request is not None:
            merged.MergeFrom(request)
        timeout = self._timeout
        if live:
            if not merged.HasField("timeout"):
                merged.timeout.FromSeconds(_LIVE_REQUEST_S)
            timeout = None if timeout is None else timeout + merged.timeout.ToNanoseconds() / 1e9
        return await self._channel.answer(self._channel.adapter.TestEnvironment(merged, timeout=timeout))

    def execute(self, request: pb.ExecuteRequest) -> RunStream:
        """Run an agent.

        The request is sent when the stream is entered or first read. Without a ``run_id`` it gets a new one, which
        makes sending it idempotent; without ``orphan_after`` it gets 30 seconds. Batches are requested of a server
        that supports them, and unrolled.

        Args:
            request: the request, e.g. from `execute_request`; not changed.
        """
        if (size := request.ByteSize()) > MAX_REQUEST_BYTES:  # gRPC would refuse it without a reason
            from dragoman.protocol.bounds import check_size  # noqa: PLC0415 - few are that large

            check_size(size)
        own = pb.ExecuteRequest()
        own.CopyFrom(request)
        own.run_id = own.run_id or new_run_id()
        if not own.HasField("orphan_after"):
            own.orphan_after.CopyFrom(duration(CLIENT_ORPHAN_AFTER_S, "orphan_after"))
        attach = pb.AttachRequest(run_id=own.run_id, adapter=own.adapter, hold=True)
        if self._channel.grants_batching:
            own.batching.SetInParent()
            attach.batching.CopyFrom(own.batching)
        return RunStream(
            self._channel, execute=own, attach=attach, reattach_s=self._reattach_s, timeout_s=self._timeout
        )

    def attach(self, run_id: str, *, after_sequence: int = 0, hold: bool = False, adapter: str = "") -> RunStream:
        """Follow an existing run: a replay, ``replay_done``, then live events.

        Args:
            run_id: the run.
            after_sequence: the last sequence that was read; 0 for the whole run.
            hold: whether this stream keeps the run from being orphaned.
            adapter: the run's adapter; empty if the router knows the run.
        """
        request = pb.AttachRequest(run_id=run_id, after_sequence=after_sequence, hold=hold, adapter=adapter)
        if self._channel.grants_batching:
            request.batching.SetInParent()
        return RunStream(self._channel, attach=request, reattach_s=self._reattach_s, timeout_s=self._timeout)

    def _run(self, run_id: str, adapter: str) -> RunControl:
        return RunControl(self._channel, pb.AttachRequest(run_id=run_id, adapter=adapter), self._timeout)

    async def cancel(
        self, run_id: str, *, grace_s: float | None = None, reason: str = "", adapter: str = ""
    ) -> pb.CancelResponse:
        """Cancel a run, and wait until its result is recorded.

        Args:
            run_id: the run.
            grace_s: seconds that the agent gets to stop by itself; ``None`` for the run's own, 0 kills it now.
            reason: why, for people.
            adapter: the run's adapter; empty if the router knows the run.

        Returns:
            The outcome; not CANCELLED if the run ended before.
        """
        return await self._run(run_id, adapter).cancel(grace_s=grace_s, reason=reason)

    async def respond(
        self, run_id: str, request_id: str, answer: event_pb2.InputAnswer, *, responder: str = "", adapter: str = ""
    ) -> pb.RespondResponse:
        """Answer an ``input_request``. The first valid answer wins; repeating it is idempotent.

        Args:
            run_id: the run.
            request_id: the request.
            answer: the answer, of the kind that the request asks for.
            responder: who answers, for the record.
            adapter: the run's adapter; empty if the router knows the run.
        """
        return await self._run(run_id, adapter).respond(request_id, answer, responder=responder)

    async def send(
        self,
        run_id: str,
        text: str,
        *,
        mode: event_pb2.InputMode.ValueType = event_pb2.INPUT_MODE_QUEUE,
        attachments: Iterable[pb.Attachment] = (),
        input_id: str = "",
        sender: str = "",
        adapter: str = "",
    ) -> pb.SendResponse:
        """Give a run an input while its agent works. The events of the run say whether the agent took it.

        Args:
            run_id: the run.
            text: the text for the agent.
            mode: QUEUE: as another turn, after the present one; STEER: in the present turn.
            attachments: files and images that go with it.
            input_id: the input's ID; sending it again is idempotent. Empty: a new one.
            sender: who sends it, for the record.
            adapter: the run's adapter; empty if the router knows the run.

        Raises:
            DragomanError: NOT_SUPPORTED: the adapter does not declare the mode, or takes no files or no images;
                RUN_FINISHED; TOO_MANY_INPUTS.
        """
        run = self._run(run_id, adapter)
        return await run.send(text, mode=mode, attachments=attachments, input_id=input_id, sender=sender)

    async def update_run(
        self,
        run_id: str,
        *,
        model: str = "",
        permission_mode: str = "",
        sender: str = "",
        adapter: str = "",
    ) -> pb.UpdateRunResponse:
        """Change the model or the permission mode of a run while its agent works; wait until the agent has taken it.

        Args:
            run_id: the run.
            model: the model from the agent's next call on.
            permission_mode: the agent's own permission mode from its next action on. One of the two is given.
            sender: who changes it, for the record.
            adapter: the run's adapter; empty if the router knows the run.

        Raises:
            ValueError: neither is given, or both are.
            DragomanError: NOT_SUPPORTED: the adapter does not declare the change; POLICY_DENIED; UPDATE_REFUSED by
                the agent, and nothing has changed; RUN_FINISHED.
        """
        run = self._run(run_id, adapter)
        return await run.update(model=model, permission_mode=permission_mode, sender=sender)

    async def get_changes(self, run_id: str, *, with_diffs: bool = True, adapter: str = "") -> pb.GetChangesResponse:
        """Return which files a run with ``track_changes`` has changed: by now, or by its end.

        Args:
            run_id: the run.
            with_diffs: whether the answer has the diffs.
            adapter: the run's adapter; empty if the router knows the run.

        Raises:
            DragomanError: CHANGES_UNKNOWN: the run did not ask for it, or its adapter has ended.
        """
        request = pb.GetChangesRequest(run_id=run_id, without_diffs=not with_diffs, adapter=adapter)
        return await self._channel.answer(self._channel.adapter.GetChanges(request, timeout=_CHANGES_S))

    async def read_artifact(
        self, run_id: str, name: str, *, offset: int = 0, length: int = 0, adapter: str = ""
    ) -> AsyncIterator[bytes]:
        """Yield the pieces of a file that a run's agent left; an event ``artifact`` reports its name.

        The name is the agent's choice: do not write to where it leads without a check.

        Args:
            run_id: the run.
            name: the artifact.
            offset: how many bytes to leave out at the beginning.
            length: how many bytes to read at most; 0 for all.
            adapter: the run's adapter; empty if the router knows the run.

        Raises:
            DragomanError: ARTIFACT_NOT_FOUND; ARTIFACTS_GONE: the adapter does not have it any more; or without a
                reason, once all pieces of a whole file came and are not what its digest says.
        """
        request = pb.ReadArtifactRequest(run_id=run_id, name=name, offset=offset, length=length, adapter=adapter)
        async for piece in pieces(self._channel, request):
            yield piece

    async def list_models(
        self,
        adapter: str = "",
        *,
        refresh: bool = False,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> pb.ListModelsResponse:
        """List known models. A run may use others."""
        request = pb.ListModelsRequest(adapter=adapter, refresh=refresh, env=env, config=to_config(config))
        return await self._ask(self._channel.adapter.ListModels, request)

    async def get_quota(
        self, adapter: str = "", *, config: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> pb.GetQuotaResponse:
        """Ask the agent how much of its account's rate limits is used; ``failure`` says why it did not answer.

        Raises:
            DragomanError: NOT_IMPLEMENTED: the adapter does not declare FEATURE_QUOTA.
        """
        request = pb.GetQuotaRequest(adapter=adapter, env=env, config=to_config(config))
        return await self._ask(self._channel.adapter.GetQuota, request)

    def login(
        self,
        adapter: str = "",
        *,
        method: str = "",
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[pb.LoginResponse, None]:
        """Have an agent log its user in; yields what a person has to do for it, at last the outcome.

        Closing the iterator, by ``aclose``, ends the agent's program and the login.

        Args:
            adapter: the adapter.
            method: how, in the adapter's own words; empty for its first way.
            config: the adapter's settings.
            env: variables of the agent, which decide where it keeps its login.

        Raises:
            DragomanError: NOT_IMPLEMENTED if the adapter does not declare FEATURE_LOGIN.
        """
        request = pb.LoginRequest(adapter=adapter, method=method, env=env, config=to_config(config))
        return self._channel.messages(self._channel.adapter.Login, request)

    async def list_skills(
        self, adapter: str = "", *, cwd: str = "", env: Mapping[str, str] | None = None
    ) -> pb.ListSkillsResponse:
        """List the skills that the agent finds by itself; without ``cwd`` only the user's."""
        request = pb.ListSkillsRequest(adapter=adapter, env=env)
        if cwd:
            request.workspace.cwd = cwd
        return await self._ask(self._channel.adapter.ListSkills, request)

    async def sync_skills(
        self, adapter: str, skills: Iterable[pb.Skill], *, env: Mapping[str, str] | None = None
    ) -> pb.SyncSkillsResponse:
        """Install skills in the agent's own directory; those of an earlier call are removed if absent."""
        request = pb.SyncSkillsRequest(adapter=adapter, skills=skills, env=env)
        return await self._ask(self._channel.adapter.SyncSkills, request)

    async def list_adapters(self, *, describe: bool = False) -> router_pb2.ListAdaptersResponse:
        """List a router's adapters, all pages in one answer.

        Args:
            describe: first start and describe adapters that were never reached.
        """
        request = router_pb2.ListAdaptersRequest(page_size=_PAGE, describe=describe)
        response = await self._ask(self._channel.router.ListAdapters, request)
        while response.next_page_token:
            request.page_token = response.next_page_token
            page = await self._ask(self._channel.router.ListAdapters, request)
            response.adapters.extend(page.adapters)
            response.next_page_token = page.next_page_token
        return response

    async def restart_adapter(
        self, adapter: str, *, grace_s: float | None = None
    ) -> router_pb2.RestartAdapterResponse:
        """Replace the process of an adapter that a router launched, and wait until the new one is ready.

        Args:
            adapter: its type or an alias.
            grace_s: seconds that live runs may continue in the old process; ``None`` for no limit, 0 for none.

        Raises:
            DragomanError: ADAPTER_NOT_LAUNCHED if the router did not launch it; or the new process did not get ready.
        """
        request = router_pb2.RestartAdapterRequest(adapter=adapter, grace=optional_duration(grace_s, "grace"))
        return await self._channel.answer(self._channel.router.RestartAdapter(request))

    async def list_runs(
        self, filters: router_pb2.ListRunsRequest | None = None, *, limit: int = 100
    ) -> list[router_pb2.RunSummary]:
        """List a router's runs, newest first.

        Args:
            filters: fields that are set must match; its paging fields are ignored.
            limit: maximum number.
        """
        request = filters or router_pb2.ListRunsRequest()
        return await self._paged(self._channel.router.ListRuns, request, "runs", limit)

    async def get_run(self, run_id: str) -> router_pb2.GetRunResponse:
        """Return the state of one run."""
        return await self._ask(self._channel.router.GetRun, router_pb2.GetRunRequest(run_id=run_id))

    async def list_sessions(
        self, filters: router_pb2.ListSessionsRequest | None = None, *, limit: int = 100
    ) -> list[router_pb2.StoredSession]:
        """List a router's stored sessions, last used first.

        Args:
            filters: fields that are set must match; its paging fields are ignored.
            limit: maximum number.
        """
        request = filters or router_pb2.ListSessionsRequest()
        return await self._paged(self._channel.router.ListSessions, request, "sessions", limit)

    async def get_session(self, key: pb.SessionKey, adapter: str) -> router_pb2.StoredSession:
        """Return one stored session.

        Raises:
            DragomanError: SESSION_NOT_FOUND if there is none.
        """
        request = router_pb2.GetSessionRequest(key=key, adapter=adapter)
        return (await self._ask(self._channel.router.GetSession, request)).session

    async def delete_session(self, key: pb.SessionKey, adapter: str) -> bool:
        """Delete a stored session; False if there was none."""
        request = router_pb2.DeleteSessionRequest(key=key, adapter=adapter)
        return (await self._ask(self._channel.router.DeleteSession, request)).deleted

    async def create_agent(self, agent: router_pb2.StoredAgent) -> router_pb2.StoredAgent:
        """Store an agent at a router, and return it as it is stored.

        Raises:
            DragomanError: AGENT_EXISTS if another one has its name, or what is wrong with it.
        """
        request = router_pb2.CreateAgentRequest(agent=agent)
        return (await self._ask(self._channel.router.CreateAgent, request)).agent

    async def get_agent(self, name: str = "", *, task_key: str = "", company_id: str = "") -> router_pb2.StoredAgent:
        """Return one stored agent: by its name, or the active one of a task.

        Args:
            name: the agent; empty with ``task_key``.
            task_key: the task.
            company_id: the company of the task; empty for none.

        Raises:
            DragomanError: AGENT_NOT_FOUND if there is none.
        """
        request = router_pb2.GetAgentRequest(name=name, task_key=task_key, company_id=company_id)
        return (await self._ask(self._channel.router.GetAgent, request)).agent

    async def list_agents(self, *, limit: int = 100) -> list[router_pb2.StoredAgent]:
        """List a router's stored agents, by name.

        Args:
            limit: maximum number.
        """
        return await self._paged(self._channel.router.ListAgents, router_pb2.ListAgentsRequest(), "agents", limit)

    async def update_agent(self, agent: router_pb2.StoredAgent) -> router_pb2.StoredAgent:
        """Replace a stored agent as a whole, and return it as it is stored.

        Args:
            agent: the agent as it is to be, with the version that it has.

        Raises:
            DragomanError: VERSION_MISMATCH if it was changed meanwhile, AGENT_NOT_FOUND, or what is wrong with it.
        """
        request = router_pb2.UpdateAgentRequest(agent=agent)
        return (await self._ask(self._channel.router.UpdateAgent, request)).agent

    async def delete_agent(self, name: str, *, version: int = 0) -> bool:
        """Delete a stored agent; False if there was none.

        Args:
            name: the agent.
            version: the version that it must have; 0 for any.

        Raises:
            DragomanError: VERSION_MISMATCH if it has another one.
        """
        request = router_pb2.DeleteAgentRequest(name=name, version=version)
        return (await self._ask(self._channel.router.DeleteAgent, request)).deleted

    async def set_active_agent(self, task_key: str, name: str, *, company_id: str = "") -> str:
        """Have requests that name a task alone run a stored agent; return the one that was active before, or ''.

        Args:
            task_key: the task.
            name: the agent; empty to leave the task without one.
            company_id: the company of the task; empty for none.

        Raises:
            DragomanError: AGENT_NOT_FOUND if there is no such agent.
        """
        request = router_pb2.SetActiveAgentRequest(task_key=task_key, company_id=company_id, agent_name=name)
        return (await self._ask(self._channel.router.SetActiveAgent, request)).previous_agent_name

    async def list_budgets(self, name: str = "", *, limit: int = 100) -> list[router_pb2.BudgetStatus]:
        """List what the budgets of a router's operator have left, in the order of its policy.

        Args:
            name: only the budget with this name; empty for all.
            limit: maximum number.
        """
        request = router_pb2.ListBudgetsRequest(name=name)
        return await self._paged(self._channel.router.ListBudgets, request, "budgets", limit)

    async def _paged(self, rpc: Any, filters: Any, items: str, limit: int) -> list[Any]:
        """Return all pages of a listing, but at most ``limit`` items; ``items`` is the field that has them."""
        request = type(filters)()
        request.CopyFrom(filters)
        request.page_token = ""
        collected: list[Any] = []
        while len(collected) < limit:
            request.page_size = min(limit - len(collected), _PAGE)
            page = await self._ask(rpc, request)
            collected.extend(getattr(page, items))
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return collected[:limit]
