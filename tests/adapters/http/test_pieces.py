"""The pure pieces: addresses, frames, paths, templates, and what the adapter says of itself."""

import ipaddress
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from dragoman.adapters.http import adapter
from dragoman.adapters.http.frames import Frames
from dragoman.adapters.http.mapping import DEFAULT_PATHS, PathError, Paths
from dragoman.adapters.http.plan import warnings
from dragoman.client import execute_request
from dragoman.protocol.egress import EgressGate, RefusedError, Target, target_of
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import Report
from dragoman.v1 import event_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = files("dragoman.adapters.http")
DOCUMENT = (FOLDER / "configuration.md").read_text(encoding="utf-8")
OWN = Target("https", "agents.example", 443)

# Addresses.


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:7f00:1::"),
    ],
)
def test_what_is_not_public_must_be_listed(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert not EgressGate(OWN).allows(parsed)
    everything = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
    assert EgressGate(OWN, networks=everything).allows(parsed)
    assert not EgressGate(OWN, networks=(ipaddress.ip_network("203.0.113.0/24"),)).allows(parsed)


def test_a_listed_network_is_that_one_only() -> None:
    gate = EgressGate(OWN, networks=(ipaddress.ip_network("10.0.0.0/8"),))
    assert gate.allows(ipaddress.ip_address("10.1.2.3"))
    assert gate.allows(ipaddress.ip_address("::ffff:10.1.2.3"))
    assert not gate.allows(ipaddress.ip_address("127.0.0.1"))
    assert gate.allows(ipaddress.ip_address("93.184.215.14"))


@pytest.mark.parametrize(
    ("url", "hosts", "allowed"),
    [
        ("https://agents.example/x", (), True),
        ("https://AGENTS.example:443/", (), True),
        ("https://agents.example./", (), True),
        ("http://agents.example/", (), False),
        ("https://agents.example:8443/", (), False),
        ("https://evil.example/", (), False),
        ("https://agents.example.evil.example/", (), False),
        ("https://a.b.example/", ("*.b.example",), True),
        ("https://b.example/", ("*.b.example",), False),
        ("https://b.example:9/", ("b.example:9",), True),
        ("https://b.example:8/", ("b.example:9",), False),
    ],
)
def test_hosts(url: str, hosts: tuple[str, ...], allowed: bool) -> None:
    gate = EgressGate(OWN, hosts=hosts)
    if allowed:
        gate.check_host(target_of(url))
    else:
        with pytest.raises(RefusedError):
            gate.check_host(target_of(url))


@pytest.mark.parametrize(
    "url", ["", "ftp://a/", "https://", "https://u:p@a/", "https://a b/", "https://a/\n", "//a/", "https://a:99999/"]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(RefusedError):
        target_of(url)


async def test_a_name_that_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def resolved(*_: object, **__: object) -> list[Any]:
        return [(0, 0, 0, "", ("169.254.169.254", 443)), (0, 0, 0, "", ("93.184.215.14", 443))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    assert await EgressGate(OWN).addresses(OWN) == ["93.184.215.14"], "only what may be reached is connected to"


# Frames.

SSE = (
    b'\xef\xbb\xbf: comment\r\nevent: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\nid: 7\n\ndata:last\n\ndata: without an end'
)
EXPECTED = [b'{"a":\n1}', b"last", b"without an end"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(SSE)), max_size=8))
def test_any_split_gives_the_same_frames(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(SSE)]
    frames = Frames("text/event-stream")
    found = [data for start, end in pairwise(places) for data in frames.feed(SSE[start:end])]
    assert [*found, *frames.finish()] == EXPECTED


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=20)), st.sampled_from(["text/event-stream", "application/x-ndjson"]))
def test_no_bytes_raise(chunks: list[bytes], media_type: str) -> None:
    frames = Frames(media_type)
    for chunk in chunks:
        list(frames.feed(chunk))
    list(frames.finish())


# Paths.


