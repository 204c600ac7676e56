"""The run loop of command-line agents, with an agent of a few lines that speaks a protocol of a few words."""

import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dragoman.sdk import (
    AgentSpec,
    Answer,
    Ask,
    CancelStep,
    CloseInput,
    CommandLineAdapter,
    Evidence,
    FailureInfo,
    Job,
    Line,
    Output,
    Parser,
    Plan,
    Report,
    Stream,
    Terminal,
    Withdraw,
    Write,
    capabilities,
    log_event,
)
from dragoman.sdk.spec import common_properties
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.adapters.process.arena import Arena, arena_in, duration
from tests.sdk.running import kinds
from tests.sdk.schemas import config_schema
from tests.sdk.serving import DEADLINE_S

AGENT = r"""
import json, os, signal, sys, time

def say(kind, **fields):
    print(json.dumps({"is": kind, **fields}), flush=True)

def hear():
    line = sys.stdin.readline()
    say("heard", text=line.rstrip("\n"))
    return line

# Taken only where it is waited for: it must neither come into what is just being printed, nor before the wait for it.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
resumed = sys.argv[1] if len(sys.argv) > 1 else ""
prompt = sys.stdin.readline().rstrip("\n")
for step in json.loads(prompt):
    if isinstance(step, dict):
        say(**step)
    elif step == "lost" and resumed:
        print("no such session", file=sys.stderr)
        sys.exit(1)
    elif step == "session":
        say("session", id=resumed or "id-new", resumed=resumed)
    elif step == "read":
        hear()
    elif step == "read all":
        say("heard", text=sys.stdin.read())
    elif step == "hang":
        say("ready")
        signal.sigwait({signal.SIGINT})
        say("heard", text="SIGINT")
        say("done", ok=False)
        sys.exit(130)
    elif step == "until stop":
        say("ready")
        while "stop" not in hear():
            pass
        say("done", ok=False)
        sys.exit(0)
    elif step == "environment":
        say("environment", cwd=os.getcwd(), tmp=os.environ["TMPDIR"], mine=os.environ.get("MINE", ""),
            cache=os.environ.get("NODE_COMPILE_CACHE", ""),
            files=sorted(os.path.relpath(os.path.join(at, name), os.environ["RUN_DIR"])
                         for at, _, names in os.walk(os.environ["RUN_DIR"], followlinks=True) for name in names))
    elif step.startswith("exit "):
        sys.exit(int(step[5:]))
    elif step.startswith("gate "):
        while not os.path.exists(step[5:]):
            time.sleep(0.01)
    elif step.startswith("pause "):
        time.sleep(float(step[6:]))
    elif step == "raw":
        print("raw line", flush=True)
say("done", ok=True)
"""


