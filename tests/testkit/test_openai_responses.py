"""The OpenAI Responses API as a plain HTTP client sees it, and as Codex asks in both of its modes."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.model_server.apis.openai_responses import read_conversation

from .asking import Heard, send

Item = Mapping[str, Any]
SHELL = {"type": "function", "name": "exec_command", "parameters": {}}
PATCH = {"type": "custom", "name": "apply_patch", "format": {}}
EXEC = {"type": "custom", "name": "exec", "description": "Run JavaScript"}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


def message(role: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def user(text: str) -> Item:
    return message("user", text)


def called(call_id: str) -> Item:
    return {"type": "function_call", "call_id": call_id, "name": "exec_command", "arguments": "{}"}


def result(call_id: str, output: object, kind: str = "function_call_output") -> Item:
    return {"type": kind, "call_id": call_id, "output": output}


CONTEXT = user("<environment_context>\n  <cwd>/workspace</cwd>\n  <shell>bash</shell>\n</environment_context>")
CODE_MODE = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [
        {"type": "namespace", "name": "functions", "tools": [EXEC]},
        {"type": "namespace", "name": "collaboration", "tools": [{"type": "function", "name": "spawn_agent"}]},
    ],
}


def asked(*items: Item, **fields: Any) -> dict[str, Any]:
    """Return a request body as Codex sends it to a model of its direct mode."""
    before = [message("developer", "You are a coding agent."), CONTEXT]
    body = {"model": "m-1", "stream": True, "tools": [SHELL, PATCH, {"type": "web_search"}]}
    return {**body, "input": [*before, *items], "prompt_cache_key": "s1", **fields}


async def ask(server: ModelServer, *items: Item, **fields: Any) -> Heard:
    body = json.dumps(asked(*items, **fields), ensure_ascii=False).encode()
    return await send(server.url, "POST", "/v1/responses", body)


async def ask_in_code_mode(server: ModelServer, *items: Item) -> Heard:
    body = {"model": "m-2", "stream": True, "input": [CODE_MODE, CONTEXT, *items]}
    return await send(server.url, "POST", "/v1/responses", json.dumps(body).encode())


def finished(heard: Heard) -> list[dict[str, Any]]:
    return [event["item"] for event in heard.events if event["type"] == "response.output_item.done"]


def text(heard: Heard) -> str:
    return "".join(event["delta"] for event in heard.events if event["type"] == "response.output_text.delta")


async def test_text_streams_in_the_order_of_the_dialect(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_TEXT please"))
    kinds = [event["type"].removeprefix("response.") for event in heard.events]
    deltas = kinds.count("output_text.delta")
    assert deltas > 1
    assert kinds == [
        *["created", "output_item.added", "content_part.added"],
        *["output_text.delta"] * deltas,
        *["output_text.done", "content_part.done", "output_item.done", "completed"],
    ]
    assert [event["sequence_number"] for event in heard.events] == list(range(len(kinds)))
    assert text(heard) == "Hello from the scripted model."
    assert heard.events[1]["item"] == {**finished(heard)[0], "content": [], "status": "in_progress"}
    assert heard.events[-1]["response"]["output"] == finished(heard)


async def test_usage_counts_what_caches_served_as_input_and_what_was_thought_as_output(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_THINKING"))
    assert heard.events[-1]["response"]["usage"] == {
        "input_tokens": 1200,
        "input_tokens_details": {"cached_tokens": 800},
        "output_tokens": 42,
        "output_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 1242,
    }
    silent = await ask(server, user("MOCK_TEXT"))
    assert silent.events[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


async def test_reasoning_comes_as_a_summary_in_pieces(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_THINKING"))
    pieces = [e["delta"] for e in heard.events if e["type"] == "response.reasoning_summary_text.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == "The user wants a short answer."
    reasoning, message = finished(heard)
    assert reasoning["summary"] == [{"type": "summary_text", "text": "The user wants a short answer."}]
    assert message["content"][0]["text"] == "A thought-out reply."


async def test_without_stream_the_response_comes_whole(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_THINKING"), stream=False)
    assert heard.json["status"] == "completed"
    assert [item["type"] for item in heard.json["output"]] == ["reasoning", "message"]


async def test_a_plain_string_is_a_prompt(server: ModelServer) -> None:
    assert text(await ask(server, input="reply with exactly: abc-1")) == "abc-1"


async def test_a_command_is_a_function_call(server: ModelServer) -> None:
    [call] = finished(await ask(server, user('MOCK_SHELL command="ls -l"')))
    assert (call["type"], call["name"]) == ("function_call", "exec_command")
    assert json.loads(call["arguments"])["cmd"] == "ls -l"


async def test_a_file_is_read_by_a_command(server: ModelServer) -> None:
    [call] = finished(await ask(server, user("MOCK_READ path=a.txt")))
    assert json.loads(call["arguments"])["cmd"] == "cat '/workspace/a.txt'"


async def test_a_file_is_written_by_a_patch_in_plain_text(server: ModelServer) -> None:
    heard = await ask(server, user('MOCK_WRITE path=sub/a.txt content="two words"'))
    _, call = finished(heard)
    assert (call["type"], call["name"]) == ("custom_tool_call", "apply_patch")
    assert call["input"] == "*** Begin Patch\n*** Add File: /workspace/sub/a.txt\n+two words\n*** End Patch"
    pieces = [e["delta"] for e in heard.events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == call["input"]


async def test_in_code_mode_tools_are_functions_of_a_script(server: ModelServer) -> None:
    [call] = finished(await ask_in_code_mode(server, user("MOCK_SHELL")))
    assert (call["type"], call["name"]) == ("custom_tool_call", "exec")
    assert 'tools.exec_command({"cmd": "echo shell-ran"' in call["input"]
    _, patch = finished(await ask_in_code_mode(server, user("MOCK_WRITE path=a.txt content=x")))
    assert 'tools.apply_patch("*** Begin Patch\\n*** Add File: /workspace/a.txt\\n+x\\n' in patch["input"]


async def test_in_code_mode_what_is_offered_directly_is_called_directly(server: ModelServer) -> None:
    [call] = finished(await ask_in_code_mode(server, user("MOCK_SUBAGENT")))
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "collaboration", "spawn_agent")


async def test_results_lead_to_the_next_step(server: ModelServer) -> None:
    prompt = user("MOCK_SHELL")
    assert text(await ask(server, prompt, called("c1"), result("c1", "ran"))) == "Done: ran"
    parts = [{"type": "input_text", "text": "ran too"}]
    script = result("c2", parts, "custom_tool_call_output")
    assert text(await ask(server, prompt, {"type": "custom_tool_call", "call_id": "c2"}, script)) == "Done: ran too"


def test_results_of_one_turn_are_one_round_in_the_order_of_the_calls() -> None:
    turn = [called("call_1_0"), called("call_1_1"), result("call_1_1", "two"), result("call_1_0", "one")]
    seen = read_conversation(asked(user("MOCK_PARALLEL"), *turn, called("call_2_0"), result("call_2_0", "three")))
    assert seen.tool_results == ("one", "two", "three")
    assert seen.rounds == 2


def test_instructions_and_messages_of_the_system_are_one_text() -> None:
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert read_conversation({"instructions": "Be kind.", "input": items}).system == "Be kind.\nBe brief."
    assert read_conversation({"instructions": "Be kind.", "input": "Hello"}).system == "Be kind."


def test_what_the_harness_adds_is_no_prompt() -> None:
    skill = user("<skill>\n<name>demo</name>\nThe secret word is heliotrope.\n</skill>")
    seen = read_conversation(asked(user("MOCK_SKILL"), skill))
    assert (seen.prompt, seen.user_texts) == ("MOCK_SKILL", ("MOCK_SKILL",))
    assert "heliotrope" in seen.later_texts[-1]


def test_tools_are_found_wherever_they_are_offered() -> None:
    assert read_conversation(asked(user("x"))).tools == ("exec_command", "apply_patch", "web_search")
    hidden = read_conversation({"input": [CODE_MODE, user("x")]})
    assert (hidden.tools, hidden.text_tools) == (("exec", "collaboration.spawn_agent"), ("exec",))


@pytest.mark.parametrize(
    ("word", "status", "code"),
    [
        ("401", 401, "invalid_api_key"),
        ("429", 429, "rate_limit_exceeded"),
        ("NO_CREDIT", 429, "insufficient_quota"),
        ("500", 500, None),
        ("529", 503, "server_is_overloaded"),
        ("400", 400, None),
        ("OVERFLOW", 400, "context_length_exceeded"),
        ("NO_MODEL", 404, "model_not_found"),
    ],
)
async def test_errors_have_the_wording_of_the_api(
    server: ModelServer, word: str, status: int, code: str | None
) -> None:
    heard = await ask(server, user(f"MOCK_{word}"))
    assert (heard.status, heard.json["error"]["code"]) == (status, code)


async def test_a_limit_says_when_it_ends(server: ModelServer) -> None:
    short = await ask(server, user("MOCK_429"))
    assert short.headers["retry-after"] == "1"
    assert short.json["error"]["message"].endswith("Please try again in 1s.")
    plan = (await ask(server, user("MOCK_QUOTA"))).json["error"]
    assert (plan["type"], plan["resets_at"]) == ("usage_limit_reached", 4_102_444_800)


async def test_an_error_inside_the_stream_fails_the_response(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_STREAM_ERROR"))
    assert heard.status == 200
    assert text(heard) == "Before the error."
    assert heard.events[-1]["type"] == "response.failed"
    assert heard.events[-1]["response"]["error"]["code"] == "server_is_overloaded"


async def test_an_answer_that_ends_early_says_why(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_MAX_TOKENS"))
    assert heard.events[-1]["type"] == "response.incomplete"
    assert heard.events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    refused = finished(await ask(server, user("MOCK_REFUSAL")))
    assert refused[0]["content"] == [{"type": "refusal", "refusal": "I cannot help with that."}]


async def test_a_stall_in_mid_stream_has_sent_the_first_words(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_CUT"))
    assert (heard.whole, len(heard.events)) == (False, 8)
    server.release()
    whole = await ask(server, user("MOCK_STALL_MID"))
    assert whole.events[3]["delta"] == "Before the s", "the fourth event is where this script stalls"


async def test_models_are_listed(server: ModelServer) -> None:
    heard = await send(server.url, "GET", "/v1/models?client_version=0.169.0")
    assert (heard.status, heard.json["object"]) == (200, "list")
