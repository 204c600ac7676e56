"""``dragoman run --fallback``, ``--queue`` and ``--ignore-breaker``, and ``serve --max-runs``."""

import click
import pytest
from dragoman.cli.commands._fallback import FallbackOptions
from dragoman.cli.commands.serve import _max_runs
from dragoman.cli.connection.embedded_router import _no_log
from dragoman.cli.display.phrases import result
from dragoman.cli.main import main
from dragoman.router.app import StoreError
from dragoman.testkit.fakes.adapter import Action, EventFactory, FakeAdapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

from tests.cli.program import DESCRIBED, dragoman, routed


def options(fallback: str | None, fallback_on: str | None, config: str | None = None) -> FallbackOptions:
    return FallbackOptions(fallback, fallback_on, config, queue=None, ignore_breaker=False)


async def test_fallback_options_reach_the_router() -> None:
    emit = EventFactory()
    script: list[Action] = [emit.started("fake"), emit.succeeded()]
    fake = FakeAdapter(script, answers={"Describe": DESCRIBED})
    arguments = (
        "--fallback",
        "two,three",
        "--fallback-on",
        "auth_required,network",
        "--queue",
        "1.5",
        "--ignore-breaker",
    )
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", *arguments, env=env)
    assert done.code == 0, done.err
    (sent,) = fake.requests("Execute")
    kinds = [pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_NETWORK]
    assert sent.fallback == api.Fallback(adapters=["two", "three"], on=kinds)
    assert (sent.admission.longest_wait.ToMilliseconds(), sent.admission.ignore_breaker) == (1500, True)


async def test_a_token_for_the_run_is_asked_of_the_router() -> None:
    emit = EventFactory()
    script: list[Action] = [emit.started("fake"), emit.succeeded()]
    fake = FakeAdapter(script, script, answers={"Describe": DESCRIBED})
    async with routed(fake) as env:
        for more in ([], ["--run-token-audience", "tickets"]):
            done = await dragoman("run", "fake", "hi", "--run-token", "https://api.example", *more, env=env)
            assert done.code == 0, done.err
    (router, api_) = fake.requests("Execute")
    assert (router.api_url, router.admission) == ("https://api.example", api.Admission(run_token=api.RunToken()))
    assert api_.admission.run_token.audience == "tickets"


def test_an_audience_without_a_token_is_refused() -> None:
    wrong = FallbackOptions(None, None, None, queue=None, ignore_breaker=False, run_token_audience="tickets")
    with pytest.raises(click.UsageError, match="--run-token"):
        wrong.put(api.ExecuteRequest())


def test_settings_of_fallback_adapters_are_an_object_each() -> None:
    request = api.ExecuteRequest()
    options("two,three", None, '{"two": {"command": "1", "deep": {"er": 1}}, "three": {}}').put(request)
    assert {name: json_format.MessageToDict(own) for name, own in request.fallback.configs.items()} == {
        "two": {"command": "1", "deep": {"er": 1}},
        "three": {},
    }


@pytest.mark.parametrize("text", ["", "a.b=1", "3", "[]", '{"a": 1}', '{"a": []}', "[" * 100_000])
def test_what_is_no_settings_by_adapter_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        options("a", None, text).put(api.ExecuteRequest())
    assert refused.value.param_hint == "--fallback-config"


def test_options_that_are_absent_are_left_out() -> None:
    request = api.ExecuteRequest()
    options(None, None).put(request)
    assert request == api.ExecuteRequest()


def test_adapters_without_failures_are_tried_on_the_usual_ones() -> None:
    request = api.ExecuteRequest()
    options("two, three,", None).put(request)
    assert list(request.fallback.adapters) == ["two", "three"]
    assert {pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_NETWORK} < set(request.fallback.on)


@pytest.mark.parametrize(
    ("fallback", "fallback_on", "message"),
    [
        ("", None, "the list is empty"),
        (" ,", "network", "the list is empty"),
        ("two", "", "the list is empty"),
        ("two", ",", "the list is empty"),
        (None, "network", "without --fallback"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(fallback: str | None, fallback_on: str | None, message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        options(fallback, fallback_on).put(api.ExecuteRequest())


@pytest.mark.parametrize("seconds", ["3600.5", "99999"])
def test_a_longer_wait_than_routers_grant_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "hi", "--queue", seconds]) == 2
    assert "is not in the range 0<=x<=3600" in capsys.readouterr().err


def test_a_kind_that_is_none_is_named_with_near_ones() -> None:
    with pytest.raises(click.BadParameter, match="did you mean auth_required"):
        options("two", "auth-requird").put(api.ExecuteRequest())


def test_where_none_is_near_all_kinds_are_named() -> None:
    with pytest.raises(click.BadParameter, match=r"the kinds are auth_required, .*quota_exceeded"):
        options("two", "xyz").put(api.ExecuteRequest())


def test_fallback_candidates_are_shown() -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_AUTH_REQUIRED, message="no login")
    event = pb.AgentEvent(result=pb.Result(failure=failure, fallback_candidates=["two", "three"]))
    assert "  available for fallback: two, three" in [line[0].text for line in result(event, False)]


@pytest.mark.parametrize("pair", ["a", "a=", "=1", "a=0", "a=x", "a=-1"])
def test_limits_that_are_none_are_refused(pair: str) -> None:
    with pytest.raises(click.BadParameter):
        _max_runs((pair,))


def test_limits() -> None:
    assert _max_runs(("a=1", "b=20")) == {"a": 1, "b": 20}


@pytest.mark.parametrize(
    ("run_log", "is_lasting", "hint"),
    [
        ("", False, "set XDG_STATE_HOME to another directory, or"),
        ("postgresql://db/runs", False, "check that the server of --run-log is running"),
        ("postgresql://db/runs", True, ""),  # e.g. the extra is missing, and the message says so
    ],
)
def test_what_helps_a_run_log_that_cannot_be_used(run_log: str, is_lasting: bool, hint: str) -> None:
    error = _no_log(StoreError("no", is_lasting=is_lasting), run_log)
    assert error.hint.startswith(hint)
    assert bool(error.hint) is bool(hint)


def test_what_helps_where_the_disk_is_full() -> None:
    assert _no_log(StoreError("the run log x: database or disk is full")).hint.startswith("free disk space, or")


@pytest.mark.parametrize("url", ["mysql://root:pw@db/runs", "./runs.db", "sqlite:runs.db"])
def test_serve_refuses_a_run_log_that_it_has_not(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--run-log", url]) == 2
    printed = capsys.readouterr().err
    assert "must be a postgresql:// URL" in printed
    assert "pw" not in printed
