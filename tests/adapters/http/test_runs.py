"""Whole runs against a real server: every way to answer, and what a service may do wrong."""

import asyncio
import json
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dragoman.testkit.model_server.http1 import HttpConnection, HttpRequest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2

from tests.adapters.http.service import HEADER_SECRET, TOKEN, Services, lines, of, service, sse

FULL = {
    "text": "All done.",
    "sessionId": "s-1",
    "model": "m-1",
    "output": {"files": 2},
    "usage": {"inputTokens": 5, "outputTokens": 0, "costUsd": 0.25},
}


def outcome(events: list[pb.AgentEvent]) -> tuple[int, int]:
    return events[-1].result.outcome, events[-1].result.failure.kind


# At once.


async def test_an_answer_at_once(services: Services) -> None:
    services.service.answers("/run", FULL)
    events = await services.run()
    result = events[-1].result
    assert result.outcome == pb.OUTCOME_SUCCEEDED
    assert (result.summary, result.model) == ("All done.", "m-1")
    assert json.loads(result.structured_output_json) == {"files": 2}
    assert json.loads(result.raw_json) == FULL
    assert (result.usage.tokens.input, result.usage.tokens.output) == (5, 0)
    assert not result.usage.tokens.HasField("cache_read"), "absent is not zero"
    assert (result.usage.cost.amount, result.usage.cost.currency) == ("0.25", "USD")
    assert [text.whole for text in of(events, "text")] == ["All done."]
    assert of(events, "session")[0].native_id == result.session.handle.native_id == "s-1"
    assert result.tree_confirmed_dead
    (request,) = services.service.requests
    assert request.method == "POST"
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert services.service.bodies == [{"prompt": "Do it.", "runId": events[0].run_id}]


async def test_the_template_and_the_paths(services: Services) -> None:
    services.service.answers("/run", {"choices": [{"message": "Hi."}], "usage": {"in": 3}})
    events = await services.run(
        body={
            "messages": [{"role": "user", "content": "{{prompt}}"}],
            "n": 1,
            "who": "{{agent.id}} in {{context.taskId}}",
        },
        headers={"X-Key": "{{env.SERVICE_KEY}}", "X-Run": "{{runId}}"},
        paths={"text": "$.choices[0].message", "inputTokens": "$.usage['in']"},
        method="PUT",
    )
    assert services.service.bodies[0] == {
        "messages": [{"role": "user", "content": "Do it."}],
        "n": 1,
        "who": " in ",
    }
    (request,) = services.service.requests
    assert (request.method, request.headers["x-key"]) == ("PUT", HEADER_SECRET)
    assert request.headers["x-run"] == events[0].run_id
    assert events[-1].result.summary == "Hi."
    assert events[-1].result.usage.tokens.input == 3


async def test_a_token_from_a_variable(services: Services) -> None:
    services.service.answers("/run", {"text": f"You sent {HEADER_SECRET}."})
    events = await services.run(bearerTokenVariable="SERVICE_KEY")
    assert services.service.requests[0].headers["authorization"] == f"Bearer {HEADER_SECRET}"
    assert events[-1].result.summary == "You sent [redacted]."


async def test_a_session_is_sent_back(services: Services) -> None:
    services.service.answers("/run", FULL)
    first = await services.run()
    request = services.request()
    request.session.handle.CopyFrom(first[-1].result.session.handle)
    second = await services.follow(request)
    assert services.service.bodies[1]["sessionId"] == "s-1"
    assert of(second, "started")[0].session_disposition == pb.SESSION_DISPOSITION_RESUME


