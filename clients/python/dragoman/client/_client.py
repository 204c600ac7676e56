"""The client: every RPC of the contract, typed."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from dragoman.client._link import Link
from dragoman.client._requests import duration, to_struct
from dragoman.client._stream import RunStream
from dragoman.protocol.identity import new_run_id
from dragoman.protocol.limits import CLIENT_ORPHAN_AFTER_S, REATTACH_S
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

_LIVE_TURN_S = 60.0
_PAGE = 1000
_Item = TypeVar("_Item")
_Listing = TypeVar("_Listing", router_pb2.ListRunsRequest, router_pb2.ListSessionsRequest)


class Client:
    """A connection to a router or to one adapter; an asynchronous context manager.

    At an adapter the argument ``adapter`` may be empty everywhere; at a router it names the adapter. Every
    method raises `DragomanError` if the call fails; its ``reason`` is what programs decide by.

    Args:
        address: ``unix:/path`` or ``host:port``.
        reattach_s: for how many seconds a broken stream of events is followed before it is given up.
        timeout_s: the longest a single answer may take, in seconds; ``None`` for no limit. Does not hold for
            streams, nor for `cancel`, which waits for the run to end.

    Example::

        async with Client("127.0.0.1:7777") as client:
            for found in await client.detect():
                print(found.adapter, found.version)
    """

    def __init__(self, address: str, *, reattach_s: float = REATTACH_S, timeout_s: float | None = 120.0) -> None:
        self.address = address
        self._reattach_s = reattach_s
        self._timeout = timeout_s
        self._open_link: Link | None = None

    def __repr__(self) -> str:
        return f"<Client {self.address}{'' if self._open_link else ' (closed)'}>"

    async def __aenter__(self) -> Self:
        # gRPC's channel belongs to the running loop, so it is made here and not in the constructor.
        self._open_link = Link(self.address)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Runs are left alone, but no longer held."""
        if self._open_link is not None:
            await self._open_link.close()
        self._open_link = None

    @property
    def _link(self) -> Link:
        if self._open_link is None:
            raise RuntimeError("the client is not open; use it as 'async with Client(...) as client'")
        return self._open_link

    async def describe(self, adapter: str = "") -> pb.DescribeResponse:
        """Ask what the adapter is and can do. No side effects; needs no agent."""
        request = pb.DescribeRequest(adapter=adapter)
        return await self._link.answer(self._link.adapter.Describe(request, timeout=self._timeout))

    async def detect(
        self,
        adapter: str = "",
        *,
        refresh: bool = False,
        env: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> list[pb.Detection]:
        """Look for the agent: executable, version, directories, login.

        Args:
            adapter: empty at a router for all.
            refresh: look now; do not answer from a cache.
            env: variables to look with, e.g. ``PATH``.
            config: settings to look with; ``command`` names the executable.
        """
        request = pb.DetectRequest(adapter=adapter, refresh=refresh, env=env)
        if config:
            request.config.CopyFrom(to_struct(config))
        response = await self._link.answer(self._link.adapter.Detect(request, timeout=self._timeout))
        return list(response.detections)

    async def test_environment(
        self,
        adapter: str = "",
        *,
        live: bool = False,
        cwd: str = "",
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        model: str = "",
        company_id: str = "",
        live_timeout_s: float = _LIVE_TURN_S,
    ) -> pb.TestEnvironmentResponse:
        """Check whether a run with this set-up can work.

        Args:
            adapter: which.
            live: make one tiny real turn, which spends a few tokens.
            cwd: where the run would work, absolute; empty for ``config["cwd"]``.
            config: the run's settings.
            env: the run's variables.
            model: the run's model; empty for the default.
            company_id: the company, as in the request's agent.
            live_timeout_s: how long the live turn may take, in seconds.
        """
        request = pb.TestEnvironmentRequest(adapter=adapter, env=env, model=model, company_id=company_id)
        request.mode = pb.TEST_MODE_LIVE if live else pb.TEST_MODE_QUICK
        if config:
            request.config.CopyFrom(to_struct(config))
        if cwd:
            request.workspace.cwd = cwd
        timeout = self._timeout
        if live:
            request.timeout.CopyFrom(duration(live_timeout_s, "timeout"))
            timeout = None if timeout is None else timeout + live_timeout_s
        return await self._link.answer(self._link.adapter.TestEnvironment(request, timeout=timeout))

    def execute(self, request: pb.ExecuteRequest) -> RunStream:
        """Run an agent.

        The request goes out when the stream is entered or first read. If it has no ``run_id`` it gets one here,
        so that sending it again cannot start a second run; if it has no ``orphan_after``, 30 seconds.

        Args:
            request: what to run; not changed. `execute_request` makes one.
        """
        own = pb.ExecuteRequest()
        own.CopyFrom(request)
        own.run_id = own.run_id or new_run_id()
        if not own.HasField("orphan_after"):
            own.orphan_after.CopyFrom(duration(CLIENT_ORPHAN_AFTER_S, "orphan_after"))
        attach = pb.AttachRequest(run_id=own.run_id, adapter=own.adapter, hold=True)
        if own.HasField("batching"):
            attach.batching.CopyFrom(own.batching)
        return RunStream(self._link, execute=own, attach=attach, reattach_s=self._reattach_s)

    def attach(self, run_id: str, *, after_sequence: int = 0, hold: bool = False, adapter: str = "") -> RunStream:
        """Follow a run that somebody started: what is stored, ``replay_done``, then live.

        Args:
            run_id: which.
            after_sequence: the last sequence already seen; 0 from the beginning.
            hold: whether this stream keeps the run alive.
            adapter: may be empty at a router that knows the run.
        """
        request = pb.AttachRequest(run_id=run_id, after_sequence=after_sequence, hold=hold, adapter=adapter)
        return RunStream(self._link, attach=request, reattach_s=self._reattach_s)

    async def cancel(
        self, run_id: str, *, grace_s: float | None = None, reason: str = "", adapter: str = ""
    ) -> pb.CancelResponse:
        """Stop a run, and wait until its result is recorded.

        Args:
            run_id: which.
            grace_s: seconds the agent gets to end by itself; ``None`` for the run's own, 0 kills now.
            reason: why, for people.
            adapter: may be empty at a router that knows the run.

        Returns:
            The real outcome; not CANCELLED if the run was over first.
        """
        request = pb.CancelRequest(run_id=run_id, reason=reason, adapter=adapter)
        if grace_s is not None:
            request.grace.CopyFrom(duration(grace_s, "grace"))
        return await self._link.answer(self._link.adapter.Cancel(request))

    async def respond(
        self,
        run_id: str,
        request_id: str,
        answer: event_pb2.InputAnswer,
        *,
        responder: str = "",
        adapter: str = "",
    ) -> pb.RespondResponse:
        """Answer one ``input_request``. The first valid answer wins; the same again is fine.

        Args:
            run_id: the run.
            request_id: the request.
            answer: as the request says.
            responder: who answers, for the record.
            adapter: may be empty at a router that knows the run.
        """
        request = pb.RespondRequest(
            run_id=run_id, request_id=request_id, answer=answer, responder=responder, adapter=adapter
        )
        return await self._link.answer(self._link.adapter.Respond(request, timeout=self._timeout))

    async def list_models(
        self,
        adapter: str = "",
        *,
        refresh: bool = False,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> pb.ListModelsResponse:
        """List the models that can be asked for. Other names may be used all the same."""
        request = pb.ListModelsRequest(adapter=adapter, refresh=refresh, env=env)
        if config:
            request.config.CopyFrom(to_struct(config))
        return await self._link.answer(self._link.adapter.ListModels(request, timeout=self._timeout))

    async def list_skills(
        self, adapter: str = "", *, cwd: str = "", env: Mapping[str, str] | None = None
    ) -> pb.ListSkillsResponse:
        """List the skills that the agent can use by itself; without ``cwd`` only the user's."""
        request = pb.ListSkillsRequest(adapter=adapter, env=env)
        if cwd:
            request.workspace.cwd = cwd
        return await self._link.answer(self._link.adapter.ListSkills(request, timeout=self._timeout))

    async def sync_skills(
        self, adapter: str, skills: Iterable[pb.Skill], *, env: Mapping[str, str] | None = None
    ) -> pb.SyncSkillsResponse:
        """Put skills where the agent keeps its own; what we put there before and is not named is removed."""
        request = pb.SyncSkillsRequest(adapter=adapter, skills=skills, env=env)
        return await self._link.answer(self._link.adapter.SyncSkills(request, timeout=self._timeout))

    async def list_adapters(self, *, describe: bool = False) -> router_pb2.ListAdaptersResponse:
        """List a router's adapters, all pages in one answer.

        Args:
            describe: start and describe those that were never reached, first.
        """
        request = router_pb2.ListAdaptersRequest(page_size=_PAGE, describe=describe)
        response = await self._link.answer(self._link.router.ListAdapters(request, timeout=self._timeout))
        while response.next_page_token:
            request.page_token = response.next_page_token
            page = await self._link.answer(self._link.router.ListAdapters(request, timeout=self._timeout))
            response.adapters.extend(page.adapters)
            response.next_page_token = page.next_page_token
        return response

    async def list_runs(
        self, filters: router_pb2.ListRunsRequest | None = None, *, limit: int = 100
    ) -> list[router_pb2.RunSummary]:
        """List a router's runs, newest first.

        Args:
            filters: what is set in it must match; its paging fields are not used.
            limit: at most so many.
        """

        async def page(request: router_pb2.ListRunsRequest) -> tuple[Iterable[router_pb2.RunSummary], str]:
            answer = await self._link.answer(self._link.router.ListRuns(request, timeout=self._timeout))
            return answer.runs, answer.next_page_token

        return await _paged(filters or router_pb2.ListRunsRequest(), page, limit)

    async def get_run(self, run_id: str) -> router_pb2.GetRunResponse:
        """Ask what a router knows of one run."""
        request = router_pb2.GetRunRequest(run_id=run_id)
        return await self._link.answer(self._link.router.GetRun(request, timeout=self._timeout))

    async def list_sessions(
        self, filters: router_pb2.ListSessionsRequest | None = None, *, limit: int = 100
    ) -> list[router_pb2.StoredSession]:
        """List the sessions that a router stores, last used first.

        Args:
            filters: what is set in it must match; its paging fields are not used.
            limit: at most so many.
        """

        async def page(request: router_pb2.ListSessionsRequest) -> tuple[Iterable[router_pb2.StoredSession], str]:
            answer = await self._link.answer(self._link.router.ListSessions(request, timeout=self._timeout))
            return answer.sessions, answer.next_page_token

        return await _paged(filters or router_pb2.ListSessionsRequest(), page, limit)

    async def get_session(self, key: pb.SessionKey, adapter: str) -> router_pb2.StoredSession:
        """Ask for one stored session.

        Raises:
            DragomanError: SESSION_NOT_FOUND if there is none.
        """
        request = router_pb2.GetSessionRequest(key=key, adapter=adapter)
        response = await self._link.answer(self._link.router.GetSession(request, timeout=self._timeout))
        return response.session

    async def delete_session(self, key: pb.SessionKey, adapter: str) -> bool:
        """Forget a stored session; False if there was none."""
        request = router_pb2.DeleteSessionRequest(key=key, adapter=adapter)
        response = await self._link.answer(self._link.router.DeleteSession(request, timeout=self._timeout))
        return response.deleted


async def _paged(
    filters: _Listing, page: Callable[[_Listing], Awaitable[tuple[Iterable[_Item], str]]], limit: int
) -> list[_Item]:
    """Return what a listing gives, page by page, but at most ``limit`` items."""
    request = type(filters)()
    request.CopyFrom(filters)
    request.page_token = ""
    found: list[_Item] = []
    while len(found) < limit:
        request.page_size = min(limit - len(found), _PAGE)
        items, request.page_token = await page(request)
        found.extend(items)
        if not request.page_token:
            break
    return found[:limit]
