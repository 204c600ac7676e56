"""``dragoman run --fallback``, ``--queue`` and ``--ignore-breaker``, and ``serve --max-runs``."""

import click
import pytest
from dragoman.cli._phrases import result
from dragoman.cli._router import _no_log
from dragoman.cli.commands._chain import put_chain, settings_by_adapter
from dragoman.cli.commands.serve import _max_runs
from dragoman.cli.main import main
from dragoman.router.app import StoreError
from dragoman.testkit.fake_adapter import Action, FakeAdapter, Teller
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

from tests.cli.program import DESCRIBED, dragoman, routed


async def test_what_is_said_about_other_adapters_reaches_the_router() -> None:
    tell = Teller()
    script: list[Action] = [tell.started("fake"), tell.succeeded()]
    fake = FakeAdapter(script, answers={"Describe": DESCRIBED})
    said = ("--fallback", "two,three", "--fallback-on", "auth_required,network", "--queue", "1.5", "--ignore-breaker")
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", *said, env=env)
    assert done.code == 0, done.err
    (sent,) = fake.requests("Execute")
    kinds = [pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_NETWORK]
    assert sent.fallback == api.Fallback(adapters=["two", "three"], on=kinds)
    assert (sent.admission.longest_wait.ToMilliseconds(), sent.admission.ignore_breaker) == (1500, True)


async def test_settings_of_other_adapters_are_theirs_alone_and_text_where_they_say_so() -> None:
    tell = Teller()
    fake = FakeAdapter([tell.started("fake"), tell.succeeded()], answers={"Describe": DESCRIBED})
    said = [f"--fallback-config={pair}" for pair in ("two.command=1", "two.deep.er=1", "three={}")]
    said += ["--config", "turns=3", "--fallback", "two,three,four"]
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", *said, env=env)
    assert done.code == 0, done.err
    (sent,) = fake.requests("Execute")
    assert dict(sent.config) == {"turns": 3}
    assert {name: json_format.MessageToDict(own) for name, own in sent.fallback.configs.items()} == {
        "two": {"command": "1", "deep": {"er": 1}},
        "three": {},
    }
    assert {asked.adapter for asked in fake.requests("Describe")} == {"fake", "two", "three", "four"}


def test_settings_go_to_the_longest_name_that_fits() -> None:
    pairs = ["a.b.c=1", "a.d=x.y=z", "a.b= {} "]
    assert settings_by_adapter(pairs, ["a", "a.b", "e"]) == {"a.b": ["c=1"], "a": ["d=x.y=z"]}


@pytest.mark.parametrize("pair", ["b.c=1", "a", "a=", "a=1", "ab.c=1", "", "="])
def test_settings_of_no_adapter_and_what_is_no_setting_are_refused(pair: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        settings_by_adapter([pair], ["a"])
    assert refused.value.param_hint == "--fallback-config"


def test_what_is_not_said_is_left_out() -> None:
    request = api.ExecuteRequest()
    put_chain(request, None, None, None, ignore_breaker=False)
    assert request == api.ExecuteRequest()


def test_adapters_without_failures_are_tried_on_the_usual_ones() -> None:
    request = api.ExecuteRequest()
    put_chain(request, "two, three,", None, None, ignore_breaker=False)
    assert list(request.fallback.adapters) == ["two", "three"]
    assert {pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_NETWORK} < set(request.fallback.on)


@pytest.mark.parametrize(
    ("fallback", "fallback_on", "told"),
    [
        ("", None, "names nothing"),
        (" ,", "network", "names nothing"),
        ("two", "", "names nothing"),
        ("two", ",", "names nothing"),
        (None, "network", "the adapters of --fallback"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(fallback: str | None, fallback_on: str | None, told: str) -> None:
    with pytest.raises(click.UsageError, match=told):
        put_chain(api.ExecuteRequest(), fallback, fallback_on, None, ignore_breaker=False)


@pytest.mark.parametrize("seconds", ["3600.5", "99999"])
def test_a_longer_wait_than_routers_grant_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "hi", "--queue", seconds]) == 2
    assert "is not in the range 0<=x<=3600" in capsys.readouterr().err


def test_a_kind_that_is_none_is_named_with_near_ones() -> None:
    with pytest.raises(click.BadParameter, match="did you mean auth_required"):
        put_chain(api.ExecuteRequest(), "two", "auth-requird", None, ignore_breaker=False)


def test_where_none_is_near_all_kinds_are_named() -> None:
    with pytest.raises(click.BadParameter, match=r"they are auth_required, .*quota_exceeded"):
        put_chain(api.ExecuteRequest(), "two", "xyz", None, ignore_breaker=False)


def test_who_could_take_over_is_told() -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_AUTH_REQUIRED, message="no login")
    event = pb.AgentEvent(result=pb.Result(failure=failure, fallback_candidates=["two", "three"]))
    assert "  could take over: two, three" in [line[0].text for line in result(event, False)]


@pytest.mark.parametrize("pair", ["a", "a=", "=1", "a=0", "a=x", "a=-1"])
def test_limits_that_are_none_are_refused(pair: str) -> None:
    with pytest.raises(click.BadParameter):
        _max_runs((pair,))


def test_limits() -> None:
    assert _max_runs(("a=1", "b=20")) == {"a": 1, "b": 20}


@pytest.mark.parametrize(
    ("run_log", "is_lasting", "hint"),
    [
        ("", False, "set XDG_STATE_HOME to another folder, or"),
        ("postgresql://db/runs", False, "see that the server of --run-log is up"),
        ("postgresql://db/runs", True, ""),  # e.g. the extra is missing, and the message says so
    ],
)
def test_what_helps_a_run_log_that_cannot_be_used(run_log: str, is_lasting: bool, hint: str) -> None:
    told = _no_log(StoreError("no", is_lasting=is_lasting), run_log)
    assert told.hint.startswith(hint)
    assert bool(told.hint) is bool(hint)


def test_what_helps_where_the_disk_is_full() -> None:
    assert _no_log(StoreError("the run log x: database or disk is full")).hint.startswith("free its disk, or")


@pytest.mark.parametrize("url", ["mysql://root:pw@db/runs", "./runs.db", "sqlite:runs.db"])
def test_serve_refuses_a_run_log_that_it_has_not(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--run-log", url]) == 2
    told = capsys.readouterr().err
    assert "is no postgresql:// URL" in told
    assert "pw" not in told
