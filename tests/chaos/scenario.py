"""One run under test: its agent, its clients, and how it is brought into its state and out of it."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from dragoman.client import Client, DragomanError, RunStream, execute_request
from dragoman.protocol.errors import Reason
from dragoman.protocol.limits import channel_options
from dragoman.protocol.statuses import from_rpc_error
from dragoman.protocol.wire import unroll
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import adapter_pb2_grpc
from dragoman.v1 import event_pb2 as pb

from tests.chaos.cases import HOLD, MOST_CALLS, PAIRS, Case
from tests.chaos.cluster import PATIENCE_S, Cluster, parent_of
from tests.chaos.oracle import Problem, read_notes
from tests.chaos.sending import Sender
from tests.router.harness import Proxy

AGENT: Final = Path(__file__).with_name("agent.py")
_LONG_AFTER_S: Final = 90.0
_LOOK_S: Final = 0.02
_REACHED: Final = {"streaming": "<3:", "tool": "call-1", "finishing": "<2:"}
"""What a client has seen by when the run is in its state."""
_SENT: Final = 0.7
"""How often an input is accepted before the kill, rather than on its way."""
_CUT: Final = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
ASK_AGAIN: Final = {None, Reason.ADAPTER_UNAVAILABLE, Reason.RUN_LOG_UNAVAILABLE}
_GATES: Final = ("first", "gate")
_MODES: Final = {"queue": pb.INPUT_MODE_QUEUE, "turn": pb.INPUT_MODE_QUEUE, "steer": pb.INPUT_MODE_STEER}
_DULL: Final = {"run_id", "level", "rpc_id", "peer"}
"""Fields of a log's line that are not worth reading."""
_ASK_ANOTHER: Final = {Reason.DRAINING, Reason.ADAPTER_UNAVAILABLE, Reason.RUN_LOG_UNAVAILABLE}
"""Refusals of a router with which who knows two goes to the other, and comes back."""


class Reader:
    """One client of a run: what it gets over all its streams.

    Args:
        run_id: the run.
        addresses: where it reaches a router; while a call is not accepted at one it goes round.
        request: what it asks for; ``None`` for one that only attaches.
        adapter: the run's adapter.
    """

    def __init__(
        self, run_id: str, addresses: Sequence[str], request: api.ExecuteRequest | None, adapter: str
    ) -> None:
        self.events: list[pb.AgentEvent] = []
        self.changed = asyncio.Event()
        self.refused: DragomanError | None = None
        self.addresses = list(addresses)
        self.stream: RunStream | None = None
        self._run_id, self._request, self._adapter = run_id, request, adapter
        self._client: Client | None = None
        self._is_leaving = False
        self._was_accepted = False
        self.repeats = False
        """Whether it asks for the run once more, rather than about it, as long as it has seen nothing of it."""
        self.only_asks_about = request is None
        """Whether it ever asked about the run, rather than for it, when it had seen nothing of it."""

    @property
    def has_seen(self) -> bool:
        """Whether it has anything of the run: not only where it stands, or that it lives, but what has a sequence."""
        return any(event.sequence or event.HasField("gap") for event in self.events)

    async def read(self) -> None:
        """Read to the result, with a new client as often as the old one is sent away."""
        while True:
            async with Client(self.addresses[0], reattach_s=_LONG_AFTER_S) as self._client:
                self.stream = self._open(self._client)
                try:
                    async for event in self.stream:
                        self.events.append(event)
                        self.changed.set()
                except DragomanError as error:
                    if self._is_cut_off(error):
                        # The call may have arrived: repeat the same request.
                        self.addresses.append(self.addresses.pop(0))
                        await asyncio.sleep(0.1)
                    elif not self._is_leaving:
                        self.refused = error
                        self.changed.set()
                        return
                    self._is_leaving = False
                else:
                    return

    def _is_cut_off(self, error: DragomanError) -> bool:
        """Return whether the connection broke before any answer, which the client leaves to its caller."""
        is_new = self.stream is None or not self.stream.is_accepted
        if error.reason is not None:
            return is_new and len(self.addresses) > 1 and error.reason in _ASK_ANOTHER
        return is_new and error.code in _CUT

    def _open(self, client: Client) -> RunStream:
        self._was_accepted = self._was_accepted or (self.stream is not None and self.stream.is_accepted)
        is_new = not self._was_accepted or (self.repeats and not self.has_seen)
        if self._request is not None and is_new:
            return client.execute(self._request)
        self.only_asks_about = self.only_asks_about or not self.has_seen
        after = max((event.gap.to_sequence or event.sequence for event in self.events), default=0)
        return client.attach(
            self._run_id, after_sequence=after, hold=self._request is not None, adapter=self._adapter
        )

    async def move(self, address: str) -> None:
        """Go to another router."""
        self.addresses.sort(key=lambda known: known != address)
        await self.leave()

    async def leave(self) -> None:
        """Go away without a word, and come back as another client."""
        self._is_leaving = True
        if self._client is not None:
            await self._client.close()

    async def until(self, is_so: Callable[[pb.AgentEvent], bool]) -> None:
        """Wait until an event is so.

        Raises:
            AssertionError: the run was over or refused before.
        """
        async with asyncio.timeout(PATIENCE_S):
            while not any(is_so(event) for event in self.events):
                over = self.refused or (self.events and self.events[-1].HasField("result") and self.events[-1])
                assert not over, f"over before: {over}"
                self.changed.clear()
                await self.changed.wait()