class WordsParser:
    """Understands the agent."""

    def __init__(self) -> None:
        self.report = Report()

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        try:
            fields: dict[str, Any] = json.loads(line.data)
            kind = fields.pop("is")
        except (ValueError, KeyError, TypeError):
            return [log_event(stream, line)]
        self.report.has_output = True
        handler: Callable[..., Iterable[Output]] = getattr(self, f"_{kind}")
        return handler(**fields)

    def finish(self) -> Iterable[Output]:
        return []

    def _done(self, *, ok: bool) -> Iterable[Output]:
        self.report.terminal = Terminal(succeeded=ok)
        return []

    def _session(self, *, id: str, resumed: str = "") -> Iterable[Output]:  # noqa: A002 - the agent's word
        self.report.session_id = id
        return [pb.AgentEvent(session=pb.Session(native_id=id, title=resumed))]

    def _heard(self, *, text: str) -> Iterable[Output]:
        return [pb.AgentEvent(message=pb.Message(text=text))]

    def _ready(self) -> Iterable[Output]:
        return [pb.AgentEvent(notice=pb.Notice(code="ready"))]

    def _environment(self, **facts: Any) -> Iterable[Output]:
        return [pb.AgentEvent(message=pb.Message(text=json.dumps(facts)))]

    def _state(self, *, phase: str) -> Iterable[Output]:
        return [pb.AgentEvent(state=pb.State(phase=pb.RunPhase.Value(phase)))]

    def _text(self, *, text: str) -> Iterable[Output]:
        return [pb.AgentEvent(text=pb.Text(item_id="i", delta=text))]

    def _ask(self, *, path: str = "") -> Iterable[Output]:
        request = pb.InputRequest(id="q", kind=pb.INPUT_KIND_PERMISSION, title="May I?")
        request.subject.tool_name = "Write"
        request.subject.paths.extend([path] if path else [])
        request.options.add(id="yes", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE)
        request.options.add(id="no", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE)
        return [Ask(request, _encode)]

    def _choose(self) -> Iterable[Output]:
        return [Ask(pb.InputRequest(id="c", kind=pb.INPUT_KIND_CHOICE, options=[pb.InputOption(id="a")]), _encode)]

    def _withdraw(self) -> Iterable[Output]:
        return [Withdraw("q")]

    def _ask_and_withdraw(self) -> Iterable[Output]:
        return [*self._ask(), *self._withdraw()]

    def _write(self, *, text: str) -> Iterable[Output]:
        return [Write(f"{text}\n".encode())]

    def _close(self) -> Iterable[Output]:
        return [CloseInput()]

    def _forbidden(self) -> Iterable[Output]:
        return [pb.AgentEvent(result=pb.Result()), pb.AgentEvent(notice=pb.Notice(code="after the forbidden one"))]

    def _raise(self) -> Iterable[Output]:
        raise RuntimeError("do-not-leak-4711")


def _encode(answer: Answer) -> bytes:
    return f"{'allowed' if answer.allowed else 'denied'} {answer.updated_input_json}{answer.message}\n".encode()


class WordsAdapter(CommandLineAdapter):
    """Runs the agent."""

    spec = AgentSpec(
        type="words",
        label="Words",
        version="1.0",
        configuration_doc="",
        config_schema=config_schema(common_properties()),
        capabilities=capabilities(
            *(feature for feature in pb.Feature.values() if feature), resume=pb.RESUME_STYLE_CAPTURE
        ),
        skill_layout="skills-of-agent/{name}",
        native_protocol="words",
        install_hint="Install it with care.",
        asks_version=False,
    )
    keeps_stdin: bool = True
    cancel: tuple[CancelStep, ...] = (CancelStep(signal.SIGTERM),)
    notices: tuple[tuple[str, str], ...] = ()

    def plan(self, job: Job) -> Plan:
        resumed = [job.session.native_id] if job.session.resumes else []
        return Plan(
            (job.executable, "-I", "-S", "-c", AGENT, *resumed),
            stdin=job.prompt.encode() + b"\n",
            keep_stdin_open=self.keeps_stdin,
            env={"RUN_DIR": str(job.run_dir), "MINE": "the adapter's"},
            files={"deep/made.txt": b"content"},
            notes=(f"attempt {job.attempt}",),
            notices=self.notices,
            cancel=self.cancel,
        )

    def parser(self, job: Job) -> Parser:
        del job
        return WordsParser()

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        if "no such session" in evidence.stderr_tail and evidence.resumed:
            return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, "The session is gone.")
        return None

    def is_session_id(self, text: str) -> bool:
        return text.startswith("id-")


@pytest.fixture
def words() -> WordsAdapter:
    return WordsAdapter()


@pytest_asyncio.fixture
async def arena(tmp_path: Path, words: WordsAdapter) -> AsyncIterator[Arena]:
    async with arena_in(tmp_path, words) as running:
        yield running