async def test_an_unknown_session_is_begun_anew(services: Services) -> None:
    async def handle(request: HttpRequest, responder: HttpConnection) -> None:
        body: Any = request.json()
        if "sessionId" in body:
            await responder.send_json(404, {"error": "session not found"}, {})
        else:
            await responder.send_json(200, {"text": "Anew.", "sessionId": "s-2"}, {})

    services.service.routes["/run"] = handle
    request = services.request()
    request.session.handle.native_id = "s-1"
    events = await services.follow(request)
    assert len(of(events, "started")) == 2
    assert of(events, "attempt_ended")[0].failure.kind == pb.FAILURE_KIND_SESSION_LOST
    assert of(events, "attempt_ended")[0].failure.code == "session_unknown"
    assert events[-1].result.session.handle.native_id == "s-2"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": "who are you"}, pb.FAILURE_KIND_AUTH_REQUIRED),
        (403, {}, pb.FAILURE_KIND_AUTH_REQUIRED),
        (402, {}, pb.FAILURE_KIND_QUOTA_EXCEEDED),
        (404, {"message": "no such agent"}, pb.FAILURE_KIND_INVALID_CONFIG),
        (429, {}, pb.FAILURE_KIND_RATE_LIMITED),
        (500, {"error": {"message": "oops"}}, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
        (503, {}, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
    ],
)
async def test_statuses(services: Services, status: int, body: Any, kind: int) -> None:
    services.service.answers("/run", body, status=status, retry_after="7")
    events = await services.run()
    failure = events[-1].result.failure
    assert outcome(events) == (pb.OUTCOME_FAILED, kind)
    assert (failure.code, failure.http_status) == (f"http_{status}", status)
    assert failure.errors
    assert len(services.service.requests) == 1, "a POST may have worked; it is not repeated"
    if failure.HasField("retry_not_before"):
        wait = failure.retry_not_before.ToDatetime(UTC) - datetime.now(UTC)
        assert 0 < wait.total_seconds() <= 7
    else:
        assert status not in {429, 503}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"ok": False}, pb.FAILURE_KIND_PROCESS_CRASHED),
        ({"error": "rate limit exceeded"}, pb.FAILURE_KIND_RATE_LIMITED),
        ({"status": "failed"}, pb.FAILURE_KIND_PROCESS_CRASHED),
        ({"status": "running"}, pb.FAILURE_KIND_UNPARSEABLE_OUTPUT),
        ([1, 2], pb.FAILURE_KIND_UNPARSEABLE_OUTPUT),
    ],
)
async def test_answers_that_are_no_success(services: Services, answer: Any, kind: int) -> None:
    services.service.answers("/run", answer)
    events = await services.run()
    assert outcome(events) == (pb.OUTCOME_FAILED, kind)
    is_unread = kind == pb.FAILURE_KIND_UNPARSEABLE_OUTPUT
    assert events[-1].result.failure.code == ("answer_unreadable" if is_unread else "reported")


async def test_plain_text_is_an_answer_too(services: Services) -> None:
    async def handle(_: HttpRequest, responder: HttpConnection) -> None:
        await responder.send(200, "Grüße\u2028".encode(), {"content-type": "text/plain; charset=utf-8"})

    services.service.routes["/run"] = handle
    assert (await services.run())[-1].result.summary == "Grüße\u2028"


async def test_no_service_is_there(services: Services) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        events = await services.run(url=f"http://127.0.0.1:{port}/run")
    assert outcome(events) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_NETWORK)


# Streams.

SSE = sse({"delta": "Hel"}, {"thinking": "Hm."}, {"delta": "lo\u2028."}, {"sessionId": "s-1"}, {"done": True, **FULL})
LINES = lines({"delta": "Hello"}, {"unknown": 1}, {"delta": "."}, {"done": True})


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_server_sent_events(services: Services, size: int) -> None:
    data = b": hello\r\n" + SSE
    services.service.streams("/run", *(data[at : at + size] for at in range(0, len(data), size)))
    events = await services.run(mode="stream")
    assert "".join(text.delta for text in of(events, "text")) == "Hello\u2028."
    assert "".join(text.delta for text in of(events, "thinking")) == "Hm."
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert events[-1].result.summary == "All done."
    assert events[-1].result.session.handle.native_id == "s-1"


async def test_lines_of_json(services: Services) -> None:
    services.service.streams("/run", LINES, b"not json\n", media_type="application/x-ndjson", ends=False)
    events = await services.run(mode="stream")
    assert events[-1].result.summary == "Hello."
    assert [log.text for log in of(events, "log")] == ['{"unknown": 1}'], "nothing is lost, and nothing comes after"


async def test_the_word_done_ends_a_stream(services: Services) -> None:
    services.service.streams("/run", sse({"delta": "Hi."}, b"[DONE]"), ends=False)
    assert (await services.run(mode="stream"))[-1].result.summary == "Hi."


@pytest.mark.parametrize("ends", [True, False])
async def test_a_cut_stream(services: Services, ends: bool) -> None:
    services.service.streams("/run", sse({"delta": "Hel"}), ends=ends)
    events = await services.run(mode="stream")
    assert outcome(events) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_NETWORK)
    assert events[-1].result.failure.code == ("stream_cut" if ends else "connection_failed")


async def test_an_error_in_a_stream(services: Services) -> None:
    services.service.streams("/run", sse({"delta": "Hel"}, {"error": "overloaded"}))
    assert outcome(await services.run(mode="stream"))[1] == pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE


