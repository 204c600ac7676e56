"""An adapter in this process whose agent performs the steps of the kit's scripted agent: quick, and conformant."""

import asyncio
import fcntl
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from dragoman.conformance.script import VARIABLE, steps_of
from dragoman.protocol.clocks import Clocks
from dragoman.sdk import (
    AdapterServer,
    AgentSpec,
    FailureError,
    FailureInfo,
    InProcessAdapter,
    Job,
    Line,
    Plan,
    Run,
    Stream,
    Terminal,
    Turn,
    capabilities,
    log_event,
)
from dragoman.sdk._run.attempt import AttemptEnd
from dragoman.sdk.fields import JsonValue
from dragoman.sdk.parsing import Steering, Update
from dragoman.sdk.spec import common_properties
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.conformance.reported import reported
from tests.sdk.schemas import config_schema

NONE = pb.PERMISSION_MODE_NONE
POLL_S = 0.01
TYPE = "scripted"
EXITED = "exited"
"""The code of a failure whose message is an exit code, as an agent of this process has none."""


class ScriptedAdapter(InProcessAdapter):
    """Performs steps."""

    spec = AgentSpec(
        type=TYPE,
        label="Scripted",
        version="1",
        aliases=("scripted_local",),
        configuration_doc="# scripted",
        config_schema=config_schema(common_properties()),
        capabilities=capabilities(
            pb.FEATURE_PROMPT,
            pb.FEATURE_WORKSPACE,
            pb.FEATURE_AUTH_TOKEN,
            pb.FEATURE_PERMISSION_REQUESTS,
            pb.FEATURE_TOOL_START,
            pb.FEATURE_RESUME,
            pb.FEATURE_RESUME_REJECTION,
            pb.FEATURE_FORK,
            pb.FEATURE_MODEL_CHOICE,
            pb.FEATURE_SYSTEM_PROMPT,
            pb.FEATURE_INSTRUCTIONS,
            pb.FEATURE_SKILLS,
            pb.FEATURE_MCP_SERVERS,
            pb.FEATURE_MAX_TURNS,
            pb.FEATURE_TEXT_DELTAS,
            pb.FEATURE_THINKING,
            pb.FEATURE_TOOL_OUTPUT_DELTAS,
            pb.FEATURE_PER_CALL_USAGE,
            pb.FEATURE_PER_MODEL_USAGE,
            pb.FEATURE_COST,
            pb.FEATURE_FILE_CHANGES,
            pb.FEATURE_PLAN,
            pb.FEATURE_SUBAGENTS,
            pb.FEATURE_INPUT_REQUESTS,
            pb.FEATURE_STEER,
            pb.FEATURE_UPDATE_MODEL,
            pb.FEATURE_QUOTA,
            pb.FEATURE_LOGIN,
            permission_mode=pb.PERMISSION_MODE_STRICT,
        ),
    )

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> api.Detection:
        del env
        if _is_missing(config):
            return api.Detection(message="There is no such program.", hint="Name another one.")
        return api.Detection(available=True, message="Always there.", auth=api.AUTH_STATE_NOT_NEEDED)

    async def get_quota(self, request: api.GetQuotaRequest) -> api.GetQuotaResponse:
        del request
        return api.GetQuotaResponse(windows=[pb.RateLimit(window="five_hour", used_percent=42)])

    async def log_in(self, request: api.LoginRequest) -> AsyncGenerator[api.LoginResponse, None]:
        del request
        yield api.LoginResponse(prompt=api.LoginPrompt(url="https://login.example", user_code="AB-12"))
        yield api.LoginResponse(outcome=api.LoginOutcome())

    async def attempt(self, run: Run, job: Job, plan: Plan, env: Mapping[str, str], clocks: Clocks) -> AttemptEnd:
        end = await super().attempt(run, job, plan, env, clocks)
        terminal = end.evidence.report.terminal
        if terminal is None or terminal.failure is None or terminal.failure.code != EXITED:
            return end
        return replace(end, evidence=replace(end.evidence, exit_code=int(terminal.failure.message)))

    async def work(self, turn: Turn) -> None:
        if _is_missing(turn.job.config):
            raise FailureError(FailureInfo(pb.FAILURE_KIND_NOT_INSTALLED, "There is no such program."))
        turn.run.sent.on_steer = lambda steering: _steer(turn.run, steering)
        turn.run.updates.on_update = lambda update: _take(turn.run, update)
        with ExitStack() as stack:
            performer = Performer(turn, stack)
            script = turn.env.get(VARIABLE, "")
            for line in filter(None, script.split("\n")):
                name, _, value = line.partition("=")
                await performer.perform(name, value)
        turn.report.terminal = Terminal(succeeded=True)