def request(
    arena: Arena, *steps: str | dict[str, Any], session: pb.SessionHandle | None = None
) -> api.ExecuteRequest:
    """Return a request whose prompt is the agent's script."""
    run_request = arena.request(sys.executable, prompt=json.dumps(steps))
    del run_request.config["args"]
    if session is not None:
        run_request.session.handle.CopyFrom(session)
    run_request.permissions.interactive = True
    return run_request


def handle(arena: Arena, native_id: str = "id-1") -> pb.SessionHandle:
    return pb.SessionHandle(adapter="words", native_id=native_id, cwd=str(arena.workspace))


def heard(events: Iterable[pb.AgentEvent]) -> list[str]:
    """Return what the agent says that it has read."""
    return [event.message.text for event in events if event.HasField("message")]


def codes(events: Iterable[pb.AgentEvent]) -> list[str]:
    return [event.notice.code for event in events if event.HasField("notice")]


# Sessions.


async def test_a_new_session_is_kept(arena: Arena) -> None:
    events = await arena.run(request(arena, "session"))
    assert events[0].started.session_disposition == pb.SESSION_DISPOSITION_NEW
    update = events[-1].result.session
    assert update.change == pb.SESSION_CHANGE_SET
    assert (update.handle.native_id, update.handle.cwd) == ("id-new", str(arena.workspace))
    assert dict(update.handle.params) == {"sessionId": "id-new", "cwd": str(arena.workspace)}
    again = await arena.run(request(arena, "session", session=update.handle))
    assert again[0].started.session_disposition == pb.SESSION_DISPOSITION_RESUME
    assert again[0].started.native_session_id == "id-new"
    assert [event.session.title for event in again if event.HasField("session")] == ["id-new"]


async def test_a_lost_session_is_tried_once_more_afresh(arena: Arena) -> None:
    events = await arena.run(request(arena, "lost", "session", session=handle(arena)))
    assert [kind for kind in kinds(events) if kind in {"started", "attempt_ended", "result"}] == [
        "started",
        "attempt_ended",
        "started",
        "result",
    ]
    first, ended, second, result = (
        event for event in events if event.WhichOneof("body") in {"started", "attempt_ended", "result"}
    )
    assert first.started.session_disposition == pb.SESSION_DISPOSITION_RESUME
    assert ended.attempt_ended.failure.kind == pb.FAILURE_KIND_SESSION_LOST
    assert ended.attempt_ended.session.change == pb.SESSION_CHANGE_CLEAR
    assert ended.attempt_ended.exit_code == 1
    assert second.started.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
    assert second.started.session_reason
    assert list(second.started.notes) == ["attempt 2"]
    assert [first.attempt, second.attempt, result.attempt] == [1, 2, 2]
    assert result.result.session.change == pb.SESSION_CHANGE_SET
    assert result.result.session.handle.native_id == "id-new"


async def test_a_lost_session_without_a_new_one_is_forgotten(arena: Arena) -> None:
    result = await arena.result(request(arena, "lost", "exit 3", session=handle(arena)))
    assert result.outcome == pb.OUTCOME_FAILED
    assert result.session.change == pb.SESSION_CHANGE_CLEAR


async def test_no_id_is_kept_from_a_failure_nor_one_of_a_wrong_shape(arena: Arena) -> None:
    failed = await arena.result(request(arena, "session", "exit 3"))
    assert not failed.HasField("session")
    odd = await arena.result(request(arena, {"kind": "session", "id": "--odd"}))
    assert odd.outcome == pb.OUTCOME_SUCCEEDED
    assert not odd.HasField("session")


async def test_another_session_than_the_requested_one_is_reported(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "session", "id": "id-other"}, session=handle(arena)))
    assert codes(events) == ["session_differs"]
    assert kinds(events)[-1] == "result"


async def test_a_session_that_does_not_match_begins_anew_and_says_why(arena: Arena) -> None:
    elsewhere = handle(arena)
    elsewhere.cwd = "/"
    events = await arena.run(request(arena, "session", session=elsewhere))
    assert events[0].started.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
    assert "/" in events[0].started.session_reason
    assert [event.session.title for event in events if event.HasField("session")] == [""]


