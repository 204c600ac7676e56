"""A small adapter of our own: a program for manifests, and a class for tests that serve it themselves.

What a run does is its prompt, or its template as it is, a JSON list of steps, done in order::

    ["hello"]              a text event
    {"gate": "g"}          wait until Respond names the request "g" (or `Sidecar.open`)
    {"ask": "q"}           an input_request, then wait for its answer
    {"flood": [n, size]}   n text events of so many bytes; with a third number, so many at once
    {"raw": "hex"}         these bytes as the next event
    {"stop": true}         end the stream well, without a result
    {"fail": "NAME"}       end the stream with this status
    {"exit": n}            end the process
    {"end": "SUCCEEDED"}   the result
    {"set": "id"}          have the result say that this session is to be stored
    {"clear": true}        have the result say that the session is to be forgotten
    {"lost": true}         end the attempt, as its session is gone, and begin another
    {"used": n}            have the result report so many input tokens
    {"spent": "1.5"}       report that a call of the model cost so many dollars
    {"says": "text"}       have the result end with these words
    "(silent)"             only as the first: accept the run and send nothing, until it is cancelled

    {"failed": "KIND"}     a result that failed in this way
    {"took": s}            have the result say that it took so many seconds
    {"until": n}           have the failure say that it may be tried again at this second of the epoch
    {"login": "url"}       have the failure say where to log in
    {"words": "text"}      have the failure end with these words
    {"retried": true}      have the failure say that the agent has tried again itself
    {"tool": "id"}         a tool_call
    {"running": true}      the state RUNNING
    {"took input": "i"}    a message with the ID of an input
    {"deaf": "g"}          on Cancel, open this gate and wait until the run ends by itself

Instead of steps the prompt may be ``{"TYPE": [STEPS, ...]}``: what each adapter does, try after try.
A run without a result waits for Cancel. What a process does wrong at its start is said by variables, see `main`.
"""

# ruff: noqa: N802 - methods are named as in the contract

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from dragoman.protocol.duties import ALL_DUTIES
from dragoman.protocol.errors import DragomanError, Reason, not_supported
from dragoman.protocol.event_buffer import EventBuffer, SequenceAheadError
from dragoman.protocol.identity import RUN_ID_METADATA_KEY, new_instance_id
from dragoman.protocol.server import Context, DragomanServer, service_handler, stream_events
from dragoman.protocol.signals import Signal
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

SERVICE = pb.DESCRIPTOR.services_by_name["AdapterService"]


