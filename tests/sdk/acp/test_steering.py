"""Inputs for the present turn, of agents that let a further prompt join it."""

from typing import Any

import pytest
from dragoman.sdk import Output, Terminal
from dragoman.sdk.acp import AcpOptions
from dragoman.sdk.parsing import Steering, Untaken
from dragoman.v1 import event_pb2 as pb

from tests.sdk.acp.talking import READY, Talk, agent_text, asks, update

WORDS = Steering("word", "Use blue.")
JOINING = AcpOptions(steers=True)


def ended(request: int, reason: str = "end_turn") -> dict[str, Any]:
    return {"id": request, "result": {"stopReason": reason}}


def running(options: AcpOptions = JOINING) -> Talk:
    return Talk(options=options).hear(*READY)


def end(talk: Talk) -> Terminal | None:
    return talk.parser.report.terminal


def deferred(talk: Talk) -> Terminal | None:
    return talk.parser.report.deferred


def steer(talk: Talk, steering: Steering = WORDS) -> list[Output]:
    outputs = talk.parser.steer(steering)
    assert outputs is not None
    talk.outputs += outputs
    return list(outputs)


def taken(talk: Talk) -> list[str]:
    return [event.message.input_id for event in talk.events if event.message.input_id]


def refused(talk: Talk) -> list[str]:
    return [output.input_id for output in talk.outputs if isinstance(output, Untaken)]


def test_an_input_is_a_prompt() -> None:
    talk = running()
    steer(talk)
    assert talk.written[-1]["method"] == "session/prompt"
    assert talk.written[-1]["params"] == {"sessionId": "s-1", "prompt": [{"type": "text", "text": "Use blue."}]}


@pytest.mark.parametrize(
    "frame",
    [agent_text("Blue."), asks("session/request_permission", options=[], toolCall={"toolCallId": "c"}), ended(4)],
    ids=["update", "request", "answer"],
)
def test_an_input_is_taken_once_the_agent_goes_on(frame: dict[str, Any]) -> None:
    talk = running()
    steer(talk)
    talk.hear(update("available_commands_update", availableCommands=[]))
    assert taken(talk) == [], "it is a fact of the session"
    talk.hear(frame, agent_text(" It is."))
    assert taken(talk) == ["word"]


def test_an_input_is_not_taken_by_an_agent_that_stops() -> None:
    talk = running()
    steer(talk)
    talk.outputs += talk.parser.interrupt()
    talk.hear(agent_text("Bl"), ended(4, "cancelled"), ended(3, "cancelled"))
    assert taken(talk) == []


def test_an_end_stands_if_the_agent_says_no_more_of_an_input() -> None:
    talk = running().hear(agent_text("Red."))
    steer(talk)
    talk.hear(ended(3))
    assert (end(talk), deferred(talk)) == (None, Terminal(succeeded=True, subtype="end_turn"))
    assert talk.parser.report.summary == "Red."
    talk.hear(update("available_commands_update", availableCommands=[]))
    assert deferred(talk) is not None, "it is no work"
    talk.hear(agent_text("Blue."))
    assert deferred(talk) is None, "the turn goes on, and takes its time"
    talk.hear(ended(4))
    assert end(talk) == Terminal(succeeded=True, subtype="end_turn")
    assert deferred(talk) is None


def test_an_end_stands_if_the_agent_then_refuses_the_input() -> None:
    talk = running().hear(agent_text("Red."))
    steer(talk)
    steer(talk, Steering("other", "Or green."))
    talk.hear(ended(3), {"id": 4, "error": {"code": -32603, "message": "busy"}})
    assert (end(talk), refused(talk), talk.closes) == (None, ["word"], False)
    talk.hear({"id": 5, "error": {"code": -32603, "message": "busy"}})
    assert (refused(talk), taken(talk), talk.closes) == (["word", "other"], [], True)
    assert end(talk) == Terminal(succeeded=True, subtype="end_turn")


def test_an_input_that_begins_with_a_slash_is_no_command() -> None:
    talk = running()
    steer(talk, Steering("i", "/compact"))
    assert talk.written[-1]["params"]["prompt"][0]["text"] == "\u200b/compact"


def test_the_turn_ends_with_the_last_answer_whichever_that_is() -> None:
    for answers in ((3, 4), (4, 3)):
        talk = running()
        steer(talk)
        talk.hear(agent_text("Blue."), ended(answers[0]))
        assert (talk.closes, end(talk)) == (False, None)
        talk.hear(agent_text(" It is."), ended(answers[1]))
        assert talk.closes
        terminal = end(talk)
        assert terminal is not None
        assert terminal.succeeded
        assert talk.text == "Blue. It is."


def test_nothing_is_taken_before_the_prompt_after_the_end_or_while_it_is_stopped() -> None:
    assert Talk(options=JOINING).parser.steer(WORDS) is None
    assert running().hear(ended(3)).parser.steer(WORDS) is None
    talk = running()
    talk.outputs += talk.parser.interrupt()
    assert talk.parser.steer(WORDS) is None
    assert running(AcpOptions()).parser.steer(WORDS) is None, "most agents let none join"


def test_a_turn_that_goes_on_for_an_input_is_cancelled() -> None:
    talk = running()
    steer(talk)
    talk.hear(ended(3))
    talk.outputs += talk.parser.interrupt()
    assert talk.written[-1]["method"] == "session/cancel"
    talk.hear(ended(4, "cancelled"))
    terminal = end(talk)
    assert terminal is not None
    assert terminal.interrupted


def test_a_cancelled_turn_waits_for_no_further_answer() -> None:
    talk = running()
    steer(talk)
    talk.outputs += talk.parser.interrupt()
    talk.hear(ended(3, "cancelled"))
    terminal = end(talk)
    assert terminal is not None
    assert terminal.interrupted
    assert end(talk.hear(ended(4))) is terminal


def test_an_input_that_the_agent_refuses_is_reported() -> None:
    talk = running()
    steer(talk)
    talk.hear({"id": 4, "error": {"code": -32603, "message": "busy"}})
    notices = [event.notice for event in talk.events if event.HasField("notice")]
    assert [(notice.code, notice.severity) for notice in notices] == [("acp_input_failed", pb.SEVERITY_WARNING)]
    assert "busy" in notices[0].message
    assert (refused(talk), taken(talk)) == (["word"], [])
    talk.hear(agent_text("Red."), ended(3))
    terminal = end(talk)
    assert terminal is not None
    assert terminal.succeeded


def test_an_error_of_what_the_turn_went_on_for_is_that_of_the_turn() -> None:
    talk = running()
    steer(talk)
    talk.hear(ended(3), agent_text("Bl"), {"id": 4, "error": {"code": -32603, "message": "no more"}})
    assert (refused(talk), taken(talk)) == ([], ["word"])
    terminal = end(talk)
    assert terminal is not None
    assert not terminal.succeeded
