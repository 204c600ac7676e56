"""Webhooks: the file, what is sent and how it is signed, and a router that sends it."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.egress import RefusedError, target_of
from dragoman.router.api.webhooks import SignedWebhook, Webhooks, read_webhooks, send_tests
from dragoman.router.policy.webhooks import (
    Webhook,
    WebhookError,
    about_event,
    about_result,
    body_of,
    event_of,
    headers_of,
    key_of,
    message_id,
    parse_webhooks,
)
from dragoman.router.system import SystemClock
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from msgspec import Struct
from msgspec.structs import replace

from tests.cli.program import dragoman
from tests.router.harness import PATIENCE_S, config, routing
from tests.router.sidecar import Sidecar, serving

KEY = bytes(range(24))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
HOOK = Webhook("pager", "https://hooks.example/x", "key")
BREAKS_OFF = 0
"""In place of a status: the service closes the connection without an answer."""


class Got(Struct, frozen=True):
    """A request that came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """A service that hooks go to."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.statuses: list[int] = []
        self.url = ""
        self._came = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            status = self.statuses.pop(0) if self.statuses else 200
            if status != BREAKS_OFF:
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\nlocation: /\r\nconnection: close\r\n\r\n".encode()
                )
                await writer.drain()
            async with self._came:
                self.got.append(Got(headers, body))
                self._came.notify_all()
        writer.close()

    async def until(self, reached: Callable[[Sequence[Got]], object]) -> list[Got]:
        async with asyncio.timeout(PATIENCE_S), self._came:
            await self._came.wait_for(lambda: reached(self.got))
        return self.got


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    async with server:
        yield found


def hook_to(receiver: Receiver, **fields: Any) -> SignedWebhook:
    return SignedWebhook(Webhook("pager", receiver.url, "key", allow_private=True, **fields), KEY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no webhook; write a table [NAME]"),
        ("x = ", "is not valid TOML"),
        ("x = 1", "x: must be a table [NAME]"),
        ("[x]", "x.url: must be a text"),
        ("[x]\nurl = 'https://h/'", "x.secret_file: must be a text"),
        ("[x]\nurll = 1", "x.urll: no such key; did you mean url?"),
        ("[x]\nfoo = 1", "x.foo: no such key; the keys are url, secret_file, events"),
        ("[x]\nurl = 'http://h/'\nsecret_file = 's'", "x.url: must begin with https://"),
        ("[x]\nurl = 'ftp://h/'\nsecret_file = 's'", "x.url: must begin with https:// or http://"),
        ("[x]\nurl = 'https://u:p@h/'\nsecret_file = 's'", "x.url: must not hold a user or password"),
        (
            "[x]\nevents = ['results']",
            "x.events: 'results' is no event; the events are input_request, result",
        ),
        ("[x]\nevents = []", "x.events: must be a list of texts that is not empty"),
        ("[x]\nlabels = {a = 1}", "x.labels: must be a table of texts"),
        ("[x]\nallow_private = 1", "x.allow_private: must be true or false"),
    ],
)
def test_an_error_names_the_key(text: str, message: str) -> None:
    with pytest.raises(WebhookError) as caught:
        parse_webhooks(text.encode())
    assert str(caught.value).startswith(message)


def test_a_file_has_several_webhooks(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    file = tmp_path / "hooks.toml"
    file.write_text(
        '[pager]\nurl = "https://a.example/"\nsecret_file = "key"\nevents = ["input_request"]\n'
        '[board]\nurl = "http://b.example/"\nsecret_file = "key"\nallow_private = true\n'
        'adapters = ["co*"]\nlabels = {team = "core"}\n'
    )
    first, second = read_webhooks(file)
    assert first == SignedWebhook(Webhook("pager", "https://a.example/", "key", ("input_request",)), KEY)
    assert (second.hook.adapters, second.hook.labels) == (("co*",), {"team": "core"})


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_!", SECRET.removeprefix("whsec_"), f"whsec_{'A' * 20}"])
def test_a_key_is_checked_and_not_repeated(text: str) -> None:
    with pytest.raises(WebhookError, match="secret_file: must hold whsec_ and 24 to 64 random bytes") as caught:
        key_of(text, "pager")
    assert len(text) < 8 or text not in str(caught.value)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of its specification."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "x")
    headers = headers_of("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', key)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330")


def test_an_id_is_that_of_one_event_of_one_webhook() -> None:
    one = ("a", "result", "r", {"sequence": 1})
    assert message_id(*one) == message_id(*one)
    others = [("b", *one[1:]), ("a", "budget", *one[2:]), ("a", "result", "s", one[3]), (*one[:3], {"sequence": 2})]
    assert len({message_id(*one), *(message_id(*other) for other in others)}) == 5


@pytest.mark.parametrize(
    ("hook", "event", "goes_out"),
    [
        (HOOK, "result", True),
        (replace(HOOK, events=("budget",)), "result", False),
        (replace(HOOK, adapters=("co*",)), "result", True),
        (replace(HOOK, adapters=("x",)), "result", False),
        (replace(HOOK, labels={"team": "core"}), "result", True),
        (replace(HOOK, labels={"team": "core", "x": "y"}), "result", False),
    ],
)
def test_which_events_a_webhook_gets(hook: Webhook, event: str, goes_out: bool) -> None:
    assert hook.wants(event, router_pb2.RunSummary(adapter="codex", labels={"team": "core"})) is goes_out


def test_a_body_repeats_nothing_that_the_agent_wrote() -> None:
    result = pb.Result(
        outcome=pb.OUTCOME_FAILED,
        summary="the agent's words",
        failure=pb.Failure(kind=pb.FAILURE_KIND_RATE_LIMITED, code="c", message="words", errors=["words"]),
        usage=pb.Usage(tokens=pb.TokenCounts(input=3)),
    )
    run = router_pb2.RunSummary(run_id="r", adapter="codex", result=result, remarks=["words"], attempt=1)
    body = body_of("result", run, about_result(result, 7), "2026-01-01T00:00:00Z")
    assert b"words" not in body
    data = json.loads(body)["data"]
    assert (data["outcome"], data["failure"]) == ("failed", {"kind": "rate_limited", "code": "c", "retryable": False})
    assert (data["run_id"], data["sequence"], data["usage"]["tokens"]["input"]) == ("r", 7, "3")


def test_a_body_names_the_run_and_its_agent() -> None:
    names: dict[str, Any] = {"run_id": "r", "adapter": "codex", "agent_name": "Ann"}
    names |= {"agent_id": "7", "company_id": "c", "task_key": "t"}
    run = router_pb2.RunSummary(**names, labels={"b": "2", "a": "1"}, attempt=2)
    body = json.loads(body_of("notice", run, {"code": "x"}, "2026-01-01T00:00:00Z"))
    assert body == {
        "type": "notice",
        "timestamp": "2026-01-01T00:00:00Z",
        "data": {**names, "labels": {"a": "1", "b": "2"}, "attempt": 2, "code": "x"},
    }


def test_which_events_of_a_run_go_out() -> None:
    asked = pb.AgentEvent(sequence=3, input_request=pb.InputRequest(id="q", kind=pb.INPUT_KIND_PERMISSION, title="t"))
    warned = pb.AgentEvent(sequence=4, notice=pb.Notice(code="budget_warning", message="m"))
    assert [event_of(one) for one in (asked, warned)] == ["input_request", "budget"]
    assert event_of(pb.AgentEvent(notice=pb.Notice(code="other"))) == event_of(pb.AgentEvent(text=pb.Text())) == ""
    assert about_event(asked) == {"sequence": 3, "request_id": "q", "kind": "permission", "title": "t"}
    assert about_event(warned) == {"sequence": 4, "code": "budget_warning", "message": "m"}


def test_values_of_a_later_contract_are_numbers() -> None:
    asked = pb.AgentEvent(input_request=pb.InputRequest())
    asked.input_request.kind = 99  # type: ignore[assignment]  # of a later contract
    assert about_event(asked)["kind"] == "99"
    ended = pb.Result(outcome=99, failure=pb.Failure(kind=99))  # type: ignore[arg-type]  # as above
    about = about_result(ended, 1)
    assert (about["outcome"], about["failure"]["kind"]) == ("99", "99")


@pytest.mark.parametrize(
    ("url", "allow_private", "is_allowed"),
    [
        ("https://127.0.0.1/", False, False),
        ("https://[::1]/", False, False),
        ("https://10.0.0.1/", False, False),
        ("https://169.254.169.254/", False, False),
        ("https://169.254.169.254/", True, False),
        ("https://[fe80::1]/", True, False),
        ("https://[::ffff:169.254.169.254]/", True, False),
        ("https://0.0.0.0/", True, False),
        ("https://[fd00:ec2::254]/", True, False),
        ("https://100.100.100.200/", True, False),
        ("https://[::ffff:100.100.100.200]/", True, False),
        ("https://192.0.0.192/", True, False),
        ("https://100.100.100.201/", True, True),
        ("https://127.0.0.1/", True, True),
        ("https://10.0.0.1/", True, True),
        ("https://8.8.8.8/", False, True),
    ],
)
async def test_which_addresses_are_called(url: str, allow_private: bool, is_allowed: bool) -> None:
    gate = replace(HOOK, url=url, allow_private=allow_private).gate
    if is_allowed:
        assert await gate.addresses(target_of(url))
    else:
        with pytest.raises(RefusedError, match="which is not public; set allow_private"):
            await gate.addresses(target_of(url))


@pytest.mark.parametrize("host", ["exa..mple.com", f"{'a' * 64}.com"])
async def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    hook = replace(HOOK, url=f"https://{host}/")
    with pytest.raises(RefusedError, match="is no host name"):
        await hook.gate.addresses(target_of(hook.url))
    assert await send_tests([SignedWebhook(hook, KEY)], 1.0) == [("pager", f"{host} is no host name")]


async def test_a_test_event_arrives_or_says_why_not(receiver: Receiver) -> None:
    private = SignedWebhook(replace(HOOK, name="private", url=receiver.url), KEY)
    redirecting = hook_to(receiver)
    assert await send_tests([hook_to(receiver)], 1.0) == [("pager", "")]
    assert receiver.got[0].data["type"] == "test"
    receiver.statuses = [302]
    assert await send_tests([redirecting], 1.0) == [("pager", "it answered 302; redirects are not followed")]
    ((_, problem),) = await send_tests([private], 1.0)
    assert "is not public" in problem
    assert len(receiver.got) == 2


async def test_the_command_tries_webhooks(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "key").write_text(SECRET)
    file = tmp_path / "hooks.toml"
    table = f'url = "{receiver.url}"\nsecret_file = "key"\nallow_private = true\n'
    file.write_text(f"[pager]\n{table}[board]\n{table}")
    done = await dragoman("webhook", "test", "--webhooks", str(file), "board")
    assert (done.code, done.out, done.err) == (0, "board: taken\n", "")
    receiver.statuses = [500]
    done = await dragoman("webhook", "test", "--webhooks", str(file))
    assert (done.code, done.out) == (1, "pager: it answered 500\nboard: taken\n")
    done = await dragoman("webhook", "test", "--webhooks", str(file), "x")
    assert (done.code, "it has pager, board" in done.err) == (2, True), done.err
    file.write_text("[pager]\nurll = 1\n")
    for command in (("webhook", "test"), ("serve",)):
        done = await dragoman(*command, "--webhooks", str(file))
        assert (done.code, "pager.urll: no such key; did you mean url?" in done.err) == (2, True), done.err


@contextlib.asynccontextmanager
async def world(folder: Path, receiver: Receiver, more: str = "") -> AsyncIterator[Any]:
    (folder / "key").write_text(SECRET)
    (folder / "hooks.toml").write_text(
        f'[pager]\nurl = "{receiver.url}"\nsecret_file = "key"\nallow_private = true\n{more}'
    )
    address = f"unix:{folder}/a.sock"
    configured = config(folder, addresses=(address,), webhooks=folder / "hooks.toml")
    async with serving(Sidecar(), address), routing(configured) as (router, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield router, caller


async def test_a_router_sends_questions_and_results(folder: Path, receiver: Receiver) -> None:
    async with world(folder, receiver) as (_router, caller):
        stream = caller.execute("fake", {"ask": "q"}, run_id="r", labels={"team": "core"})
        await stream.until("input_request")
        (asked,) = await receiver.until(lambda got: got)
        assert asked.data["type"] == "input_request"
        assert (asked.data["data"]["run_id"], asked.data["data"]["request_id"]) == ("r", "q")
        stream.cancel()
        *_, ended = await receiver.until(lambda got: len(got) == 2)
        assert (ended.data["type"], ended.data["data"]["outcome"]) == ("result", "cancelled")
        assert ended.data["data"]["labels"] == {"team": "core"}
    for got in receiver.got:
        at = int(got.headers["webhook-timestamp"])
        assert headers_of(got.headers["webhook-id"], at, got.body, KEY).items() <= dict(got.headers).items()


async def test_a_webhook_gets_what_it_is_for(folder: Path, receiver: Receiver) -> None:
    async with world(folder, receiver, 'events = ["result"]\nlabels = {team = "core"}\n') as (_router, caller):
        await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="other").rest()
        await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="mine", labels={"team": "core"}).rest()
        (got,) = await receiver.until(lambda got: got)
        assert got.data["data"]["run_id"] == "mine"


class _Run:
    """As much of a run as is sent."""

    def __init__(self, run_id: str) -> None:
        self.record = self
        self.run_id = run_id

    def summary(self, _readers: int) -> router_pb2.RunSummary:
        return router_pb2.RunSummary(run_id=self.run_id, adapter="fake", attempt=1)


def ask(hooks: Webhooks, run_id: str) -> None:
    event = pb.AgentEvent(sequence=1, input_request=pb.InputRequest(id="q"))
    hooks.heard(_Run(run_id), event)  # type: ignore[arg-type]  # as much of a run as is used


async def test_a_failed_request_is_repeated_with_the_same_id(receiver: Receiver) -> None:
    hooks = Webhooks([hook_to(receiver)], SystemClock(), delays_s=(0.0, 0.0))
    hooks.begin()
    receiver.statuses = [500, 429, 200, 400, 200]
    ask(hooks, "a")
    await receiver.until(lambda got: len(got) == 3)
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    ask(hooks, "b")  # refused for good
    ask(hooks, "c")
    got = await receiver.until(lambda got: len(got) == 5)
    assert [one.data["data"]["run_id"] for one in got] == ["a", "a", "a", "b", "c"]
    await hooks.close()


async def test_a_request_without_an_answer_is_repeated(receiver: Receiver) -> None:
    hooks = Webhooks([hook_to(receiver)], SystemClock(), delays_s=(0.0,))
    hooks.begin()
    receiver.statuses = [BREAKS_OFF, 200]
    ask(hooks, "a")
    got = await receiver.until(lambda got: len(got) == 2)
    assert [one.data["data"]["run_id"] for one in got] == ["a", "a"]
    await hooks.close()


async def test_a_request_has_so_many_attempts(receiver: Receiver) -> None:
    hooks = Webhooks([hook_to(receiver)], SystemClock(), delays_s=(0.0,))
    hooks.begin()
    receiver.statuses = [500, 500]
    ask(hooks, "a")
    ask(hooks, "b")
    got = await receiver.until(lambda got: len(got) == 3)
    assert [one.data["data"]["run_id"] for one in got] == ["a", "a", "b"]
    await hooks.close()


async def test_what_waits_is_bounded(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.router.api.webhooks._MOST_WAITING", 3)
    hooks = Webhooks([hook_to(receiver)], SystemClock())
    for number in range(5):
        ask(hooks, f"r{number}")
    hooks.begin()
    await hooks.close()
    assert [got.data["data"]["run_id"] for got in receiver.got] == ["r0", "r1", "r2"]


async def test_closing_does_not_wait_for_a_service_that_is_gone() -> None:
    hook = Webhook("gone", "http://127.0.0.1:9/", "key", allow_private=True)
    hooks = Webhooks([SignedWebhook(hook, KEY)], SystemClock(), delays_s=(600.0,))
    hooks.begin()
    ask(hooks, "a")
    async with asyncio.timeout(PATIENCE_S):
        await hooks.close()


async def test_no_webhook_ends_a_run(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = Webhooks([hook_to(receiver)], SystemClock())
    with monkeypatch.context() as broken:
        broken.setattr("dragoman.router.api.webhooks.body_of", lambda *_args: 1 / 0)
        ask(hooks, "a")
        run = _Run("b")
        run.result, run.last_sequence, run.state = pb.Result(), 1, None  # type: ignore[attr-defined]  # as the run has
        hooks.ended(run)  # type: ignore[arg-type]  # as above
    ask(hooks, "c")
    hooks.begin()
    got = await receiver.until(lambda got: got)
    assert [one.data["data"]["run_id"] for one in got] == ["c"]
    await hooks.close()


async def test_an_event_that_cannot_be_sent_keeps_no_other_from_it(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []

    def failing_first(*args: Any) -> dict[str, str]:
        ids.append(args[0])
        return headers_of(*args) if len(ids) > 1 else {}[args[0]]

    monkeypatch.setattr("dragoman.router.api.webhooks.headers_of", failing_first)
    hooks = Webhooks([hook_to(receiver)], SystemClock())
    ask(hooks, "a")
    ask(hooks, "b")
    hooks.begin()
    got = await receiver.until(lambda got: got)
    assert [one.data["data"]["run_id"] for one in got] == ["b"]
    await hooks.close()


async def test_a_run_with_values_of_a_later_contract_ends(folder: Path, receiver: Receiver) -> None:
    bodies: Sequence[Mapping[str, Any]] = (
        {"input_request": pb.InputRequest(id="q", kind=99)},  # type: ignore[arg-type]  # of a later contract
        {"result": pb.Result(outcome=99, tree_confirmed_dead=True)},  # type: ignore[arg-type]  # as above
    )
    later = [
        pb.AgentEvent(sequence=number, run_id="r", attempt=1, origin=pb.EVENT_ORIGIN_AGENT, **body)
        for number, body in enumerate(bodies, 2)
    ]
    steps = [{"raw": event.SerializeToString().hex()} for event in later]
    async with world(folder, receiver) as (_router, caller):
        events = await caller.execute("fake", *steps, {"stop": 1}, run_id="r").rest()
        assert events[-1].result.outcome == 99
        asked, ended = await receiver.until(lambda got: len(got) == 2)
        assert (asked.data["data"]["kind"], ended.data["data"]["outcome"]) == ("99", "99")