async def test_silence_in_a_stream(services: Services) -> None:
    services.service.answers("/run", FULL)
    await services.run()  # the first one loads the client, for seconds on a busy machine
    services.service.holds("/run", lines({"delta": "Hel"}))
    request = services.request(mode="stream")
    request.limits.idle.CopyFrom(duration_pb2.Duration(seconds=1))
    events = await services.follow(request)
    assert outcome(events) == (pb.OUTCOME_TIMED_OUT, pb.FAILURE_KIND_IDLE_TIMEOUT)
    async with asyncio.timeout(5):
        await services.service.left.wait()


async def test_a_stopped_run_closes_its_connection_and_says_so(services: Services) -> None:
    services.service.holds("/run", lines({"delta": "Hel", "cancelUrl": "/cancel/7"}))
    services.service.answers("/cancel/7", {})

    async def react(event: pb.AgentEvent, stream: Any) -> None:
        if event.text.delta:
            await stream.cancel(grace_s=5)

    events = await services.run(mode="stream", react=react)
    assert outcome(events)[0] == pb.OUTCOME_CANCELLED
    assert [request.path for request in services.service.requests] == ["/run", "/cancel/7"]
    assert services.service.requests[1].headers["authorization"] == f"Bearer {TOKEN}"
    async with asyncio.timeout(5):
        await services.service.left.wait()


async def test_a_service_that_refuses_to_cancel(services: Services) -> None:
    services.service.holds("/run", lines({"delta": "Hel"}))
    services.service.answers("/cancel", {}, status=500)

    async def react(event: pb.AgentEvent, stream: Any) -> None:
        if event.text.delta:
            await stream.cancel(grace_s=5)

    events = await services.run(mode="stream", react=react, cancelUrl=f"{services.service.url}/cancel")
    assert outcome(events)[0] == pb.OUTCOME_CANCELLED
    assert [notice.code for notice in of(events, "notice")] == ["cancel_not_sent"]


# Tasks.


async def test_a_task_is_looked_at_until_it_is_done(services: Services) -> None:
    services.service.answers("/run", {"status": "queued", "statusUrl": "/tasks/7"}, status=202)
    services.service.answers(
        "/tasks/7", {"status": "running"}, {"status": "half-way"}, {"status": "succeeded", **FULL}
    )
    events = await services.run(mode="poll", poll={"intervalSec": 0.05})
    assert events[-1].result.summary == "All done."
    assert [request.method for request in services.service.requests] == ["POST", "GET", "GET", "GET"]


async def test_a_task_by_its_location(services: Services) -> None:
    services.service.answers("/run", {}, status=202, location="/tasks/8", retry_after="0")
    services.service.answers("/tasks/8", {"text": "Done."})
    assert (await services.run(mode="poll"))[-1].result.summary == "Done."


async def test_a_look_that_fails_for_the_moment_is_repeated(services: Services) -> None:
    services.service.answers("/run", {"status": "queued", "statusUrl": "/tasks/7"})
    looks = iter([503, 429, 200])

    async def handle(_: HttpRequest, responder: HttpConnection) -> None:
        await responder.send_json(next(looks), {"text": "Done.", "status": "ok"}, {})

    services.service.routes["/tasks/7"] = handle
    assert (await services.run(mode="poll", poll={"intervalSec": 0.05}))[-1].result.summary == "Done."


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_look_that_always_fails_is_repeated_four_times(services: Services, status: int) -> None:
    services.service.answers("/run", {"status": "queued", "statusUrl": "/tasks/7"})
    services.service.answers("/tasks/7", {"error": "down"}, status=status)
    events = await services.run(mode="poll", poll={"intervalSec": 0.05})
    assert events[-1].result.failure.http_status == status
    assert [request.method for request in services.service.requests] == ["POST", *["GET"] * 5]


async def test_a_look_without_any_answer_is_repeated_four_times(services: Services) -> None:
    services.service.answers("/run", {"status": "queued", "statusUrl": "/tasks/7"})

    async def hang_up(_: HttpRequest, __: HttpConnection) -> None:
        """Answer nothing: the connection is closed."""

    services.service.routes["/tasks/7"] = hang_up
    events = await services.run(mode="poll", poll={"intervalSec": 0.05})
    assert outcome(events)[0] == pb.OUTCOME_FAILED
    assert [request.method for request in services.service.requests] == ["POST", *["GET"] * 5]


