"""The OpenAI chat completions API as a plain HTTP client sees it."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.model_server.apis.openai_chat import read_conversation

from .asking import Heard, send

Message = Mapping[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def called(*ids: str) -> Message:
    calls = [{"id": one, "type": "function", "function": {"name": "bash", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def asked(messages: Sequence[Message], **fields: Any) -> dict[str, Any]:
    """Return a request body as programs that use the AI SDK send it."""
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("Bash", "Write", "Read")]
    system = {"role": "system", "content": "You help.\n  Working directory: /workspace\n"}
    body = {"model": "m-1", "stream": True, "tools": tools, "messages": [system, *messages]}
    return {**body, "stream_options": {"include_usage": True}, **fields}


async def ask(server: ModelServer, *messages: Message, **fields: Any) -> Heard:
    body = json.dumps(asked(messages, **fields), ensure_ascii=False).encode()
    return await send(server.url, "POST", "/v1/chat/completions", body)


def chunks(heard: Heard) -> list[dict[str, Any]]:
    """Return the events of a stream that are no ``[DONE]``."""
    lines = [part.removeprefix(b"data: ") for part in heard.body.split(b"\n\n") if part]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def deltas(heard: Heard) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks(heard) for choice in chunk.get("choices", ())]


def text(heard: Heard, kind: str = "content") -> str:
    return "".join(delta.get(kind) or "" for delta in deltas(heard))


def finish_reason(heard: Heard) -> str | None:
    [reason] = [c["finish_reason"] for chunk in chunks(heard) for c in chunk["choices"] if c["finish_reason"]]
    return str(reason)


def calls(heard: Heard) -> dict[int, tuple[str, str, object]]:
    """Put the streamed tool calls together: id, name and input, by index."""
    put: dict[int, tuple[str, str, str]] = {}
    for piece in (call for delta in deltas(heard) for call in delta.get("tool_calls", ())):
        call_id, name, arguments = put.get(piece["index"], ("", "", ""))
        function = piece["function"]
        put[piece["index"]] = (
            call_id or piece["id"],
            name or function["name"],
            arguments + function["arguments"],
        )
    return {index: (call_id, name, json.loads(arguments)) for index, (call_id, name, arguments) in put.items()}


class TestTalk:
    async def test_text_streams_in_the_order_of_the_dialect(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_TEXT please"))
        assert heard.headers["content-type"] == "text/event-stream"
        assert heard.body.endswith(b"data: [DONE]\n\n")
        assert deltas(heard)[0] == {"role": "assistant", "content": ""}
        assert len(deltas(heard)) > 3, "several deltas"
        assert text(heard) == "Hello from the scripted model."
        assert finish_reason(heard) == "stop"
        assert {chunk["object"] for chunk in chunks(heard)} == {"chat.completion.chunk"}
        assert {chunk["model"] for chunk in chunks(heard)} == {"m-1"}

    async def test_usage_comes_last_and_only_if_asked_for(self, server: ModelServer) -> None:
        last = chunks(await ask(server, user("MOCK_THINKING")))[-1]
        assert last["choices"] == []
        assert last["usage"] == {
            "prompt_tokens": 1200,
            "completion_tokens": 42,
            "total_tokens": 1242,
            "prompt_tokens_details": {"cached_tokens": 800, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 7},
        }
        silent = await ask(server, user("MOCK_TEXT"), stream_options=None)
        assert "usage" not in chunks(silent)[-1]

    async def test_without_stream_the_completion_comes_whole(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_THINKING"), stream=False)
        [choice] = heard.json["choices"]
        assert choice["message"]["content"] == "A thought-out reply."
        assert choice["message"]["reasoning_content"] == "The user wants a short answer."
        assert choice["finish_reason"] == "stop"
        assert heard.json["usage"]["completion_tokens"] == 42
        assert "tool_calls" not in choice["message"]

    async def test_thinking_has_deltas_of_its_own(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_THINKING"))
        assert text(heard, "reasoning_content") == "The user wants a short answer."
        assert text(heard) == "A thought-out reply."

    async def test_unicode_is_raw_and_cut_inside_characters(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_UNICODE"))
        assert "\u2028".encode() in heard.body
        assert "\U0001f980" in text(heard)

    async def test_recall_answers_from_an_earlier_turn(self, server: ModelServer) -> None:
        answered = {"role": "assistant", "content": "ok"}
        heard = await ask(server, user("MOCK_TEXT word=plover"), answered, user("MOCK_RECALL"))
        assert text(heard) == "prompts=2 word=plover first=[MOCK_TEXT word=plover]"


class TestTools:
    async def test_a_call_is_streamed_as_its_name_and_pieces_of_its_input(self, server: ModelServer) -> None:
        heard = await ask(server, user('MOCK_WRITE path=sub/a.txt content="two words"'))
        [(call_id, name, arguments)] = calls(heard).values()
        assert (name, arguments) == ("Write", {"file_path": "/workspace/sub/a.txt", "content": "two words\n"})
        assert call_id
        assert sum("tool_calls" in delta for delta in deltas(heard)) > 2, "pieces"
        assert text(heard) == "I will write that file."
        assert finish_reason(heard) == "tool_calls"

    async def test_a_call_comes_whole_without_stream(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_SHELL"), stream=False)
        [choice] = heard.json["choices"]
        [call] = choice["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "Bash")
        assert json.loads(call["function"]["arguments"])["command"] == "echo shell-ran"
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "tool_calls"

    async def test_parallel_calls_have_an_index_and_an_id_each(self, server: ModelServer) -> None:
        tool_calls = calls(await ask(server, user("MOCK_PARALLEL")))
        assert sorted(tool_calls) == [0, 1]
        assert len({call_id for call_id, _, _ in tool_calls.values()}) == 2

    async def test_results_of_one_turn_are_one_round_in_the_order_of_the_calls(self, server: ModelServer) -> None:
        tool_calls = calls(await ask(server, user("MOCK_PARALLEL")))
        first, second = tool_calls[0][0], tool_calls[1][0]
        heard = await ask(
            server, user("MOCK_PARALLEL"), called(first, second), result(second, "two"), result(first, "one")
        )
        assert text(heard) == "Two results: one and two"
        [_, request] = server.model_requests
        assert (request.step, request.conversation and request.conversation.rounds) == (1, 1)

    async def test_results_of_two_turns_count_as_two_rounds(self, server: ModelServer) -> None:
        messages = [user("MOCK_LOOP"), called("a"), result("a", "1"), called("b"), result("b", "2")]
        assert read_conversation(asked(messages)).rounds == 2


class TestFaults:
    @pytest.mark.parametrize(
        ("word", "status", "kind", "code"),
        [
            ("401", 401, "invalid_request_error", "invalid_api_key"),
            ("429", 429, "requests", "rate_limit_exceeded"),
            ("NO_CREDIT", 429, "insufficient_quota", "insufficient_quota"),
            ("500", 500, "server_error", None),
            ("400", 400, "invalid_request_error", None),
            ("OVERFLOW", 400, "invalid_request_error", "context_length_exceeded"),
            ("NO_MODEL", 404, "invalid_request_error", "model_not_found"),
        ],
    )
    async def test_error_bodies(
        self, server: ModelServer, word: str, status: int, kind: str, code: str | None
    ) -> None:
        heard = await ask(server, user(f"MOCK_{word}"))
        error = heard.json["error"]
        assert (heard.status, error["type"], error["code"]) == (status, kind, code)
        assert error["message"]
        assert "{" not in error["message"], "a placeholder that nothing filled"

    async def test_a_rate_limit_says_when_to_come_back(self, server: ModelServer) -> None:
        assert (await ask(server, user("MOCK_429"))).headers["retry-after"] == "1"

    async def test_overload_and_quota_have_the_statuses_of_the_vendor(self, server: ModelServer) -> None:
        assert (await ask(server, user("MOCK_529"))).status == 503
        assert (await ask(server, user("MOCK_QUOTA"))).status == 429

    async def test_failures_that_pass(self, server: ModelServer) -> None:
        assert [(await ask(server, user("MOCK_429_ONCE"))).status for _ in range(2)] == [429, 200]

    async def test_an_error_inside_the_stream_takes_the_place_of_its_end(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_STREAM_ERROR"))
        assert heard.status == 200
        assert chunks(heard)[-1]["error"]["message"]
        assert b"[DONE]" not in heard.body
        assert text(heard) == "Before the error."

    async def test_a_cut_is_no_proper_end(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_CUT"))
        assert (heard.status, heard.whole, len(chunks(heard))) == (200, False, 8)

    async def test_an_early_end_is_proper_http_without_the_last_events(self, server: ModelServer) -> None:
        heard = await ask(server, user("MOCK_CUT_END"))
        assert heard.whole
        assert b"[DONE]" not in heard.body

    @pytest.mark.parametrize(("word", "reason"), [("REFUSAL", "content_filter"), ("MAX_TOKENS", "length")])
    async def test_finish_reasons(self, server: ModelServer, word: str, reason: str) -> None:
        assert finish_reason(await ask(server, user(f"MOCK_{word}"))) == reason


class TestServer:
    async def test_models_are_listed(self, server: ModelServer) -> None:
        heard = await send(server.url, "GET", "/v1/models")
        assert [model["id"] for model in heard.json["data"]] == ["scripted-1", "scripted-2"]
        assert server.model_requests == []

    async def test_any_base_path_will_do(self, server: ModelServer) -> None:
        body = json.dumps(asked([user("MOCK_TEXT")])).encode()
        heard = await send(server.url, "POST", "/api/paas/v4/chat/completions", body)
        assert text(heard) == "Hello from the scripted model."


@pytest.mark.parametrize(
    "body", [{}, {"messages": None}, {"messages": [{"role": "user"}]}, {"messages": [{}], "stream_options": 1}]
)
def test_odd_bodies_read_as_empty(body: dict[str, object]) -> None:
    talk = read_conversation(body)
    assert (talk.prompt, talk.rounds, talk.word, talk.stream_usage) == ("", 0, "", False)


def test_content_in_parts_and_developer_messages() -> None:
    parts = [{"type": "text", "text": "MOCK_TEXT"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    developer = {"role": "developer", "content": [{"type": "text", "text": "working directory: /elsewhere"}]}
    talk = read_conversation({"messages": [developer, {"role": "user", "content": parts}]})
    assert (talk.prompt, talk.system) == ("MOCK_TEXT", "working directory: /elsewhere")