# Questions.

ASK = {"kind": "ask"}


async def test_a_question_is_answered_on_standard_input(arena: Arena) -> None:
    stream = arena.begin(request(arena, ASK, "read"))
    asked = await stream.until("input_request")
    assert (await stream.until("state")).state.phase == pb.RUN_PHASE_WAITING_FOR_INPUT
    answer = pb.InputAnswer(option_ids=["yes"])
    await arena.sidecar.stub.Respond(api.RespondRequest(run_id=asked.run_id, request_id="q", answer=answer))
    assert heard(await stream.rest()) == ["allowed "]


@pytest.mark.parametrize(
    ("rules", "interactive", "reply", "notices"),
    [
        ([pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW)], True, "allowed ", []),
        (
            [pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY)],
            True,
            "denied Not allowed by this run's permission policy.",
            ["permission_denied"],
        ),
        ([], False, "denied Not allowed by this run's permission policy.", ["permission_denied"]),
        (
            [pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW, path_glob="WORKSPACE/src/*")],
            False,
            "allowed ",
            [],
        ),
    ],
)
async def test_policy_answers_where_it_can(
    arena: Arena, rules: list[pb.PermissionRule], interactive: bool, reply: str, notices: list[str]
) -> None:
    run_request = request(arena, {"kind": "ask", "path": "src/main.py"}, "read")
    for rule in rules:
        rule.path_glob = rule.path_glob.replace("WORKSPACE", str(arena.workspace))
    run_request.permissions.rules.extend(rules)
    run_request.permissions.interactive = interactive
    events = await arena.run(run_request)
    assert heard(events) == [reply]
    assert codes(events) == notices
    assert "input_request" not in kinds(events)


async def test_other_questions_are_declined_in_unattended_runs(arena: Arena) -> None:
    run_request = request(arena, {"kind": "choose"}, "read")
    run_request.permissions.interactive = False
    run_request.permissions.default_decision = pb.PERMISSION_DECISION_ALLOW
    events = await arena.run(run_request)
    assert codes(events) == ["question_declined"]
    assert heard(events) == ["denied "]


async def test_a_question_and_its_withdrawal_in_one_line(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "ask_and_withdraw"}, {"kind": "text", "text": "on we go"}))
    order = [kind for kind in kinds(events) if kind in {"input_request", "input_resolved", "text"}]
    assert order == ["input_request", "input_resolved", "text"]


async def test_a_question_asked_twice_under_one_id_is_denied(arena: Arena) -> None:
    stream = arena.begin(request(arena, ASK, ASK, "read", "read"))
    asked = await stream.until("input_request")
    await stream.until("message")
    answer = pb.InputAnswer(option_ids=["yes"])
    await arena.sidecar.stub.Respond(api.RespondRequest(run_id=asked.run_id, request_id="q", answer=answer))
    assert heard(await stream.rest()) == ["allowed "]


async def test_an_idle_clock_pauses_while_a_question_waits(arena: Arena) -> None:
    run_request = request(arena, ASK, "read", "hang")
    run_request.limits.idle.CopyFrom(duration(1.0))  # the agent is to have begun by then
    run_request.permissions.request_timeout.CopyFrom(duration(1.5))
    events = await arena.run(run_request)
    assert heard(events) == ["denied No answer arrived in time."]
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_IDLE_TIMEOUT


async def test_an_idle_clock_pauses_while_a_user_logs_in(arena: Arena) -> None:
    run_request = request(arena, {"kind": "state", "phase": "RUN_PHASE_WAITING_FOR_AUTH"}, "hang")
    run_request.limits.idle.CopyFrom(duration(1.0))  # as above
    run_request.limits.wall.CopyFrom(duration(2.0))
    assert (await arena.result(run_request)).failure.kind == pb.FAILURE_KIND_WALL_TIMEOUT