def test_paths() -> None:
    paths = Paths.compiled({"text": "$.a[0].b", "error": ""})
    assert paths.text("text", {"a": [{"b": "x"}]}) == "x"
    assert paths.text("text", {"a": {}}) == ""
    assert paths.text("text", {"a": [{"b": {"c": 1}}]}) == '{"c":1}'
    assert paths.failure({"error": "x"}) == "", "an empty path is not looked for"
    with pytest.raises(PathError, match="text: "):
        Paths.compiled({"text": "$["})


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*DEFAULT_PATHS, "usage"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(-3, 2**70), st.floats(), st.text(max_size=4)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=2), st.dictionaries(st.sampled_from([*DEFAULT_PATHS]), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_no_answer_raises(fields: dict[str, Any]) -> None:
    paths, report = Paths.compiled({}), Report()
    paths.report(fields, report)
    assert paths.state(fields) in {"running", "succeeded", "failed"}
    paths.failure(fields)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"status": "RUNNING"}, "running"),
        ({"status": "warming up"}, "running"),
        ({"status": "Completed"}, "succeeded"),
        ({"status": "canceled"}, "failed"),
        ({}, "succeeded"),
        ({"ok": False}, "failed"),
        ({"error": None}, "succeeded"),
        ({"error": False}, "succeeded"),
        ({"error": {"message": "x"}}, "failed"),
    ],
)
def test_states(fields: dict[str, Any], state: str) -> None:
    assert Paths.compiled({}).state(fields) == state


# The adapter.


def test_it_is_found_by_its_entry_point() -> None:
    (entry,) = entry_points(group="dragoman.adapters", name="http")
    info = entry.load()().describe()
    assert (info.type, set(info.aliases)) == ("http", {"http_agent", "webhook"})


def test_the_schema_names_the_paths_that_are_read() -> None:
    assert list(adapter().describe().config_schema["properties"]["paths"]["properties"]) == list(DEFAULT_PATHS)


@pytest.mark.parametrize("key", DEFAULT_PATHS)
def test_every_path_is_documented(key: str) -> None:
    assert f"`{key}`" in DOCUMENT


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({}, "config.url"),
        ({"url": "ftp://a/"}, "config.url"),
        ({"url": "https://user:password@a/"}, "config.url"),
        ({"url": "https://a/", "allowedNetworks": ["home"]}, "config.allowedNetworks[0]"),
        ({"url": "https://a/", "headers": {"Host": "b"}}, "config.headers.Host"),
        ({"url": "https://a/", "headers": {"a:b": "c"}}, "config.headers.a:b"),
        ({"url": "https://a/", "mode": "callback"}, "config.callback.url"),
        ({"url": "https://a/", "mode": "callback", "callback": {"port": 0}}, "config.callback.url"),
        ({"url": "https://a/", "paths": {"text": "$["}}, "config.paths"),
        ({"url": "https://a/", "body": "{{prompt}}", "model": "m"}, "model"),
    ],
)
def test_what_is_refused(config: dict[str, Any], path: str) -> None:
    with pytest.raises(DragomanError) as caught:
        adapter().accept(execute_request("http", "x", config=config))
    assert [item.path for item in caught.value.violations] == [path]


def test_what_the_body_would_lose_is_refused() -> None:
    request = execute_request("http", "x", config={"url": "https://a/", "body": {"q": "{{prompt}}"}})
    request.system_prompt = "Be brief."
    with pytest.raises(DragomanError):
        adapter().accept(request)
    request.config.update({"body": {"q": "{{ systemPrompt }} {{prompt}}"}})
    adapter().accept(request)


def test_secrets_in_plain_sight_are_reported() -> None:
    secrets = {"HTTP_BEARER_TOKEN": "t"}
    assert [code for code, _ in warnings("http://agents.example/", secrets)] == ["plain_http"]
    assert list(warnings("http://agents.example/", {})) == []
    assert list(warnings("https://agents.example/", secrets)) == []
    assert list(warnings("http://127.0.0.1:8080/", secrets)) == []