class _Run:
    """One run and its steps."""

    def __init__(self, request: pb.ExecuteRequest, instance_id: str, steps: list[Any]) -> None:
        self.request = request
        self.first = request.relay.first_sequence or 1
        self.fanout = EventBuffer(request.run_id, first_sequence=self.first)
        self.sequence = self.first - 1
        self.steps = steps
        self.finished = asyncio.Event()
        self.outcome = event_pb2.OUTCOME_UNSPECIFIED
        self.instance_id = instance_id
        self.pending: dict[str, bytes] = {}
        self.lengths: dict[str, int] = {}
        self.failure: DragomanError | None = None
        self.cut_with: DragomanError | None = None
        self.streams_end = Signal()
        self.task: asyncio.Task[None] | None = None
        self.attempt = request.relay.first_attempt or 1
        self.deaf = ""
        self.result = event_pb2.Result(tree_confirmed_dead=True)

    def emit(self, **body: Any) -> None:
        self.sequence += 1
        if "started" in body:
            self.lengths.clear()
        if (text := body.get("text")) is not None:
            text.offset = self.lengths.get(text.item_id, 0)
            self.lengths[text.item_id] = text.offset + len(text.delta.encode())
        event = event_pb2.AgentEvent(
            sequence=self.sequence,
            run_id=self.request.run_id,
            attempt=self.attempt,
            origin=event_pb2.EVENT_ORIGIN_AGENT,
            **body,
        )
        self.fanout.append(event.SerializeToString(), self.sequence)

    def end(self, outcome: event_pb2.Outcome.ValueType) -> None:
        if not self.finished.is_set():
            if self.sequence < self.first:
                self.emit(started=event_pb2.Started(instance_id=self.instance_id))
            self.outcome = outcome
            self.result.outcome = outcome
            if outcome in {event_pb2.OUTCOME_FAILED, event_pb2.OUTCOME_TIMED_OUT, event_pb2.OUTCOME_LOST}:
                self.result.failure.SetInParent()
            self.emit(result=self.result)
            self.stop()

    def start(self, adapter: str, *, refused: bool = False) -> None:
        """Say what is done about the session that was asked for."""
        session = self.request.session
        started = event_pb2.Started(adapter=adapter, instance_id=self.instance_id, session_reason=session.reason)
        if session.HasField("handle") and not refused:
            started.session_disposition = event_pb2.SESSION_DISPOSITION_RESUME
        elif session.reason or refused:
            started.session_disposition = event_pb2.SESSION_DISPOSITION_RESUME_REFUSED
        else:
            started.session_disposition = event_pb2.SESSION_DISPOSITION_NEW
        self.emit(started=started)

    def say(self, adapter: str, kind: str, value: Any) -> None:
        """Have the result, or a new attempt, say something of the session."""
        if kind == "set":
            handle = event_pb2.SessionHandle(adapter=adapter, native_id=value, cwd=self.request.workspace.cwd)
            self.result.session.change = event_pb2.SESSION_CHANGE_SET
            self.result.session.handle.CopyFrom(handle)
        elif kind == "clear":
            self.result.session.change = event_pb2.SESSION_CHANGE_CLEAR
        elif kind == "lost":
            ended = event_pb2.AttemptEnded(failure=event_pb2.Failure(kind=event_pb2.FAILURE_KIND_SESSION_LOST))
            ended.session.change = event_pb2.SESSION_CHANGE_CLEAR
            self.emit(attempt_ended=ended)
            self.attempt += 1
            self.start(adapter, refused=True)
        elif kind == "used":
            self.result.usage.scope = event_pb2.USAGE_SCOPE_RUN
            self.result.usage.tokens.input = value
        elif kind == "says":
            self.result.summary = value
        elif kind == "took input":
            self.emit(message=event_pb2.Message(role=event_pb2.MESSAGE_ROLE_USER, input_id=value))

    def say_much(self, number: int, size: int) -> None:
        """Emit texts."""
        for _ in range(number):
            self.emit(text=event_pb2.Text(item_id="i", delta="x" * size))

    def work(self, kind: str, value: Any) -> None:
        """Do something that a router decides by."""
        if kind == "deaf":
            self.deaf = value
        elif kind == "stop":
            self.stop()
        elif kind == "tool":
            self.emit(tool_call=event_pb2.ToolCall(id=value, name="tool"))
        elif kind == "spent":
            usage = event_pb2.Usage(scope=event_pb2.USAGE_SCOPE_CALL, semantics=event_pb2.USAGE_SEMANTICS_DELTA)
            usage.cost.CopyFrom(event_pb2.Cost(amount=value, currency="USD"))
            self.emit(usage=usage)
        elif kind == "running":
            self.emit(state=event_pb2.State(phase=event_pb2.RUN_PHASE_RUNNING))
        elif kind == "took":
            self.result.duration.FromNanoseconds(int(value * 1e9))
        elif kind == "until":
            self.result.failure.retry_not_before.FromSeconds(value)
        elif kind == "login":
            self.result.failure.login_url = value
        elif kind == "words":
            self.result.failure.message = value
        elif kind == "retried":
            self.result.failure.agent_retried = value
        elif kind == "failed":
            self.result.failure.kind = event_pb2.FailureKind.Value(f"FAILURE_KIND_{value}")
            self.result.failure.message = self.result.failure.message or value
            self.end(event_pb2.OUTCOME_FAILED)

    def stop(self) -> None:
        self.fanout.close()
        self.finished.set()

    def cut(self, reason: Reason) -> None:
        """End the present streams with this status; the run lives on."""
        self.cut_with = DragomanError(reason, "as the test wants")
        self.streams_end.set()
        self.streams_end = Signal()


