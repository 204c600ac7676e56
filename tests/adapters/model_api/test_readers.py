"""What the vendors' streams say: golden turns, and whatever else may come."""

from collections.abc import Iterable
from typing import Any

import pytest
from dragoman.adapters.model_api import anthropic_messages, openai_chat
from dragoman.adapters.model_api.reply import Message, Reader, Reply
from dragoman.adapters.model_api.tools import offered
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

ANTHROPIC: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {
            "model": "claude-x",
            "usage": {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 7},
        },
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "read."}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"file_'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": 'path":"a"}'}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


OPENAI: list[dict[str, Any]] = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Hm."}),
    chunk({"content": "I "}),
    chunk({"content": "read."}),
    chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "Read", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"file_'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": 'path":"a"}'}}]}),
    chunk({}, "tool_calls"),
    {
        "model": "gpt-x",
        "choices": [],
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 7},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    },
]


def read(reader: Reader, frames: Iterable[dict[str, Any]]) -> list[pb.AgentEvent]:
    return [event for frame in frames for event in reader.take(frame)]


def anthropic(reply: Reply) -> Reader:
    return anthropic_messages.AnthropicReader(reply)


def openai(reply: Reply) -> Reader:
    return openai_chat.OpenAIReader(reply)


@pytest.mark.parametrize(("make", "frames"), [(anthropic, ANTHROPIC), (openai, OPENAI)])
def test_a_turn(make: Any, frames: list[dict[str, Any]]) -> None:
    reply = Reply("m1")
    events = read(make(reply), frames)
    assert "".join(event.text.delta for event in events) == reply.text == "I read."
    assert "".join(event.thinking.delta for event in events) == "Hm."
    (call,) = reply.calls
    assert (call.name, call.input) == ("Read", {"file_path": "a"})
    assert [event.tool_call.id for event in events if event.HasField("tool_call")] == [call.id]
    assert (reply.stop, reply.model) == ("tools", frames[1].get("model", "claude-x"))
    usage = reply.usage()
    assert usage is not None
    assert (usage.tokens.input, usage.tokens.output, usage.tokens.cache_read) == (5, 9, 7)
    assert not usage.tokens.HasField("cache_write"), "absent is not zero"
    closed = [event for event in events if event.HasField("text") and event.text.WhichOneof("content") is None]
    assert len(closed) == 1


def test_signed_thinking_goes_back_to_the_model_and_other_thinking_does_not() -> None:
    reply = Reply("m1")
    hidden = {"type": "redacted_thinking", "data": "opaque"}
    read(anthropic(reply), [*ANTHROPIC[:-1], {"type": "content_block_start", "index": 3, "content_block": hidden}])
    read_file = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a"}}
    signed = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
    assert reply.message() == {
        "role": "assistant",
        "content": [signed, {"type": "text", "text": "I read."}, read_file, hidden],
    }
    reply = Reply("m1")
    read(openai(reply), OPENAI)
    message = reply.message()
    assert message is not None
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]  # type: ignore[index, union-attr, call-overload] # as made above


@pytest.mark.parametrize(("make", "frames"), [(anthropic, ANTHROPIC), (openai, OPENAI)])
def test_a_stream_without_its_end_is_not_complete(make: Any, frames: list[dict[str, Any]]) -> None:
    last = max(
        number for number, frame in enumerate(frames) if frame.get("type") == "message_stop" or "choices" in frame
    )
    end = last if make is anthropic else last - 1
    for stop in range(end):
        reply = Reply("m1")
        read(make(reply), frames[:stop])
        assert reply.stop == ""


@pytest.mark.parametrize(("make", "frames"), [(anthropic, ANTHROPIC), (openai, OPENAI)])
def test_what_broke_off_is_taken_back(make: Any, frames: list[dict[str, Any]]) -> None:
    reply = Reply("m1")
    emitted = read(make(reply), frames[:-3])
    shown: dict[str, str] = {}
    for event in [*emitted, *reply.retract()]:
        if event.HasField("text"):
            before = "" if event.text.WhichOneof("content") == "whole" else shown.get(event.text.item_id, "")
            shown[event.text.item_id] = before + event.text.whole + event.text.delta
    assert set(shown.values()) == {""}
    assert list(reply.retract())[-1].tool_call.status == pb.TOOL_STATUS_CANCELLED


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "index", "delta", "choices", "content_block", "usage", "tool_calls", "function", "id"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
KINDS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["type", "index", "delta", "choices", "message", "usage"]), JSON)))
def test_nothing_that_comes_raises(frames: list[dict[str, Any]]) -> None:
    for make in (anthropic, openai):
        reply = Reply("m1")
        read(make(reply), [{**frame, "type": KINDS[index % len(KINDS)]} for index, frame in enumerate(frames)])
        reply.message()
        reply.usage()
        list(reply.retract())
        assert reply.calls is not None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_mangled_stream_does_not_raise(data: st.DataObject) -> None:
    make, frames = data.draw(st.sampled_from([(anthropic, ANTHROPIC), (openai, OPENAI)]))
    order = data.draw(st.lists(st.sampled_from(range(len(frames))), max_size=20))
    reply = Reply("m1")
    read(make(reply), [frames[index] for index in order])
    reply.message()


def test_ids_that_were_used_before_get_new_ones() -> None:
    reply = Reply("m2", taken=["call_1"])
    read(openai(reply), OPENAI)
    (call,) = reply.calls
    assert call.id not in {"", "call_1"}


def test_input_that_is_no_object_is_distinguished_from_none() -> None:
    for arguments, expected in (("[1]", None), ('{"a":', None), ("", {}), ("{}", {})):
        reply = Reply("m1")
        delta = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "Read", "arguments": arguments}}]}
        read(openai(reply), [chunk(delta)])
        assert reply.calls[0].input == expected


CONVERSATION: list[Message] = [
    {"role": "user", "content": [{"type": "text", "text": "Read a."}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
            {"type": "text", "text": "I read."},
            {"type": "tool_use", "id": "c1", "name": "Read", "input": {"file_path": "a"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "inside", "is_error": True}],
    },
    {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
]


def test_what_anthropic_is_asked() -> None:
    asked = anthropic_messages.arguments("m", "Be brief.", CONVERSATION, offered(whole_files_only=False), {})
    assert asked["max_tokens"] == anthropic_messages.DEFAULT_MAX_TOKENS
    assert asked["messages"][:3] == CONVERSATION[:3]
    assert asked["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" not in str(CONVERSATION), "the conversation itself stays as it is"
    assert asked["system"][0]["text"] == "Be brief."
    assert not {"thinking", "output_config"} & set(asked)


def test_what_openai_is_asked() -> None:
    asked = openai_chat.arguments("m", "Be brief.", CONVERSATION, offered(whole_files_only=True), {"maxTokens": 7})
    call = {"id": "c1", "type": "function", "function": {"name": "Read", "arguments": '{"file_path":"a"}'}}
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read a."},
        {
            "role": "assistant",
            "content": "I read.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "inside"},
        {"role": "user", "content": "Go on."},
    ]
    assert asked["max_completion_tokens"] == 7
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["Read", "Write"]