def test_a_header_cannot_be_broken_out_of() -> None:
    from dragoman.adapters.http.plan import headers_of

    class Job:
        config: ClassVar = {"headers": {"X-Prompt": "{{prompt}}", "X-Key": "{{env.KEY}}"}}

    headers = headers_of(Job(), {"HTTP_HEADER_SECRET_KEY": "k"}, {"prompt": "a\r\nx-evil: 1"})  # type: ignore[arg-type] # all it looks at
    assert headers["x-prompt"] == "ax-evil: 1"
    assert headers["x-key"] == "k"


def test_without_paths_the_values_have_common_names() -> None:
    usage = {"inputTokens": 5, "outputTokens": 6, "cachedTokens": 4, "costUsd": 0.25}
    answer = {"text": "t", "delta": "d", "thinking": "h", "statusUrl": "/s", "cancelUrl": "/c", "error": "e"}
    whole: dict[str, Any] = {**answer, "sessionId": "s-1", "model": "m-1", "output": {"a": 1}, "usage": usage}
    paths, report = Paths.compiled({}), Report()
    assert {name: paths.text(name, whole) for name in answer} == answer
    paths.report(whole, report)
    assert (report.summary, report.session_id, report.model) == ("t", "s-1", "m-1")
    assert (report.structured_output_json, report.has_output) == ('{"a":1}', True)
    assert report.usage is not None
    tokens = report.usage.tokens
    assert (tokens.input, tokens.output, tokens.cache_read) == (5, 6, 4)
    assert (report.usage.cost.amount, report.usage.cost.currency) == ("0.25", "USD")
    assert report.usage.cost.basis == event_pb2.COST_BASIS_REPORTED
    assert (report.usage.scope, report.usage.semantics) == (
        event_pb2.USAGE_SCOPE_RUN,
        event_pb2.USAGE_SEMANTICS_CUMULATIVE,
    )


STATES = {
    "running": "accepted pending queued running in_progress processing started half-way",
    "succeeded": "succeeded success completed complete done finished ok OK",
    "failed": "failed failure error cancelled canceled expired timed_out Failed",
}


@pytest.mark.parametrize(("status", "state"), [(word, state) for state in STATES for word in STATES[state].split()])
def test_each_status_is_a_state(status: str, state: str) -> None:
    assert Paths.compiled({}).state({"status": status, "error": "e" if state != "failed" else ""}) == state


@pytest.mark.parametrize(
    ("fields", "state", "failure", "done"),
    [
        ({}, "succeeded", "", False),
        ({"error": "broken"}, "failed", "broken", True),
        ({"error": {"code": 1}}, "failed", '{"code":1}', True),
        ({"error": False}, "succeeded", "", False),
        ({"error": {}}, "succeeded", "", False),
        ({"error": []}, "succeeded", "", False),
        ({"ok": False}, "failed", "The service reports a failure.", True),
        ({"ok": False, "error": "broken"}, "failed", "broken", True),
        ({"ok": True, "done": True}, "succeeded", "", True),
        ({"done": "yes"}, "succeeded", "", True),
        ({"done": ""}, "succeeded", "", False),
        ({"done": 0}, "succeeded", "", False),
    ],
)
def test_an_answer_without_a_status(fields: dict[str, Any], state: str, failure: str, done: bool) -> None:
    paths = Paths.compiled({})
    assert (paths.state(fields), paths.failure(fields), paths.is_done(fields)) == (state, failure, done)


@pytest.mark.parametrize("count", [-1, 2**63, True, 1.5, "3", None])
def test_what_is_no_count_is_none(count: Any) -> None:
    assert Paths.compiled({}).usage({"usage": {"inputTokens": count}}) is None


def test_zero_tokens_and_no_cost_are_some() -> None:
    usage = Paths.compiled({}).usage({"usage": {"inputTokens": 0, "costUsd": 0}})
    assert usage is not None
    assert (usage.tokens.HasField("input"), usage.cost.amount) == (True, "0")