async def test_open_questions_end_with_their_run(arena: Arena) -> None:
    events = await arena.run(request(arena, ASK))
    resolved = [event.input_resolved for event in events if event.HasField("input_resolved")]
    assert [item.resolution for item in resolved] == [pb.INPUT_RESOLUTION_DROPPED]


# Standard input.


async def test_the_agent_reads_what_its_parser_writes_until_it_closes(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "write", "text": "one"}, "read", {"kind": "close"}, "read all"))
    assert heard(events) == ["one", ""]


async def test_standard_input_is_closed_after_the_prompt(arena: Arena, words: WordsAdapter) -> None:
    words.keeps_stdin = False
    assert heard(await arena.run(request(arena, {"kind": "write", "text": "late"}, "read all"))) == [""]


# Cancelling.


async def test_steps_to_the_end_in_words_and_signals(arena: Arena, words: WordsAdapter) -> None:
    words.cancel = (CancelStep(None, write=b"please stop\n", share=0.5), CancelStep(signal.SIGTERM, share=0.5))
    stream = arena.begin(request(arena, "until stop"))
    run_id = (await stream.until("notice")).run_id
    await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(DEADLINE_S)))
    rest = await stream.rest()
    assert heard(rest) == ["please stop"]
    assert rest[-1].result.outcome == pb.OUTCOME_CANCELLED
    assert rest[-1].result.exit_code == 0


async def test_an_interruption_lets_it_have_the_last_word(arena: Arena, words: WordsAdapter) -> None:
    words.cancel = (CancelStep(signal.SIGINT, share=0.9), CancelStep(signal.SIGTERM, share=0.1))
    stream = arena.begin(request(arena, "session", "hang"))
    run_id = (await stream.until("notice")).run_id
    await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(DEADLINE_S)))
    rest = await stream.rest()
    assert heard(rest) == ["SIGINT"]
    assert rest[-1].result.exit_code == 130
    assert rest[-1].result.session.change == pb.SESSION_CHANGE_SET, "it can be resumed"


async def test_no_question_is_put_while_it_is_being_stopped(arena: Arena, words: WordsAdapter) -> None:
    words.cancel = (CancelStep(None, write=b"go on\nstop\n"),)
    stream = arena.begin(request(arena, {"kind": "ready"}, "read", ASK, "read"))
    run_id = (await stream.until("notice")).run_id
    await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(DEADLINE_S)))
    rest = await stream.rest()
    assert "input_request" not in kinds(rest)


