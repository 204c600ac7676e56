"""An agent's questions: what policy says of them, what the caller answers, and what is reported meanwhile."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.sdk import Answer, Ask
from dragoman.sdk._run.questions import Questions
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.sdk.running import kinds, make_run, written

ALLOW = pb.InputOption(id="yes", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, native_json='{"token": "s3cr3t-value"}')
REJECT = pb.InputOption(id="no", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE)
SUBJECT = pb.InputSubject(tool_call_id="call-1", tool_name="Write", tool_kind=pb.TOOL_KIND_EDIT)


@dataclass
class Case:
    """One attempt's questions, and what its agent received."""

    permissions: pb.Permissions
    answers: list[Answer] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = make_run(api.ExecuteRequest(permissions=self.permissions))
        job: Any = SimpleNamespace(
            permissions=self.permissions,
            interactive=self.permissions.interactive,
            settings=SimpleNamespace(cwd="/"),
        )
        self.questions = Questions(self.run, job, self.sent.append, lambda: None)

    def ask(self, request: pb.InputRequest, lineage: pb.Lineage | None = None) -> None:
        def encode(answer: Answer) -> bytes:
            self.answers.append(answer)
            return b"answer"

        self.questions.ask(Ask(request, encode, lineage), is_ending=False)

    async def answer(self, **answer: Any) -> None:
        self.run.inputs.answer("q", pb.InputAnswer(**answer), "")
        await asyncio.sleep(0)  # the answer reaches the agent in the loop's next round


def permission() -> pb.InputRequest:
    return pb.InputRequest(id="q", kind=pb.INPUT_KIND_PERMISSION, subject=SUBJECT, options=[ALLOW, REJECT])


def choice() -> pb.InputRequest:
    options = [pb.InputOption(id=name, label=name.upper()) for name in ("red", "blue", "green")]
    return pb.InputRequest(id="q", kind=pb.INPUT_KIND_CHOICE, options=options, multiple=True)


def calls(events: Sequence[pb.AgentEvent]) -> list[tuple[int, str]]:
    return [
        (event.tool_call.status, event.tool_call.input_json)
        for event in events
        if event.WhichOneof("body") == "tool_call"
    ]


async def test_an_unattended_question_is_not_answered_with_its_first_option() -> None:
    case = Case(pb.Permissions(auto_approve=True))
    case.ask(choice())
    assert case.answers == [Answer(allowed=False)]
    assert "notice" in kinds(await written(case.run))


async def test_all_options_chosen_reach_the_agent() -> None:
    case = Case(pb.Permissions(interactive=True))
    case.ask(choice())
    await case.answer(option_ids=["blue", "green"])
    (answer,) = case.answers
    assert answer.allowed
    assert [option.label for option in answer.chosen] == ["BLUE", "GREEN"]


@pytest.mark.parametrize(
    ("fields", "allowed"), [({"text": "a word"}, True), ({"message": "no"}, False)], ids=["text", "nothing"]
)
async def test_a_question_for_words_counts_as_answered_by_words_alone(fields: dict[str, str], allowed: bool) -> None:
    case = Case(pb.Permissions(interactive=True))
    case.ask(pb.InputRequest(id="q", kind=pb.INPUT_KIND_UNSPECIFIED))
    await case.answer(**fields)
    assert case.answers[0].allowed is allowed


async def test_a_tool_call_waits_for_the_answer_and_continues_with_the_edited_input() -> None:
    case = Case(pb.Permissions(interactive=True))
    request = permission()
    request.editable_input_json = '{"path": "a"}'
    case.ask(request)
    assert calls(await written(case.run)) == [(pb.TOOL_STATUS_AWAITING_PERMISSION, "")]
    await case.answer(option_ids=["yes"], updated_input_json='{"path": "b"}')
    assert calls(await written(case.run))[1:] == [(pb.TOOL_STATUS_RUNNING, '{"path": "b"}')]
    assert case.answers[0].option == ALLOW


async def test_a_refused_tool_call_does_not_go_on() -> None:
    case = Case(pb.Permissions(interactive=True))
    case.ask(permission())
    await case.answer(option_ids=["no"], message="not here")
    assert len(calls(await written(case.run))) == 1
    assert (case.answers[0].allowed, case.answers[0].message) == (False, "not here")


async def test_what_policy_decides_at_once_does_not_wait() -> None:
    case = Case(pb.Permissions(auto_approve=True))
    case.ask(permission())
    assert calls(await written(case.run)) == []
    assert case.answers == [Answer(allowed=True, option=ALLOW, chosen=(ALLOW,))]


async def test_a_nested_agents_question_is_emitted_as_its_own() -> None:
    case = Case(pb.Permissions(interactive=True))
    lineage = pb.Lineage(subagent_id="nested", parent_tool_call_id="call-0")
    case.ask(permission(), lineage)
    asked = [event for event in await written(case.run) if event.WhichOneof("body") in {"tool_call", "input_request"}]
    assert [event.lineage for event in asked] == [lineage, lineage]
    assert [pb.AgentEvent.FromString(copy).lineage for copy in case.run.inputs.pending_copies()] == [lineage]


async def test_an_agent_that_tries_again_while_it_is_cancelled_does_not_look_alive() -> None:
    run = make_run()
    run.cancel(10.0)
    run.emit(pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RETRYING)))
    assert run.phase == pb.RUN_PHASE_CANCELLING
    assert [event.state.phase for event in await written(run)][-1] == pb.RUN_PHASE_CANCELLING


@pytest.mark.parametrize(
    ("default", "chosen"), [(pb.PERMISSION_DECISION_ALLOW, "once"), (pb.PERMISSION_DECISION_DENY, "not-now")]
)
async def test_policy_takes_once_before_always_in_whatever_order(default: Any, chosen: str) -> None:
    case = Case(pb.Permissions(default_decision=default))
    request = permission()
    del request.options[:]
    request.options.add(id="never", kind=pb.INPUT_OPTION_KIND_REJECT_ALWAYS)
    request.options.add(id="ever", kind=pb.INPUT_OPTION_KIND_ALLOW_ALWAYS)
    request.options.add(id="not-now", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE)
    request.options.add(id="once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE)
    case.ask(request)
    (answer,) = case.answers
    assert answer.option is not None
    assert answer.option.id == chosen