class Sidecar:
    """Serves ``AdapterService``; see the module."""

    def __init__(
        self,
        type_: str = "fake",
        *,
        aliases: Sequence[str] = (),
        revision: int = 1,
        instance_id: str = "",
        features: Sequence[event_pb2.Feature.ValueType] = (),
        schema: str = "",
        most: int = 0,
        batching: bool = True,
        duties: Sequence[pb.Duty.ValueType] = ALL_DUTIES,
    ) -> None:
        self.duties = duties
        self.batching = batching
        self.features = features
        self.most = most
        self.schema = schema
        self.refuses_sessions = False
        self.type = type_
        self.aliases = aliases
        self.revision = revision
        self.instance_id = instance_id or new_instance_id()
        self.pid = os.getpid()
        """What it says is its process id."""
        self.calls: list[tuple[str, Any]] = []
        self.runs: dict[str, _Run] = {}
        self.detections: list[pb.Detection] = [
            pb.Detection(
                adapter=type_,
                available=True,
                confidence=pb.DETECTION_CONFIDENCE_NOT_APPLICABLE,
                auth=pb.AUTH_STATE_NOT_NEEDED,
            )
        ]
        self.detect_gate: asyncio.Event | None = None
        self.cuts_descriptions = 0
        """How many calls of Describe fail first, as on a machine that is too busy."""
        self._gates: dict[str, asyncio.Event] = {}
        self._tries: dict[str, int] = {}

    def find_agent(self, executable: str) -> None:
        """Have it find this program, an agent that is logged in perhaps."""
        self.detections[0].executable = executable
        self.detections[0].auth = pb.AUTH_STATE_UNKNOWN
        self.detections[0].capabilities.items.add(feature=event_pb2.FEATURE_PROMPT)

    def gate(self, name: str) -> asyncio.Event:
        """Return the event behind a gate."""
        return self._gates.setdefault(name, asyncio.Event())

    def open(self, name: str) -> None:
        """Let runs that wait for this gate go on."""
        self.gate(name).set()

    def requests(self, name: str) -> list[Any]:
        """Return the requests of one RPC so far."""
        return [request for called, request in self.calls if called == name]

    async def Describe(self, request: pb.DescribeRequest, _context: Context) -> pb.DescribeResponse:
        self._note("Describe", request)
        if self.cuts_descriptions:
            self.cuts_descriptions -= 1
            raise DragomanError(None, "as the test wants", status=grpc.StatusCode.DEADLINE_EXCEEDED)
        return pb.DescribeResponse(
            adapter=self.type,
            aliases=self.aliases,
            label=self.type.title(),
            revision=self.revision,
            instance_id=self.instance_id,
            pid=self.pid,
            config_schema_json=self.schema,
            capabilities=event_pb2.Capabilities(
                items=[event_pb2.Capability(feature=feature) for feature in self.features],
                max_concurrent_runs=self.most or None,
            ),
            batching=self.batching,
            duties=self.duties,
        )

    async def Detect(self, request: pb.DetectRequest, _context: Context) -> pb.DetectResponse:
        self._note("Detect", request)
        if self.detect_gate is not None:
            await self.detect_gate.wait()
        return pb.DetectResponse(detections=self.detections)

    async def TestEnvironment(self, request: pb.TestEnvironmentRequest, context: Context) -> Any:
        self._note("TestEnvironment", request)
        self.calls.append(("time_remaining", context.time_remaining()))
        return pb.TestEnvironmentResponse(adapter=self.type, status=pb.TEST_STATUS_PASS)

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> None:
        self._note("Execute", request)
        self._check_batching(request)
        run = self.runs.get(request.run_id)
        if run is not None and run.finished.is_set() and request.relay.first_sequence > run.sequence:
            run = None  # the next attempt of a run that a router drives
        if run is None:
            run = self.runs[request.run_id] = _Run(request, self.instance_id, self._steps(request))
            first = run.steps[0] if run.steps else None
            if isinstance(first, dict) and "refuse" in first:
                del self.runs[request.run_id]
                words = first.get("words", "refused by the sidecar")
                raise DragomanError(Reason[first["refuse"]], words, {"who": "sidecar"})
            run.task = asyncio.ensure_future(self._play(run))
        await context.send_initial_metadata(((RUN_ID_METADATA_KEY, request.run_id),))
        await self._stream(run, context, run.first - 1, joined=False, batching=request.HasField("batching"))

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:
        self._note("Attach", request)
        self._check_batching(request)
        run, batching = self._find(request.run_id), request.HasField("batching")
        await self._stream(run, context, request.after_sequence, joined=True, batching=batching)

    async def Cancel(self, request: pb.CancelRequest, _context: Context) -> pb.CancelResponse:
        self._note("Cancel", request)
        run = self._find(request.run_id)
        if run.deaf:
            self.open(run.deaf)
            await run.finished.wait()
        run.end(event_pb2.OUTCOME_CANCELLED)
        return pb.CancelResponse(outcome=run.outcome, result_sequence=run.sequence, tree_confirmed_dead=True)

    async def Respond(self, request: pb.RespondRequest, _context: Context) -> pb.RespondResponse:
        self._note("Respond", request)
        run = self._find(request.run_id)
        if run.pending.pop(request.request_id, None) is not None:
            resolved = event_pb2.InputResolved(id=request.request_id, answer=request.answer)
            resolved.resolution = event_pb2.INPUT_RESOLUTION_ANSWERED
            resolved.responder = request.responder
            run.emit(input_resolved=resolved)
        self.open(request.request_id)
        return pb.RespondResponse(sequence=run.sequence)

    async def Send(self, request: pb.SendRequest, _context: Context) -> pb.SendResponse:
        self._note("Send", request)
        run = self._find(request.run_id)
        if run.finished.is_set():
            raise DragomanError(Reason.RUN_FINISHED, "it is over")
        accepted = event_pb2.InputAccepted(input_id=request.input_id, text=request.text, sender=request.sender)
        accepted.mode = request.mode or event_pb2.INPUT_MODE_QUEUE
        run.emit(input_accepted=accepted)
        return pb.SendResponse(sequence=run.sequence)

    async def GetChanges(self, request: pb.GetChangesRequest, _context: Context) -> pb.GetChangesResponse:
        self._find(request.run_id)
        return pb.GetChangesResponse(root=f"/of/{self.instance_id}")

    async def ReadArtifact(self, request: pb.ReadArtifactRequest, context: Context) -> None:
        self._find(request.run_id)
        await context.write(pb.ReadArtifactResponse(data=self.instance_id.encode()).SerializeToString())

    async def UpdateRun(self, request: pb.UpdateRunRequest, _context: Context) -> pb.UpdateRunResponse:
        self._note("UpdateRun", request)
        run = self._find(request.run_id)
        if run.finished.is_set():
            raise DragomanError(Reason.RUN_FINISHED, "it is over")
        if request.model == "bad":
            raise DragomanError(Reason.UPDATE_REFUSED, "the agent rejects it")
        updated = event_pb2.RunUpdated(sender=request.sender)
        if request.HasField("model"):
            updated.model = request.model
        else:
            updated.permission_mode = request.permission_mode
        run.emit(run_updated=updated)
        return pb.UpdateRunResponse(sequence=run.sequence)

    def _steps(self, request: pb.ExecuteRequest) -> list[Any]:
        script = json.loads(request.prompt or request.prompt_template or "[]")
        if isinstance(script, list):
            return script
        number = self._tries.get(request.run_id, 0)
        self._tries[request.run_id] = number + 1
        steps: list[Any] = script[self.type][number]
        return steps

    def _note(self, name: str, request: Any) -> None:
        if request.adapter not in {"", self.type, *self.aliases}:
            raise DragomanError(Reason.ADAPTER_NOT_FOUND, f"this is {self.type}, not {request.adapter}")
        self.calls.append((name, request))
        self.open(f"called {name}")

    def _find(self, run_id: str) -> _Run:
        run = self.runs.get(run_id)
        if run is None:
            raise DragomanError(Reason.RUN_NOT_FOUND, f"the sidecar knows no run {run_id!r}")
        return run

    def _check_batching(self, request: pb.ExecuteRequest | pb.AttachRequest) -> None:
        if request.HasField("batching") and not self.batching:
            raise not_supported("batching", "this adapter is of an earlier day")

    async def _stream(self, run: _Run, context: Context, after: int, *, joined: bool, batching: bool) -> None:
        try:
            reader = run.fanout.reader(after, replay_done=joined, copies=list(run.pending.values()))
        except SequenceAheadError as error:
            raise DragomanError(Reason.SEQUENCE_AHEAD, "past the end") from error
        try:
            await stream_events(context, reader, batching=batching, ended_early=run.streams_end)
        except DragomanError as error:
            raise run.cut_with or error from None
        if run.failure is not None:
            raise run.failure

    async def _play(self, run: _Run) -> None:
        first = run.steps[0] if run.steps else None
        if first == "(silent)":
            return
        run.start(self.type, refused=self.refuses_sessions)
        for step in run.steps:
            if run.finished.is_set():
                return
            await self._step(run, step)

    async def _step(self, run: _Run, step: Any) -> None:
        ((kind, value),) = step.items() if isinstance(step, dict) else [("text", step)]
        if kind == "text":
            run.emit(text=event_pb2.Text(item_id="i", delta=value))
        elif kind == "gate":
            await self.gate(value).wait()
        elif kind == "ask":
            run.emit(input_request=event_pb2.InputRequest(id=value, title=value))
            run.pending[value] = event_pb2.AgentEvent(
                run_id=run.request.run_id,
                attempt=run.attempt,
                input_request=event_pb2.InputRequest(id=value, title=value),
            ).SerializeToString()
            await self.gate(value).wait()
        elif kind == "flood":
            number, size, at_once = (*value, 1)[:3]
            for _ in range(number // at_once):
                run.say_much(at_once, size)
                await asyncio.sleep(0)
        elif kind == "raw":
            run.sequence += 1
            run.fanout.append(bytes.fromhex(value), run.sequence)
        elif kind == "fail":
            run.failure = DragomanError(None, "as the test wants", status=grpc.StatusCode[value])
            run.stop()
        elif kind == "exit":
            os._exit(value)
        elif kind in {"set", "clear", "lost", "used", "says", "took input"}:
            run.say(self.type, kind, value)
        elif kind in {
            "tool",
            "spent",
            "running",
            "failed",
            "took",
            "until",
            "login",
            "words",
            "retried",
            "deaf",
            "stop",
        }:
            run.work(kind, value)
        elif kind == "end":
            run.end(event_pb2.Outcome.Value(f"OUTCOME_{value}"))

    async def drain(self, grace_s: float) -> None:
        """End all runs."""
        del grace_s
        for run in self.runs.values():
            run.end(event_pb2.OUTCOME_CANCELLED)


@contextlib.asynccontextmanager
async def serving(sidecar: Sidecar, address: str) -> AsyncIterator[DragomanServer]:
    """Serve a sidecar in this process; leaving the block ends it without a word, as a crash would."""
    server = DragomanServer({SERVICE: service_handler(SERVICE, sidecar)}, [address], insecure_tcp_without_token=True)
    await server.start()
    await server.set_serving()
    try:
        yield server
    finally:
        await server.stop([], 0)


async def main() -> int:
    """Serve one sidecar, as its environment says."""
    env = os.environ
    if "SIDECAR_DEAF" in env or Path(env.get("SIDECAR_DEAF_WHILE", "/nowhere")).exists():
        await asyncio.Event().wait()
    sidecar = Sidecar(
        env.get("SIDECAR_TYPE", "fake"),
        aliases=[name for name in env.get("SIDECAR_ALIASES", "").split(",") if name],
        revision=int(Path(env["SIDECAR_REVISION_FILE"]).read_text())
        if "SIDECAR_REVISION_FILE" in env
        else int(env.get("SIDECAR_REVISION", "1")),
        features=[event_pb2.Feature.Value(name) for name in env.get("SIDECAR_FEATURES", "").split()],
        schema=env.get("SIDECAR_SCHEMA", ""),
        most=int(env.get("SIDECAR_MOST", "0")),
        duties=() if "SIDECAR_BARE" in env else ALL_DUTIES,
    )
    sidecar.cuts_descriptions = int(env.get("SIDECAR_CUTS_DESCRIPTIONS", "0"))
    if "SIDECAR_AGENT" in env:
        sidecar.find_agent(env["SIDECAR_AGENT"])
    server = DragomanServer({SERVICE: service_handler(SERVICE, sidecar)}, [env["DRAGOMAN_LISTEN"]])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await server.start()
    if "SIDECAR_NOT_SERVING" not in env:
        await server.set_serving()
    await stop.wait()
    if "SIDECAR_STUBBORN" in env:
        await asyncio.Event().wait()
    await server.stop([sidecar], 1)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