def _steer(run: Run, steering: Steering) -> bool:
    run.emit(steering.taken)
    return True


def _take(run: Run, update: Update) -> bool:
    run.updates.take(update.update_id)
    return True


def _is_missing(config: Mapping[str, JsonValue]) -> bool:
    """Return whether the program that stands for the agent does not exist; it is not started."""
    return "command" in config and not Path(str(config["command"])).exists()


class ModestAdapter(ScriptedAdapter):
    """Declares little, and so has more to refuse."""

    spec = replace(
        ScriptedAdapter.spec,
        capabilities=pb.Capabilities(
            # Without what the SDK adds to FEATURE_WORKSPACE, here and below.
            items=[pb.Capability(feature=feature) for feature in (pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE)],
            permission_mode=NONE,
        ),
    )
    del spec.capabilities.items[2:]


class ForklessAdapter(ScriptedAdapter):
    """Resumes sessions, but copies none."""

    spec = replace(
        ScriptedAdapter.spec,
        capabilities=capabilities(
            *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_RESUME), permission_mode=pb.PERMISSION_MODE_NONE
        ),
    )


class UnqueuedAdapter(ScriptedAdapter):
    """Takes inputs in its present turn, and has no other one."""

    spec = replace(
        ScriptedAdapter.spec,
        capabilities=capabilities(
            *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_STEER), permission_mode=pb.PERMISSION_MODE_NONE
        ),
    )