async def test_what_is_cancelled_while_it_is_looked_for_is_not_started(
    arena: Arena, words: WordsAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    locate = words.locate

    async def locate_and_cancel(*args: Any) -> tuple[str, str]:
        (run,) = arena.sidecar.server.servicer._runs
        run.cancel(DEADLINE_S)
        return await locate(*args)

    monkeypatch.setattr(words, "locate", locate_and_cancel)
    events = await arena.run(request(arena, "hang"))
    assert kinds(events) == ["started", "state", "result"]
    result = events[-1].result
    assert result.outcome == pb.OUTCOME_CANCELLED
    assert result.tree_confirmed_dead
    assert not result.signal
    assert not result.HasField("exit_code")


# Around the agent.


async def test_what_is_laid_out_for_the_agent(arena: Arena, tmp_path: Path) -> None:
    skill = tmp_path / "skill"
    skill.mkdir()
    (skill / "SKILL.md").write_text("# s")
    run_request = request(arena, "environment")
    run_request.skills.add(name="one", directory=str(skill))
    run_request.skills.add(name="two").files.content["SKILL.md"] = b"# two"
    run_request.env["MINE"] = "the caller's"
    events = await arena.run(run_request)
    (facts,) = (json.loads(text) for text in heard(events))
    assert facts["cwd"] == str(arena.workspace)
    assert facts["mine"] == "the caller's", "the request's variables win over the adapter's"
    assert facts["cache"] == ""
    assert Path(facts["tmp"]).parent.parent == arena.run_directories
    assert facts["files"] == [
        "deep/made.txt",
        "skills/skills-of-agent/one/SKILL.md",
        "skills/skills-of-agent/two/SKILL.md",
    ]
    assert (skill / "SKILL.md").read_text() == "# s", "what was linked to is still there"


async def test_a_program_for_node_finds_what_it_compiled_before(
    arena: Arena, words: WordsAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "spec", replace(words.spec, runs_on_node=True))
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    (facts,) = (json.loads(text) for text in heard(await arena.run(request(arena, "environment"))))
    assert facts["cache"] == "/caches/dragoman/node"
    own = request(arena, "environment")
    own.env["NODE_COMPILE_CACHE"] = "/mine"
    (facts,) = (json.loads(text) for text in heard(await arena.run(own)))
    assert facts["cache"] == "/mine"


async def test_remarks_follow_started(arena: Arena, words: WordsAdapter) -> None:
    words.notices = (("old_version", "It is old."),)
    run_request = request(arena)
    run_request.prompt_template = "[]{{nothing.there}}"
    events = await arena.run(run_request)
    assert kinds(events)[:4] == ["started", "state", "notice", "notice"]
    assert codes(events) == ["old_version", "template_value_missing"]


async def test_what_is_missing_says_how_to_install_it(arena: Arena) -> None:
    run_request = request(arena)
    run_request.config["command"] = "no-such-agent"
    result = await arena.result(run_request)
    assert result.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED
    assert "Install it with care. Or set config.command" in result.failure.message


async def test_without_its_last_word_it_has_not_succeeded(arena: Arena) -> None:
    result = await arena.result(request(arena, "exit 0"))
    assert result.failure.kind == pb.FAILURE_KIND_NO_RESULT


async def test_a_parser_that_raises_loses_no_line(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "raise"}, {"kind": "text", "text": "after"}))
    (log,) = (event.log for event in events if event.HasField("log"))
    assert json.loads(log.text) == {"is": "raise"}
    assert [event.text.delta for event in events if event.HasField("text")] == ["after"]
    assert "do-not-leak-4711" not in repr(arena.logged)
    assert [line["exception"] for line in arena.logged if line["event"] == "parser failed"] == ["RuntimeError"]


async def test_an_event_that_may_not_be_takes_no_other_with_it(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "forbidden"}))
    assert codes(events) == ["event_refused", "after the forbidden one"]
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


async def test_native_frames_are_sent_only_when_asked_for(arena: Arena) -> None:
    steps = ("session", "raw", {"kind": "text", "text": "hello"})
    plain = await arena.run(request(arena, *steps))
    assert not any(event.HasField("native") for event in plain)
    run_request = request(arena, *steps)
    run_request.include_native = True
    events = await arena.run(run_request)
    frames = {event.WhichOneof("body"): event.native for event in events if event.HasField("native")}
    assert set(frames) == {"session", "text"}, "a log is its own frame"
    assert json.loads(frames["text"].text) == {"is": "text", "text": "hello"}
    assert frames["text"].protocol == "words"


async def test_two_resumes_of_one_session_do_not_run_at_once(arena: Arena) -> None:
    first = arena.begin(request(arena, "hang", session=handle(arena)))
    run_id = (await first.until("notice")).run_id
    with pytest.raises(Exception, match="session") as caught:
        await arena.run(request(arena, session=handle(arena)))
    assert getattr(caught.value, "reason", None) == "SESSION_BUSY"
    other = await arena.result(request(arena, session=handle(arena, "id-2")))
    assert other.outcome == pb.OUTCOME_SUCCEEDED
    await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(0)))
    after = await arena.result(request(arena, session=handle(arena)))
    assert after.outcome == pb.OUTCOME_SUCCEEDED
