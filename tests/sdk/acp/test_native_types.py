"""The names of an agent's own messages, on the events that come from them."""

from dragoman.sdk.acp import AcpOptions, Conversation

from tests.sdk.acp.talking import CWD, READY, Talk, agent_text, update


def names(*frames: dict[str, object], asks: bool = True) -> list[str]:
    talk = Talk(AcpOptions(), Conversation(CWD, "hello", names_frames=asks)).hear(*READY, *frames)
    return [event.native.type for event in talk.events]


def test_answers_and_updates_have_theirs() -> None:
    tool = update("tool_call", toolCallId="t", title="Write")
    found = names(tool, agent_text("Done."), {"id": 3, "result": {"stopReason": "end_turn"}})
    assert found[0] == "session/new/result"
    assert "session/update/tool_call" in found
    assert found[-1] == "session/prompt/result"


def test_they_are_left_out_unless_requested() -> None:
    assert set(names(agent_text("Done."), {"id": 3, "result": {"stopReason": "end_turn"}}, asks=False)) == {""}