class Scenario:
    """One case, at work.

    Args:
        case: the case.
        cluster: where it runs.
    """

    def __init__(self, case: Case, cluster: Cluster) -> None:
        self.case, self.cluster = case, cluster
        self.run_id = f"r-{secrets.token_hex(6)}"
        self.secret = f"chaos-{secrets.token_hex(12)}"
        self.folder = cluster.folder / self.run_id
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        for name in _GATES:
            os.mkfifo(self.folder / name)
        self._first, self._gate = (os.open(self.folder / name, os.O_RDWR | os.O_NONBLOCK) for name in _GATES)
        self._proxy: Proxy | None = None
        self._is_finished = False
        self._tasks: list[asyncio.Task[None]] = []
        addresses = [router.address for router in cluster.routers]
        request = self._request()
        self.reader = Reader(self.run_id, addresses, request, case.adapter)
        self.reader.repeats = case.rng("repeats").random() < 0.5
        self.readers = [self.reader]
        if case.storage in PAIRS and case.state == "before" and case.victim != HOLD:
            # The same request, at the other one, at the same time: it is one run; but while no router can
            # write to the log, neither knows of the other's run.
            self.readers.append(Reader(self.run_id, addresses[::-1], request, case.adapter))
        self.sender: Sender | None = None
        if case.sends:
            text = f"and this {self.secret if case.rng('text').random() < 0.5 else ''}"
            self.sender = Sender(self.run_id, case.adapter, addresses, _MODES[case.sends], text)
        self.answers_at = addresses[-1]
        """Where a person answers what is asked."""
        self.moves: list[tuple[str, str]] = []
        """From which router to which it went by its end, where the database notes that."""
        self.ended_first = False
        """Whether its end was in the log when its router died."""

    def _request(self) -> api.ExecuteRequest:
        case = self.case
        command: dict[str, Any] = {"command": sys.executable, "args": ["-I", "-S", str(AGENT)]}
        if case.adapter == "process":
            command["output"] = "jsonl"
        if case.adapter == "claude_code":
            command = {"command": str(self._program())}
        name, _, value = self.cluster.mark.partition("=")
        env = {"CHAOS_DIR": str(self.folder), "CHAOS_DIALECT": case.adapter, "CHAOS_STATE": case.state}
        env |= {"CHAOS_RUN": self.run_id, "CHAOS_SECRET": self.secret, name: value}
        env |= {"HOME": str(self.cluster.folder / "home"), "PATH": os.environ["PATH"]}
        env |= {"CHAOS_TURN": "2" if case.sends == "turn" else "1"}
        if case.has_budget:
            env["CHAOS_SPEND"] = str(MOST_CALLS + 1)
        request = execute_request(case.adapter, "do it", cwd=str(self.work), config=command, env=env)
        request.run_id = self.run_id
        if case.has_budget:
            request.limits.budget.tool_calls = MOST_CALLS
            request.limits.budget.warn_percent = 50
            request.limits.grace.FromSeconds(int(PATIENCE_S))  # it obeys, on a busy machine too
        request.permissions.interactive = case.state == "input"
        # A router that drains sends its readers away: until the run has ended none of them can hold it.
        request.orphan_after.FromSeconds(int(PATIENCE_S))
        return request

    def _program(self) -> Path:
        program = self.cluster.folder / "claude"
        if not program.exists():
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {AGENT} "$@"\n')
            program.chmod(0o755)
        return program

    @property
    def is_cut(self) -> bool:
        """Whether the client's connection breaks, rather than the client."""
        return self.case.victim == "client" and self.case.rng("how").random() < 0.5

    async def start(self) -> None:
        """Ask for the run."""
        if self.is_cut:
            listen = self.folder / "p.sock"
            self._proxy = Proxy(listen, Path(self.cluster.address.removeprefix("unix:")))
            await self._proxy.restore()
            self.reader.addresses = [f"unix:{listen}"]
        self._tasks += [asyncio.ensure_future(reader.read()) for reader in self.readers]
        if self.case.sends == "turn":
            await self.reader.until(lambda event: event.HasField("started"))
            await self._send()
            os.write(self._first, b"g")
        elif self.case.state == "before":
            self._begin_to_send()

    async def _send(self) -> None:
        if self.sender is not None:
            await self.sender.send(self._tasks[0].done)

    def _begin_to_send(self) -> None:
        if self.sender is not None and self.case.sends != "turn":
            self._tasks.append(asyncio.ensure_future(self._send()))

    async def reach(self) -> None:
        """Wait until the run is in its state."""
        state = self.case.state
        if state == "before":
            if self.case.victim in {"agent", "guard"}:
                await self.born()
            return
        if state == "input":
            await self.reader.until(lambda event: event.HasField("input_request"))
        else:
            await self.reader.until(lambda event: _REACHED[state] in str(event))
        self._begin_to_send()
        if self.case.sends in {"queue", "steer"} and self.case.rng("sent").random() < _SENT:
            await self._tasks[-1]
        is_pair = self.case.storage in PAIRS
        if is_pair or self.case.rng("watched").random() < 0.3:
            # Where there are two routers, through the one that does not have the run.
            watcher = Reader(self.run_id, self.reader.addresses[::-1], None, self.case.adapter)
            self.readers.append(watcher)
            self._tasks.append(asyncio.ensure_future(watcher.read()))
            if is_pair:
                await watcher.until(lambda event: event.HasField("started"))

    @property
    def is_over(self) -> bool:
        """Whether the client has the result."""
        return any(event.HasField("result") for event in self.reader.events)

    async def until_over(self) -> None:
        """Wait until the client has the result."""
        await self.reader.until(lambda event: event.HasField("result"))

    async def until_gone(self) -> None:
        """Wait until no process of the agent is there, although its gate was never opened.

        Raises:
            Problem: something does not go away.
        """
        if left := await self.cluster.until_run_is_gone(self.run_id):
            raise Problem(f"the run is over, and not gone: {left}")

    async def born(self) -> dict[str, Any]:
        """Wait until its agent is there; return what the last one noted first."""
        async with asyncio.timeout(PATIENCE_S):
            while not (notes := self.notes()):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(_LOOK_S)
        return [note for note in notes if "born" in note][-1]

    def notes(self) -> list[dict[str, Any]]:
        """Return what the agent noted."""
        return read_notes(self.folder / "journal")

    async def kill(self) -> None:
        """Kill the victim that the run has for itself."""
        if self.case.state == "finishing":
            self.open_gate()
        if self.case.state in {"before", "finishing"}:
            await asyncio.sleep(self.case.rng("delay").uniform(0.0, 0.1))
        if self.case.victim != "client":
            born = await self.born()
            if self.case.victim == "agent":
                self.cluster.kill(born["born"])
            elif parent_of(born["born"]) == born["guard"]:  # else it has another run by now, or none
                self.cluster.kill(born["guard"])
        elif self._proxy is not None:
            await self._proxy.cut()
            await asyncio.sleep(self.case.rng("away").uniform(0.0, 0.5))
            await self._proxy.restore()
        else:
            await self.reader.leave()

    def open_gate(self) -> None:
        """Let the agent go on."""
        os.write(self._gate, b"g")

    async def finish(self) -> None:
        """Let the run come to its end, and read it; once."""
        if self._is_finished:
            return
        self._is_finished = True
        self.open_gate()
        if self.case.state == "input":
            self._tasks.append(asyncio.ensure_future(self._answer()))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._proxy is not None:
                await self._proxy.cut()
            os.close(self._gate)
            os.close(self._first)

    async def _answer(self) -> None:
        """Answer what is asked, until an answer is taken or the run is over."""
        asked = next((event.input_request for event in self.reader.events if event.HasField("input_request")), None)
        if asked is None:
            return  # it never came so far, which has been reported
        option = next(option.id for option in asked.options if option.kind == pb.INPUT_OPTION_KIND_ALLOW_ONCE)
        answer = pb.InputAnswer(option_ids=[option])
        async with Client(self.answers_at) as client:
            while True:
                try:
                    await client.respond(self.run_id, asked.id, answer, adapter=self.case.adapter)
                except DragomanError as error:
                    if error.reason is Reason.RUN_FINISHED:
                        return
                    if error.reason not in ASK_AGAIN:
                        raise
                    await asyncio.sleep(0.1)  # as a person would: once more, a little later
                else:
                    return

    @property
    def is_asked_for(self) -> bool:
        """Whether a client requested the run as long as it had no event of it, however often the stream broke."""
        return any(not reader.only_asks_about for reader in self.readers)

    def story(self) -> list[str]:
        """Return what is known of it, for who has to find out what went wrong; short, and without secrets."""
        story = [f"agent: {self.notes()[-3:]}"]
        for number, reader in enumerate(self.readers):
            seen = [f"{event.sequence} {event.WhichOneof('body')}" for event in reader.events]
            asked = "about it" if reader.only_asks_about else "for it"
            story.append(f"client {number} asked {asked}, refused {reader.refused}: {len(seen)} events, {seen[-4:]}")
        for place, router in enumerate(self.cluster.routers):
            lines = [{key: line[key] for key in line if key not in _DULL} for line in router.log_lines(self.run_id)]
            story += [f"router {place}: {line}" for line in lines[-12:]]
        return [line.replace(self.secret, "(secret)") for line in story]

    @property
    def refusal(self) -> str:
        """How the call was refused; empty if it was not."""
        error = next((reader.refused for reader in self.readers if reader.refused is not None), None)
        return f"{error.reason} {error.code.name}: {error.message}" if error is not None else ""

    async def send_again(self) -> None:
        """Repeat the input, to which the answer must be the same: the run is over.

        Raises:
            DragomanError: none is given.
        """
        if self.sender is not None and not self.refusal:
            async with asyncio.timeout(PATIENCE_S):
                await self.sender.send(lambda: True)

    async def attach_all(self) -> list[pb.AgentEvent] | None:
        """Return the events that a router replays from the log now; ``None`` if it does not know the run.

        Asked without a client, which passes over what comes twice, or behind the result.
        """
        address = self.case.rng("asked").choice(self.cluster.routers).address
        until = asyncio.get_running_loop().time() + PATIENCE_S
        async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
            stub: adapter_pb2_grpc.AdapterServiceAsyncStub = adapter_pb2_grpc.AdapterServiceStub(channel)
            while True:
                call = stub.Attach(api.AttachRequest(run_id=self.run_id), timeout=PATIENCE_S)
                try:
                    return [event async for message in call for event in unroll(message)]
                except grpc.aio.AioRpcError as error:
                    status = from_rpc_error(error)
                    if status.reason is Reason.RUN_NOT_FOUND:
                        return None
                    if status.reason not in ASK_AGAIN or asyncio.get_running_loop().time() > until:
                        raise status from error
                await asyncio.sleep(0.1)