@pytest.mark.parametrize("status", [404, 401])
async def test_a_task_that_is_lost(services: Services, status: int) -> None:
    services.service.answers("/run", {"status": "queued", "statusUrl": "/tasks/7"})
    services.service.answers("/tasks/7", {"error": "gone"}, status=status)
    events = await services.run(mode="poll", poll={"intervalSec": 0.05})
    assert events[-1].result.failure.http_status == status


async def test_a_task_that_fails_or_is_nowhere(services: Services) -> None:
    services.service.answers("/run", {"status": "queued"})
    assert outcome(await services.run(mode="poll"))[1] == pb.FAILURE_KIND_UNPARSEABLE_OUTPUT
    services.service.answers("/run", {"status": "queued", "statusUrl": "/tasks/7"})
    services.service.answers("/tasks/7", {"status": "failed", "error": "out of memory"})
    events = await services.run(mode="poll", poll={"intervalSec": 0.05})
    assert "out of memory" in events[-1].result.failure.message


async def test_a_task_that_never_changes_is_silent(services: Services) -> None:
    services.service.answers("/run", {"status": "queued", "statusUrl": "/tasks/7"})
    services.service.answers("/tasks/7", {"status": "queued"})
    request = services.request(mode="poll", poll={"intervalSec": 0.05})
    request.limits.idle.CopyFrom(duration_pb2.Duration(nanos=500_000_000))
    assert outcome(await services.follow(request)) == (pb.OUTCOME_TIMED_OUT, pb.FAILURE_KIND_IDLE_TIMEOUT)


# Where requests may go.


async def test_a_private_address_must_be_allowed(services: Services) -> None:
    events = await services.run(allows=False)
    assert outcome(events) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_INVALID_CONFIG)
    assert events[-1].result.failure.code == "host_refused"
    events = await services.run(allows=False, url=f"http://localhost:{services.service.port}/run")
    assert "not public" in events[-1].result.failure.message
    assert services.service.requests == []


async def test_redirects_are_not_followed_unless_allowed(services: Services) -> None:
    services.service.answers("/run", {}, status=307, location="/there?key=1")
    services.service.answers("/there", FULL)
    events = await services.run()
    assert events[-1].result.failure.code == "host_refused"
    assert "key=1" not in events[-1].result.failure.message
    assert (await services.run(allowRedirects=True))[-1].result.summary == "All done."
    assert services.service.requests[-1].headers["authorization"] == f"Bearer {TOKEN}"
    services.service.answers("/run", {}, status=302, location="/there")
    assert "would lose it" in (await services.run(allowRedirects=True))[-1].result.failure.message


async def test_a_redirect_to_another_host_is_refused(services: Services) -> None:
    async with service() as other:
        other.answers("/run", FULL)
        services.service.answers("/run", {}, status=307, location=f"{other.url}/run")
        events = await services.run(allowRedirects=True)
        assert events[-1].result.failure.code == "host_refused"
        assert other.requests == []
        headers = {"X-Key": "{{env.SERVICE_KEY}}"}
        events = await services.run(allowRedirects=True, allowedHosts=[f"127.0.0.1:{other.port}"], headers=headers)
        assert events[-1].result.summary == "All done."
        sent = other.requests[0]
        assert sent.json() == services.service.bodies[-1]
        assert {"authorization", "x-key"}.isdisjoint(sent.headers), "secrets are for the host they were given for"


async def test_a_circle_of_redirects(services: Services) -> None:
    services.service.answers("/run", {}, status=308, location="/run")
    events = await services.run(allowRedirects=True)
    assert events[-1].result.failure.code == "redirect_loop"


async def test_a_task_elsewhere_is_refused(services: Services) -> None:
    async with service() as other:
        services.service.answers("/run", {"status": "queued", "statusUrl": f"{other.url}/tasks/7"})
        events = await services.run(mode="poll", poll={"intervalSec": 0.05})
        assert events[-1].result.failure.code == "host_refused"
        assert other.requests == []


TLS = Path(__file__).parent / "tls"
"""A certificate for localhost, valid until the year 2100, and the authority that it is from. They protect nothing."""


