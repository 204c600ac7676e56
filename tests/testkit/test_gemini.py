"""The Gemini API as a plain HTTP client sees it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.model_server.apis.gemini import simplest
from dragoman.testkit.model_server.scenarios import SCENARIOS
from dragoman.testkit.profiles.agent_profile import NativeTool

from .asking import Heard, send

TOOLS: Mapping[str, NativeTool] = {
    "shell": NativeTool("run_shell_command", {"command": "command"}),
    "write": NativeTool("write_file", {"file_path": "path", "content": "content"}),
}
CONTEXT = (
    "<session_context>\nThis is a CLI. MOCK_401\n- **Workspace Directories:**\n  - /workspace\n</session_context>"
)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(tools=TOOLS) as running:
        yield running


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": CONTEXT}, {"text": text}]}


def called(*names: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in names]}


def results(*texts: str) -> dict[str, Any]:
    """Return a turn with results of as many tools, in reverse order of their calls."""
    parts = [
        {"functionResponse": {"id": f"tool__call_1_{n}", "name": "tool", "response": {"output": text}}}
        for n, text in enumerate(texts)
    ]
    return {"role": "user", "parts": parts[::-1]}


def asked(*contents: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    offered = [{"functionDeclarations": [{"name": "read_file"}, {"name": "run_shell_command"}]}]
    system = {"parts": [{"text": "You help."}]}
    return {"contents": list(contents), "tools": offered, "systemInstruction": system, **fields}


async def ask(server: ModelServer, *contents: Mapping[str, Any], method: str = "stream", **fields: Any) -> Heard:
    how = "streamGenerateContent?alt=sse" if method == "stream" else method
    body = json.dumps(asked(*contents, **fields), ensure_ascii=False).encode()
    return await send(server.url, "POST", f"/v1beta/models/gemini-test:{how}", body, {"x-goog-api-key": "k"})


def parts(heard: Heard) -> list[dict[str, Any]]:
    answers = [event for event in heard.events if "candidates" in event]
    return [part for answer in answers for part in answer["candidates"][0]["content"]["parts"]]


def text(heard: Heard) -> str:
    return "".join(part.get("text", "") for part in parts(heard) if not part.get("thought"))


def last(heard: Heard) -> dict[str, Any]:
    return heard.events[-1]


async def test_text_comes_in_pieces_and_ends_with_a_reason(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_TEXT"))
    assert text(heard) == "Hello from the scripted model."
    assert len(heard.events) > 2
    assert last(heard)["candidates"][0]["finishReason"] == "STOP"
    assert all("finishReason" not in event["candidates"][0] for event in heard.events[:-1])
    assert {event["modelVersion"] for event in heard.events} == {"gemini-test"}


async def test_usage_counts_what_a_cache_served_within_the_prompt(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_TEXT"))
    assert last(heard)["usageMetadata"] == {
        "promptTokenCount": 1200,
        "cachedContentTokenCount": 800,
        "candidatesTokenCount": 42,
        "totalTokenCount": 1242,
    }
    assert "candidatesTokenCount" not in heard.events[0]["usageMetadata"]


async def test_thoughts_are_marked_and_counted(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_THINKING"))
    thought = "".join(part["text"] for part in parts(heard) if part.get("thought"))
    assert thought == "The user wants a short answer."
    assert text(heard) == "A thought-out reply."
    usage = last(heard)["usageMetadata"]
    assert usage["thoughtsTokenCount"] == len(thought) // 4
    assert usage["thoughtsTokenCount"] + usage["candidatesTokenCount"] == 42


async def test_without_stream_the_answer_comes_whole(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_THINKING"), method="generateContent")
    (candidate,) = heard.json["candidates"]
    assert [part.get("thought", False) for part in candidate["content"]["parts"]] == [True, False]
    assert candidate["finishReason"] == "STOP"


async def test_tools_are_called_in_the_agents_words_below_its_working_directory(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_WRITE path=a.txt"))
    (call,) = [part["functionCall"] for part in parts(heard) if "functionCall" in part]
    assert call["name"] == "write_file"
    assert call["args"] == {"file_path": "/workspace/a.txt", "content": "hello from the scripted model\n"}


async def test_results_of_one_turn_are_one_round_in_the_order_of_their_calls(server: ModelServer) -> None:
    first = await ask(server, user("MOCK_PARALLEL"))
    ids = [part["functionCall"]["id"] for part in parts(first) if "functionCall" in part]
    assert len(set(ids)) == 2
    heard = await ask(server, user("MOCK_PARALLEL"), called("run_shell_command"), results("one", "two"))
    assert text(heard) == "Two results: one and two"


async def test_an_error_of_a_tool_is_a_result_too(server: ModelServer) -> None:
    failed = {"functionResponse": {"name": "read_file", "response": {"error": "no such file"}}}
    heard = await ask(server, user("MOCK_TOOL_FAIL"), called("read_file"), {"role": "user", "parts": [failed]})
    assert text(heard) == "That failed: no such file"


async def test_what_the_agent_adds_steers_nothing(server: ModelServer) -> None:
    nudge = {"role": "user", "parts": [{"text": "\n[System: You returned an empty response. MOCK_401]"}]}
    assert text(await ask(server, user("MOCK_TEXT"), nudge)) == "Hello from the scripted model."


async def test_an_earlier_turn_is_recalled(server: ModelServer) -> None:
    reply = {"role": "model", "parts": [{"text": "ok"}]}
    heard = await ask(server, user("MOCK_TEXT word=plover"), reply, user("MOCK_RECALL"))
    assert text(heard) == "prompts=2 word=plover first=[MOCK_TEXT word=plover]"


@pytest.mark.parametrize(
    ("word", "status", "name"),
    [
        ("401", 401, "UNAUTHENTICATED"),
        ("429", 429, "RESOURCE_EXHAUSTED"),
        ("QUOTA", 429, "RESOURCE_EXHAUSTED"),
        ("NO_CREDIT", 429, "RESOURCE_EXHAUSTED"),
        ("529", 503, "UNAVAILABLE"),
        ("500", 500, "INTERNAL"),
        ("400", 400, "INVALID_ARGUMENT"),
        ("OVERFLOW", 400, "INVALID_ARGUMENT"),
        ("NO_MODEL", 404, "NOT_FOUND"),
    ],
)
async def test_error_bodies(server: ModelServer, word: str, status: int, name: str) -> None:
    heard = await ask(server, user(f"MOCK_{word}"))
    assert (heard.status, heard.json["error"]["code"], heard.json["error"]["status"]) == (status, status, name)


async def test_limits_say_which_and_for_how_long(server: ModelServer) -> None:
    details = (await ask(server, user("MOCK_QUOTA"))).json["error"]["details"]
    assert [detail["@type"].rpartition(".")[2] for detail in details] == ["QuotaFailure", "RetryInfo"]
    assert "PerDay" in details[0]["violations"][0]["quotaId"]
    assert details[1]["retryDelay"] == "3600s"
    passing = (await ask(server, user("MOCK_429"))).json["error"]
    assert "PerMinute" in passing["details"][0]["violations"][0]["quotaId"]
    assert passing["message"].endswith("Please retry in 1s.")
    assert "gemini-test" in passing["message"]


@pytest.mark.parametrize(("word", "reason"), [("REFUSAL", "SAFETY"), ("MAX_TOKENS", "MAX_TOKENS")])
async def test_finish_reasons(server: ModelServer, word: str, reason: str) -> None:
    assert last(await ask(server, user(f"MOCK_{word}")))["candidates"][0]["finishReason"] == reason


async def test_an_error_inside_the_stream_takes_the_place_of_its_end(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_STREAM_ERROR"))
    assert heard.status == 200
    assert text(heard) == "Before the error."
    assert last(heard)["error"]["status"] == "UNAVAILABLE"


async def test_a_cut_has_no_reason_to_finish(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_CUT"))
    assert not heard.whole
    assert "finishReason" not in heard.body.decode()


async def test_a_stall_has_sent_the_beginning(server: ModelServer) -> None:
    asking = asyncio.create_task(ask(server, user("MOCK_STALL_MID")))
    await server.wait_held()
    assert server.requests[0].events == 4
    server.release()
    assert text(await asking) == "Before the stall. After the stall."


# What the agent asks besides.


async def test_tokens_are_counted(server: ModelServer) -> None:
    assert (await ask(server, user("MOCK_401"), method="countTokens")).json["totalTokens"] > 10
    assert server.model_requests == []


async def test_a_question_for_json_gets_json_and_no_script(server: ModelServer) -> None:
    schema = {
        "type": "object",
        "properties": {
            "reasoning": {"type": "string"},
            "next_speaker": {"type": "string", "enum": ["user", "model"]},
            "confidence": {"type": "number"},
            "left_out": {"type": "string"},
        },
        "required": ["reasoning", "next_speaker", "confidence"],
    }
    settings = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    heard = await ask(server, user("MOCK_401"), method="generateContent", generationConfig=settings)
    reply = json.loads(heard.json["candidates"][0]["content"]["parts"][0]["text"])
    assert reply == {"reasoning": "scripted", "next_speaker": "user", "confidence": 0}
    assert server.model_requests == []


async def test_a_summary_is_no_turn_of_a_script(server: ModelServer) -> None:
    heard = await ask(server, user("Sum up: MOCK_401"), method="generateContent", tools=[])
    assert heard.json["candidates"][0]["content"]["parts"] == [{"text": "A scripted summary."}]
    assert server.model_requests == []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "STRING"}, "scripted"),
        ({"type": "integer", "minimum": 1}, 1),
        ({"type": "boolean"}, False),
        ({"type": "array", "items": {}}, []),
        ({"type": "object", "required": ["a"]}, {"a": "scripted"}),
        (None, "scripted"),
    ],
)
def test_the_simplest_value(schema: object, value: object) -> None:
    assert simplest(schema) == value


async def test_other_paths_and_bodies_are_not_its_own(server: ModelServer) -> None:
    assert (await send(server.url, "GET", "/v1beta/models/gemini-test:generateContent")).status == 404
    assert (await send(server.url, "POST", "/v1beta/models/gemini-test:generateContent", b"[]")).status == 404
    assert (await send(server.url, "POST", "/v1beta/models/gemini-test:embedContent", b"{}")).status == 404


async def test_every_scenario_answers_or_holds(server: ModelServer) -> None:
    server.release()
    for scenario in SCENARIOS:
        reply = (await ask(server, user(f"MOCK_{scenario.name}"), method="generateContent")).body.decode()
        assert "No scenario" not in reply, scenario.name
    assert server.requests[0].headers["x-goog-api-key"] == "k"


async def test_separators_of_lines_are_escaped_as_the_vendor_does(server: ModelServer) -> None:
    heard = await ask(server, user("MOCK_UNICODE"))
    assert "\u2028" in text(heard)
    assert "\u2028".encode() not in heard.body
    assert "\U0001f980".encode() in heard.body
