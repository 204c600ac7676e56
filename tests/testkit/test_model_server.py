"""Every scenario as a plain HTTP client sees it, and the server's own manners."""

import asyncio
import hashlib
import itertools
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator

import pytest
from dragoman.testkit.model_server import ModelServer, serving
from dragoman.testkit.model_server.scenarios import SCENARIOS
from dragoman.testkit.model_server.scheduler import Scheduler
from dragoman.testkit.model_server.script import Delivery, Reply, Scenario, Step, Text, say

from .asking import Heard, ask, asked, connected, receive, results, send, user


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


def stop_reason(heard: Heard) -> str:
    return str(next(event for event in heard.events if event["type"] == "message_delta")["delta"]["stop_reason"])


def call(heard: Heard) -> tuple[str, dict[str, object]]:
    """Return name and input of the only tool called."""
    [start] = [
        e for e in heard.events if e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use"
    ]
    return start["content_block"]["name"], json.loads(heard.deltas("partial_json"))


class TestTalk:
    async def test_text_streams_in_the_order_of_the_dialect(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_TEXT please"))
        kinds = [event["type"] for event in heard.events]
        deltas = kinds.count("content_block_delta")
        assert deltas > 1
        assert kinds == [
            "message_start",
            "content_block_start",
            *["content_block_delta"] * deltas,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert heard.text == "Hello from the scripted model."
        assert heard.headers["content-type"] == "text/event-stream"
        assert stop_reason(heard) == "end_turn"

    async def test_answers_to_requests_of_one_moment_have_ids_of_their_own(
        self, server: ModelServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        both, calls_so_far, changed = asyncio.Barrier(2), itertools.count(), Scheduler.changed

        async def changed_together(scheduler: Scheduler) -> None:
            if next(calls_so_far) < 2:
                await both.wait()
            await changed(scheduler)

        monkeypatch.setattr(Scheduler, "changed", changed_together)
        heard = await asyncio.gather(*(ask(server.url, user("MOCK_TEXT"), session=name) for name in "ab"))
        assert len({one.events[0]["message"]["id"] for one in heard}) == 2

    async def test_usage_is_reported_at_start_and_end(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_TEXT"))
        assert heard.events[0]["message"]["usage"]["input_tokens"] == 400
        assert heard.events[-2]["usage"]["output_tokens"] == 42
        assert heard.events[0]["message"]["model"] == "claude-test-1"

    async def test_without_stream_the_message_comes_whole(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_THINKING"), stream=False)
        assert [part["type"] for part in heard.json["content"]] == ["thinking", "text"]
        assert heard.json["stop_reason"] == "end_turn"
        assert heard.json["usage"]["output_tokens"] == 42

    async def test_thinking_carries_a_signature(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_THINKING"))
        assert heard.deltas("thinking") == "The user wants a short answer."
        assert heard.deltas("signature")
        assert heard.text == "A thought-out reply."

    async def test_echo_proves_a_big_prompt_arrived_whole(self, server: ModelServer) -> None:
        prompt = "MOCK_ECHO " + "ä\u2028b" * 75_000
        heard = await ask(server.url, user(prompt))
        size, digest = len(prompt.encode()), hashlib.sha256(prompt.encode()).hexdigest()
        assert f"bytes={size} sha256={digest}" in heard.text
        assert f"tail=[{prompt[-40:]}]" in heard.text

    async def test_recall_answers_from_an_earlier_turn(self, server: ModelServer) -> None:
        answered = {"role": "assistant", "content": "ok"}
        heard = await ask(server.url, user("MOCK_TEXT word=plover"), answered, user("MOCK_RECALL"))
        assert heard.text == "prompts=2 word=plover first=[MOCK_TEXT word=plover]"

    async def test_unicode_is_raw_and_cut_inside_characters(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_UNICODE"))
        assert "\u2028" in heard.text
        assert "\u2028".encode() in heard.body
        assert "\U0001f980" in heard.text

    async def test_a_line_of_200_kb(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_LINE"))
        assert max(len(line) for line in heard.body.split(b"\n")) > 200_000

    async def test_a_prompt_without_a_word_is_answered_with_the_token_it_asks_for(self, server: ModelServer) -> None:
        assert (await ask(server.url, user("Please reply with exactly: nonce-7f3a.9"))).text == "nonce-7f3a.9"
        assert (await ask(server.url, user("Hi there"))).text == "Hello."

    async def test_an_unknown_word_is_answered_with_the_known_ones(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_NOSUCH"))
        assert "No scenario NOSUCH" in heard.text
        assert "429_ONCE" in heard.text


class TestTools:
    async def test_write_names_a_file_below_the_working_directory(self, server: ModelServer) -> None:
        heard = await ask(server.url, user('MOCK_WRITE path=sub/a.txt content="two words"'))
        assert call(heard) == ("Write", {"file_path": "/workspace/sub/a.txt", "content": "two words\n"})
        assert stop_reason(heard) == "tool_use"

    async def test_results_lead_to_the_next_step(self, server: ModelServer) -> None:
        prompt = user("MOCK_WRITE")
        heard = await ask(server.url, prompt, {"role": "assistant", "content": []}, results("File created"))
        assert heard.text == "Done: File created"

    async def test_two_results_of_one_turn_count_as_one_round_in_the_order_of_the_calls(
        self, server: ModelServer
    ) -> None:
        first = await ask(server.url, user("MOCK_PARALLEL"))
        starts = [event for event in first.events if event["type"] == "content_block_start"]
        assert [start["content_block"]["type"] for start in starts] == ["text", "tool_use", "tool_use"]
        assert len({start["content_block"].get("id") for start in starts}) == 3
        heard = await ask(server.url, user("MOCK_PARALLEL"), results("one", "two"))
        assert heard.text == "Two results: one and two"

    async def test_a_loop_never_ends(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_LOOP"), *[results("round")] * 7)
        assert call(heard)[0] == "Bash"

    async def test_the_word_of_a_skill_is_found_in_what_came_after_the_prompt(self, server: ModelServer) -> None:
        body = user("# Demo\nThe secret word is heliotrope.\n")
        heard = await ask(server.url, user("MOCK_SKILL skill=demo"), results("Launching"), body)
        assert heard.text == "The secret word is heliotrope."

    async def test_a_question_reaches_the_tool_whole(self, server: ModelServer) -> None:
        name, arguments = call(await ask(server.url, user("MOCK_ASK")))
        assert name == "AskUserQuestion"
        questions = arguments["questions"]
        assert isinstance(questions, list)
        assert [option["label"] for option in questions[0]["options"]] == ["Red", "Blue"]

    async def test_a_subagent_gets_the_prompt_in_quotes(self, server: ModelServer) -> None:
        name, arguments = call(await ask(server.url, user('MOCK_SUBAGENT task="MOCK_TEXT now"')))
        assert (name, arguments["prompt"]) == ("Agent", "MOCK_TEXT now")

    async def test_an_unknown_agent_gets_the_neutral_name(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_SHELL"), tools=[{"name": "nobodys_own"}])
        assert call(heard) == ("shell", {"command": "echo shell-ran"})

    async def test_a_harness_reminder_is_no_prompt(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_TEXT"), user("<system-reminder>MOCK_401</system-reminder>"))
        assert heard.text == "Hello from the scripted model."

    async def test_a_synthetic_turn_without_a_word_keeps_the_script(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_THINKING"), user("Your response above was cut off. Resume."))
        assert heard.text == "A thought-out reply."


class TestFaults:
    @pytest.mark.parametrize(
        ("word", "status", "kind"),
        [
            ("401", 401, "authentication_error"),
            ("429", 429, "rate_limit_error"),
            ("429_LONG", 429, "rate_limit_error"),
            ("QUOTA", 429, "rate_limit_error"),
            ("529", 529, "overloaded_error"),
            ("500", 500, "api_error"),
            ("400", 400, "invalid_request_error"),
            ("OVERFLOW", 400, "invalid_request_error"),
            ("NO_CREDIT", 400, "invalid_request_error"),
            ("NO_MODEL", 404, "not_found_error"),
        ],
    )
    async def test_error_bodies(self, server: ModelServer, word: str, status: int, kind: str) -> None:
        for _ in range(3):
            heard = await ask(server.url, user(f"MOCK_{word}"))
            assert heard.status == status
            assert heard.json["type"] == "error"
            assert heard.json["error"]["type"] == kind

    async def test_a_rate_limit_says_when_to_come_back(self, server: ModelServer) -> None:
        assert (await ask(server.url, user("MOCK_429"))).headers["retry-after"] == "1"
        quota = await ask(server.url, user("MOCK_QUOTA"))
        assert quota.headers["anthropic-ratelimit-unified-status"] == "rejected"

    @pytest.mark.parametrize(
        ("word", "failures"), [("429_ONCE", 1), ("429_TWICE", 2), ("529_ONCE", 1), ("500_ONCE", 1)]
    )
    async def test_failures_that_pass(self, server: ModelServer, word: str, failures: int) -> None:
        statuses = [(await ask(server.url, user(f"MOCK_{word}"))).status for _ in range(failures + 2)]
        assert statuses == [int(word[:3])] * failures + [200, 200]

    async def test_attempts_are_counted_per_session_and_turn(self, server: ModelServer) -> None:
        prompt = user("MOCK_429_ONCE")
        assert (await ask(server.url, prompt)).status == 429
        assert (await ask(server.url, prompt, session="other")).status == 429
        assert (await ask(server.url, user("earlier"), prompt)).status == 429
        assert (await ask(server.url, prompt)).status == 200

    async def test_a_cut_is_no_proper_end(self, server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
        heard = await ask(server.url, user("MOCK_CUT"))
        assert (heard.status, heard.whole, len(heard.events)) == (200, False, 8)
        whole = await ask(server.url, user("MOCK_CUT"), stream=False)
        assert whole.whole is False
        assert [request.outcome for request in server.requests] == ["cut", "cut"]
        assert not caplog.records, "a scripted cut is no accident"

    async def test_a_cut_that_passes(self, server: ModelServer) -> None:
        assert (await ask(server.url, user("MOCK_CUT_ONCE"))).whole is False
        assert (await ask(server.url, user("MOCK_CUT_ONCE"))).text == "Recovered from the cut."

    async def test_an_early_end_is_proper_http_without_the_last_events(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_CUT_END"))
        assert heard.whole
        assert len(heard.events) == 8
        assert heard.events[-1]["type"] == "content_block_delta"

    async def test_an_error_inside_the_stream_takes_the_place_of_its_end(self, server: ModelServer) -> None:
        heard = await ask(server.url, user("MOCK_STREAM_ERROR"))
        assert heard.status == 200
        assert heard.events[-1]["error"]["type"] == "overloaded_error"
        assert "message_stop" not in [event["type"] for event in heard.events]

    @pytest.mark.parametrize(("word", "reason"), [("REFUSAL", "refusal"), ("MAX_TOKENS", "max_tokens")])
    async def test_stop_reasons(self, server: ModelServer, word: str, reason: str) -> None:
        assert stop_reason(await ask(server.url, user(f"MOCK_{word}"))) == reason


class TestHolds:
    async def test_a_stall_sends_nothing_until_released(self, server: ModelServer) -> None:
        asking = asyncio.create_task(ask(server.url, user("MOCK_STALL")))
        await server.wait_held()
        assert server.requests[0].status == 0
        assert not asking.done()
        server.release()
        assert (await asking).text == "After the stall."

    async def test_a_stall_in_mid_stream_has_sent_the_beginning(self, server: ModelServer) -> None:
        asking = asyncio.create_task(ask(server.url, user("MOCK_STALL_MID")))
        await server.wait_held()
        assert server.requests[0].events == 4
        server.release()
        assert (await asking).text == "Before the stall. After the stall."

    async def test_a_client_that_leaves_is_noticed(self, server: ModelServer) -> None:
        asking = asyncio.create_task(ask(server.url, user("MOCK_STALL")))
        await server.wait_held()
        asking.cancel()
        await server.wait_until(lambda: server.requests[0].outcome == "abandoned")
        assert server.requests[0].status == 0, "it was answered after all"

    async def test_waiting_has_a_limit(self, server: ModelServer) -> None:
        with pytest.raises(TimeoutError):
            await server.wait_held(timeout_s=0.05)

    async def test_closing_breaks_what_is_held(self) -> None:
        async with ModelServer() as server:
            asking = asyncio.create_task(ask(server.url, user("MOCK_STALL_MID")))
            await server.wait_held()
        assert (await asking).whole is False


class TestServer:
    async def test_records_what_was_asked(self, server: ModelServer) -> None:
        await ask(server.url, user("MOCK_WRITE"), results("ok"))
        [request] = server.model_requests
        assert (request.scenario, request.step, request.attempt, request.outcome) == ("WRITE", 1, 0, "complete")
        assert request.headers["x-claude-code-session-id"] == "s1"
        assert isinstance(request.body, dict)
        assert request.body["model"] == "claude-test-1"
        assert request.conversation is not None
        assert request.conversation.tool_results == ("ok",)

    async def test_other_routes(self, server: ModelServer) -> None:
        assert (await send(server.url, "HEAD", "/")).body == b""
        assert (await send(server.url, "GET", "/")).status == 200
        counted = await send(server.url, "POST", "/v1/messages/count_tokens", b"{}" * 40)
        assert counted.json == {"input_tokens": 20}
        missing = await send(server.url, "GET", "/v1/nothing")
        assert (missing.status, missing.json["error"]["type"]) == (404, "not_found_error")
        assert server.model_requests == []

    async def test_a_connection_serves_several_requests(self, server: ModelServer) -> None:
        body = json.dumps(asked([user("MOCK_TEXT")])).encode()
        async with connected(server.url) as (reader, writer):
            for _ in range(3):
                writer.write(
                    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
                )
                assert (await receive(reader)).text == "Hello from the scripted model."

    async def test_a_chunked_request_is_understood(self, server: ModelServer) -> None:
        body = json.dumps(asked([user("MOCK_TEXT")])).encode()
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"
        async with connected(server.url) as (reader, writer):
            writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
            assert (await receive(reader)).text == "Hello from the scripted model."

    async def test_nonsense_on_the_wire_ends_the_connection_alone(self, server: ModelServer) -> None:
        async with connected(server.url) as (reader, writer):
            writer.write(b"what\r\n\r\n")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1)
        assert (await ask(server.url, user("MOCK_TEXT"))).status == 200

    async def test_scenarios_of_ones_own(self) -> None:
        mine = Scenario("MINE", "a test's own", (Step((Reply((Text("mine"),), delivery=Delivery(pace_ms=1)),)),))
        async with ModelServer([mine, Scenario("TEXT", "replaced", (say("replaced"),))]) as server:
            assert (await ask(server.url, user("MOCK_MINE"))).text == "mine"
            assert (await ask(server.url, user("MOCK_TEXT"))).text == "replaced"

    def test_names_are_unique_and_prompts_can_say_them(self) -> None:
        names = [scenario.name for scenario in SCENARIOS]
        assert len(set(names)) == len(names)
        assert all((name.replace("_", "").isalnum() and name.isupper()) or name.isdigit() for name in names)

    async def test_every_scenario_answers_or_holds(self, server: ModelServer) -> None:
        server.release()
        for scenario in SCENARIOS:
            # Not streamed, so that no script takes its time.
            output = (await ask(server.url, user(f"MOCK_{scenario.name}"), stream=False)).body.decode()
            assert "No scenario" not in output, scenario.name
            assert not re.search(r"\{[a-z_]+[:|}]", output), f"{scenario.name} has a placeholder that nothing fills"


def post(url: str, text: str) -> str:
    body = json.dumps(asked([user(text)], stream=False)).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/messages", body)) as answer:
        return str(json.loads(answer.read())["content"][0]["text"])


def test_serving_from_a_thread() -> None:
    with serving() as server:
        assert post(server.url, "MOCK_TEXT") == "Hello from the scripted model."
        server.wait_for_requests(1)
        server.release("stall")
        assert post(server.url, "MOCK_STALL") == "After the stall."
        assert [request.scenario for request in server.requests] == ["TEXT", "STALL"]


def test_serving_as_a_program_until_standard_input_closes() -> None:
    command = [sys.executable, "-m", "dragoman.testkit.model_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        output = json.loads(program.stdout.readline())
        assert output["pid"] == program.pid
        assert post(output["url"], "reply with exactly: abc-1") == "abc-1"
        with urllib.request.urlopen(f"{output['url']}/_testkit/requests") as answer:
            assert [request["outcome"] for request in json.loads(answer.read())] == ["complete"]
        urllib.request.urlopen(urllib.request.Request(f"{output['url']}/_testkit/release", b"")).close()
        assert post(output["url"], "MOCK_STALL") == "After the stall."
        program.communicate(timeout=20)
    assert program.returncode == 0