async def test_a_certificate_must_be_of_a_known_authority_and_for_the_name(services: Services) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "localhost.pem")
    async with service(context) as secure:
        secure.answers("/run", FULL)
        by_name, by_address = (f"https://{host}:{secure.port}/run" for host in ("localhost", "127.0.0.1"))
        networks = ["127.0.0.0/8", "::1/128"]
        events = await services.run(url=by_name, allowedNetworks=networks)
        assert outcome(events) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_NETWORK)
        assert "CERTIFICATE_VERIFY_FAILED" in events[-1].result.failure.message
        known: dict[str, Any] = {"caFile": str(TLS / "ca.pem"), "allowedNetworks": networks}
        assert outcome(await services.run(url=by_address, **known))[1] == pb.FAILURE_KIND_NETWORK
        assert secure.requests == []
        assert (await services.run(url=by_name, **known))[-1].result.summary == "All done."


# What a hostile service does.


async def test_a_huge_answer(services: Services) -> None:
    services.service.answers("/run", {"text": "x" * 100_000})
    events = await services.run(maxResponseBytes=50_000)
    assert events[-1].result.failure.code == "answer_too_large"
    services.service.streams("/run", *([sse({"delta": "x" * 1000})] * 100))
    events = await services.run(maxResponseBytes=50_000, mode="stream")
    assert events[-1].result.failure.code == "answer_too_large"


async def test_an_answer_that_drips(services: Services) -> None:
    async def handle(_: HttpRequest, responder: HttpConnection) -> None:
        await responder.begin(200, {"content-type": "application/json"})
        while True:
            await responder.write(b" ")
            await asyncio.sleep(0.02)

    services.service.routes["/run"] = handle
    events = await services.run(responseTimeoutSec=0.5)
    assert events[-1].result.failure.code == "response_timeout"
    assert "no whole answer" in events[-1].result.failure.message


async def test_a_head_that_drips(services: Services) -> None:
    async def handle(_: HttpRequest, responder: HttpConnection) -> None:
        responder._writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            responder._writer.write(b"x-a: b\r\n")
            await asyncio.sleep(0.02)

    services.service.routes["/run"] = handle
    events = await services.run(responseTimeoutSec=0.5, mode="stream")
    assert events[-1].result.failure.code == "response_timeout"


@pytest.mark.parametrize("head", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", b""])
async def test_what_is_no_http(services: Services, head: bytes) -> None:
    async def handle(_: HttpRequest, responder: HttpConnection) -> None:
        responder._writer.write(head)

    services.service.routes["/run"] = handle
    assert outcome(await services.run()) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_NETWORK)


async def test_a_compressed_answer_is_refused(services: Services) -> None:
    services.service.answers("/run", FULL, content_encoding="gzip")
    events = await services.run()
    assert events[-1].result.failure.code == "answer_compressed"
    assert services.service.requests[0].headers["accept-encoding"] == "identity"


async def test_deep_json_and_half_characters(services: Services) -> None:
    deep = b'{"text":' + b"[" * 200_000 + b"]" * 200_000 + b"}"

    async def handle(_: HttpRequest, responder: HttpConnection) -> None:
        await responder.send(200, deep, {"content-type": "application/json"})

    services.service.routes["/run"] = handle
    assert outcome(await services.run())[1] == pb.FAILURE_KIND_UNPARSEABLE_OUTPUT
    deep = b'{"text": "\\ud800 half"}'
    assert (await services.run())[-1].result.summary == "\ufffd half"


# Before a run.


async def test_detect_calls_a_service_only_where_its_url_is_set(services: Services) -> None:
    (found,) = await services.client.detect("http")
    assert found.available
    assert found.auth == api.AUTH_STATE_NOT_NEEDED
    assert found.confidence == api.DETECTION_CONFIDENCE_NOT_APPLICABLE
    assert "config.url" in found.message
    config = {"url": f"{services.service.url}/run", "allowedNetworks": ["127.0.0.0/8"]}
    health = f"{services.service.url}/health"
    services.service.answers("/health", {}, {})
    tested = await services.client.test_environment("http", config={**config, "healthUrl": health})
    assert tested.status == api.TEST_STATUS_PASS
    services.service.answers("/health", {}, status=503)
    tested = await services.client.test_environment("http", config={**config, "healthUrl": health})
    assert "service_unhealthy" in [check.code for check in tested.checks]
    config["allowedHosts"] = ["127.0.0.1:9"]  # where nothing listens
    for url, why in (("http://127.0.0.1:9/health", "The connection broke"), ("http://10.0.0.1/", "is not allowed")):
        tested = await services.client.test_environment("http", config={**config, "healthUrl": url})
        assert [check.code for check in tested.checks if why in check.message] == ["service_unhealthy"]
    assert {request.method for request in services.service.requests} == {"GET"}