class Performer:
    """Performs the steps of one turn."""

    def __init__(self, turn: Turn, stack: ExitStack) -> None:
        self._turn = turn
        self._stack = stack
        self._items = 0
        self._size = 0
        self._is_deaf = False

    async def perform(self, name: str, value: str) -> None:
        match name:
            case "wait":
                while not Path(value).exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(POLL_S)
            case "hold":
                self._hold(Path(value))
            case "ask" | "write" | "question":
                await self._ask(name, value)
            case "hang":
                await self._hang()
            case "exit" | "fail":
                code = EXITED if name == "exit" else "failed"
                raise FailureError(FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, value, code=code))
            case "flood":
                for number in range(int(value)):
                    self._say(f"{number:0100}")
                    if number % 100 == 0:
                        await asyncio.sleep(0)
            case "deaf" | "lost" | "session" | "call" | "tool" | "failing" | "usage":
                self._report(name, value)
            case "err" | "line" | "raw":
                self._print(name, value)
            case _:
                self._at_once(name, value)

    def _report(self, name: str, value: str) -> None:
        match name:
            case "deaf":
                self._is_deaf = True
            case "lost" | "session":
                self._session(name, value)
            case "call":
                self._call(value, None)
            case "tool" | "failing":
                self._call(value, pb.TOOL_STATUS_COMPLETED if name == "tool" else pb.TOOL_STATUS_FAILED)
            case "usage":
                self._usage(value)

    def _hold(self, path: Path) -> None:
        file = self._stack.enter_context(path.open("w", encoding="utf-8"))
        fcntl.flock(file, fcntl.LOCK_EX)

    def _session(self, step: str, name: str) -> None:
        if step == "session":
            self._turn.report.session_id = name
        elif self._turn.job.session.resumes:
            raise FailureError(FailureInfo(pb.FAILURE_KIND_SESSION_LOST, "no such session", code="lost"))

    async def _hang(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._is_deaf:
                await asyncio.Event().wait()
            raise

    def _call(self, name: str, status: pb.ToolStatus.ValueType | None) -> None:
        event = pb.AgentEvent(tool_call=pb.ToolCall(id="1", name=name, status=pb.TOOL_STATUS_RUNNING))
        self._turn.observe(event)
        self._emit(event)
        if status is not None:
            result = pb.ToolResult(tool_call_id="1", content="done", status=status)
            self._emit(pb.AgentEvent(tool_result=result))

    def _usage(self, counts: str) -> None:
        names = ("input", "output")
        tokens = {name: int(count) for name, count in zip(names, counts.split(","), strict=True) if count}
        self._turn.report.usage = pb.Usage(
            scope=pb.USAGE_SCOPE_RUN,
            semantics=pb.USAGE_SEMANTICS_CUMULATIVE,
            tokens=pb.TokenCounts(**tokens),
        )

    def _has_received(self, word: str) -> bool:
        job = self._turn.job
        skills = [data for skill in job.request.skills for data in skill.files.content.values()]
        servers = [server.name for server in job.request.mcp_servers]
        attached = [file.path.read_text() for file in job.attachments if str(file.path.parent) in job.prompt]
        received = (
            *attached,
            job.settings.model,
            str(job.settings.max_turns),
            job.standing_text,
            job.session.native_id,
            *servers,
            *map(bytes.decode, skills),
        )
        return any(word in text for text in received)

    def _at_once(self, name: str, value: str) -> None:
        prompt, env = self._turn.job.prompt, self._turn.env
        match name:
            case "say":
                self._say(value)
            case "piece":
                self._piece("pieces", value)
            case "prompt":
                data = prompt.encode()
                self._say(f"bytes={len(data)} sha256={hashlib.sha256(data).hexdigest()}")
            case "echo":
                self._say(steps_of(prompt)[1][:200])
            case "env":
                self._say(env.get(value, ""))
            case "split":
                secret = env.get(value, "")
                self._piece("secret", secret[:10])
                self._piece("secret", secret[10:])
            case "touch":
                Path(self._turn.job.settings.cwd, value).touch()
            case "leave":
                Path(env["DRAGOMAN_ARTIFACTS"], value).write_text(value)
            case "leave-link":
                Path(env["DRAGOMAN_ARTIFACTS"], value).symlink_to(__file__)
            case "received":
                self._say(f"received: {'yes' if self._has_received(bytes.fromhex(value).decode()) else 'no'}")
            case "child":
                pass  # there is no process
            case _:
                self._emit(reported(name, value, self._turn.report))

    def _print(self, name: str, value: str) -> None:
        stream: Stream = "stdout"
        match name:
            case "err":
                stream, data = "stderr", value.encode()
            case "line":
                data = b"x" * int(value)
            case _:
                data = bytes.fromhex(value).rstrip(b"\n")
        self._emit(log_event(stream, Line(data, 0, complete=True)))

    def _say(self, text: str) -> None:
        self._items += 1
        if not self._exceeds(text):
            self._emit(pb.AgentEvent(text=pb.Text(item_id=f"item-{self._items}", whole=text)))

    def _exceeds(self, text: str) -> bool:
        most = self._turn.job.settings.output_bytes
        was_within = most is None or self._size <= most
        self._size += len(text)
        if most is None or self._size <= most:
            return False
        if was_within:
            self._turn.run.notice(pb.SEVERITY_WARNING, "output_cut", "The output limit is reached.")
        return True

    def _piece(self, item: str, text: str) -> None:
        self._emit(pb.AgentEvent(text=pb.Text(item_id=item, delta=text)))

    def _emit(self, event: pb.AgentEvent) -> None:
        self._turn.activity()
        self._turn.run.emit(event)

    async def _ask(self, step: str, value: str) -> None:
        request = pb.InputRequest(id="1", kind=pb.INPUT_KIND_TEXT, title=value)
        if step != "question":
            subject = pb.InputSubject(tool_name="write", tool_kind=pb.TOOL_KIND_EDIT)
            request = pb.InputRequest(id="1", kind=pb.INPUT_KIND_PERMISSION, title="May I?", subject=subject)
            request.options.add(id="yes", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Yes")
            request.options.add(id="no", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="No")
        answer = await self._turn.ask(request)
        if step == "write" and answer.allowed:
            Path(value).touch()
        self._say(f"answered {answer}")


@asynccontextmanager
async def serving(
    address: str, adapter: ScriptedAdapter | None = None, *, grace_s: float = 0.1
) -> AsyncIterator[AdapterServer]:
    """Serve the adapter; at the end its runs have the grace to end."""
    server = AdapterServer(adapter or ScriptedAdapter(), [address])
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace_s)
