"""A run's questions: answered once, the same again fine, expired to their default, dropped with their run."""

import asyncio
import json
from collections.abc import Callable

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import DEFAULT_INPUT_TIMEOUT_S
from dragoman.sdk._run.inputs import Resolution, check_answer, default_answer
from dragoman.sdk._run.run import Run
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.running import kinds, make_run, travel, written

SECRET = "hunter2-hunter2"
ALLOW = pb.InputOption(id="yes", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Yes")
REJECT = pb.InputOption(id="no", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="No")
YES, NO = pb.InputAnswer(option_ids=["yes"]), pb.InputAnswer(option_ids=["no"])


def permission(request_id: str = "r", *, title: str = "", editable_input_json: str = "") -> pb.InputRequest:
    request = pb.InputRequest(id=request_id, kind=pb.INPUT_KIND_PERMISSION, options=[ALLOW, REJECT], title=title)
    request.editable_input_json = editable_input_json
    return request


def refused(run: Run, answer: pb.InputAnswer, request_id: str = "r") -> DragomanError:
    with pytest.raises(DragomanError) as caught:
        run.inputs.answer(request_id, answer, "")
    return caught.value


async def test_the_first_answer_wins_and_the_same_again_is_fine() -> None:
    run = make_run()
    asked = run.inputs.open(permission())
    sequence = run.inputs.answer("r", YES, "me")
    resolution = await asked
    assert resolution == Resolution(pb.INPUT_RESOLUTION_ANSWERED, YES, sequence)
    assert resolution.option(permission()) == ALLOW
    assert run.inputs.answer("r", YES, "another client") == sequence
    error = refused(run, NO)
    assert error.reason is Reason.ALREADY_RESOLVED
    assert json.loads(error.metadata["answer"]) == {"optionIds": ["yes"]}
    run.finish(pb.Result())
    assert run.inputs.answer("r", YES, "") == sequence
    assert refused(run, NO).reason is Reason.ALREADY_RESOLVED
    events = await written(run)
    assert kinds(events) == ["started", "input_request", "state", "input_resolved", "state", "result"]
    assert events[3].sequence == sequence
    assert events[3].origin == pb.EVENT_ORIGIN_OPERATOR
    assert (events[3].input_resolved.responder, events[3].input_resolved.answer) == ("me", YES)
    assert [event.state.phase for event in (events[2], events[4])] == [
        pb.RUN_PHASE_WAITING_FOR_INPUT,
        pb.RUN_PHASE_RUNNING,
    ]


async def test_unknown_requests() -> None:
    run = make_run()
    assert refused(run, YES, "never").reason is Reason.REQUEST_NOT_FOUND
    run.finish(pb.Result())
    assert refused(run, YES, "never").reason is Reason.REQUEST_NOT_FOUND


def test_an_unanswered_request_expires_to_its_default() -> None:
    async def story() -> None:
        run = make_run()
        began = asyncio.get_running_loop().time()
        resolution = await run.ask(permission())
        assert asyncio.get_running_loop().time() - began == DEFAULT_INPUT_TIMEOUT_S
        assert resolution.how == pb.INPUT_RESOLUTION_EXPIRED
        assert list(resolution.answer.option_ids) == ["no"]
        assert refused(run, YES).reason is Reason.REQUEST_EXPIRED
        assert refused(run, NO).reason is Reason.REQUEST_EXPIRED, "even if it is the default"
        events = await written(run)
        assert events[3].input_resolved.answer == resolution.answer
        assert events[3].origin == pb.EVENT_ORIGIN_ADAPTER, "a default is no operator's answer"
        expires, asked = events[1].input_request.expires_at.ToNanoseconds(), events[1].time.ToNanoseconds()
        assert (expires - asked) / 1e9 == pytest.approx(DEFAULT_INPUT_TIMEOUT_S, abs=1)

    travel(story)


@pytest.mark.parametrize(
    ("timeout", "waited_s"),
    [
        (duration_pb2.Duration(seconds=5), 5),
        (duration_pb2.Duration(), 0),
        (duration_pb2.Duration(seconds=-5), 0),
        (duration_pb2.Duration(seconds=2**62), 10 * 365 * 24 * 3600),
    ],
)
def test_the_caller_says_how_long_a_request_waits(timeout: duration_pb2.Duration, waited_s: float) -> None:
    async def story() -> None:
        run = make_run(api.ExecuteRequest(permissions=pb.Permissions(request_timeout=timeout)))
        began = asyncio.get_running_loop().time()
        resolution = await run.ask(permission())
        assert resolution.how == pb.INPUT_RESOLUTION_EXPIRED
        assert asyncio.get_running_loop().time() - began == waited_s

    travel(story)


async def test_a_request_dropped_by_the_agent_or_with_its_run() -> None:
    run = make_run()
    first, second = run.inputs.open(permission("one")), run.inputs.open(permission("two"))
    run.inputs.withdraw("one")
    run.inputs.withdraw("one")
    run.inputs.withdraw("unknown")
    assert (await first).how == pb.INPUT_RESOLUTION_DROPPED
    assert refused(run, YES, "one").reason is Reason.REQUEST_EXPIRED
    assert run.inputs.is_waiting
    run.finish(pb.Result())
    assert (await second).how == pb.INPUT_RESOLUTION_DROPPED
    assert refused(run, YES, "one").reason is Reason.RUN_FINISHED
    assert refused(run, YES, "two").reason is Reason.RUN_FINISHED
    events = await written(run)
    dropped = [event for event in events if event.HasField("input_resolved")]
    assert [event.input_resolved.id for event in dropped] == ["one", "two"]
    assert not any(event.input_resolved.HasField("answer") for event in dropped)
    assert {event.origin for event in dropped} == {pb.EVENT_ORIGIN_ADAPTER}


async def test_an_attempts_requests_end_with_it() -> None:
    run = make_run()
    asked = run.inputs.open(permission())
    run.attempt_ended(pb.AttemptEnded())
    assert (await asked).how == pb.INPUT_RESOLUTION_DROPPED
    assert kinds(await written(run))[-3:] == ["input_resolved", "state", "attempt_ended"]


async def test_who_stops_waiting_withdraws() -> None:
    run = make_run()
    task = asyncio.ensure_future(run.ask(permission()))
    await asyncio.sleep(0)
    assert run.inputs.is_waiting
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not run.inputs.is_waiting


async def test_ids_are_unique_within_a_run() -> None:
    run = make_run()
    run.inputs.open(permission())
    assert run.inputs.knows("r")
    with pytest.raises(ValueError, match="not unique"):
        run.inputs.open(permission())
    run.inputs.answer("r", YES, "")
    with pytest.raises(ValueError, match="not unique"):
        await run.ask(permission())
    assert not run.inputs.knows("other")


async def test_the_waiting_phase_lasts_until_the_last_answer() -> None:
    run = make_run()
    run.inputs.open(permission("one"))
    run.inputs.open(permission("two"))
    run.inputs.answer("one", YES, "")
    assert run.phase == pb.RUN_PHASE_WAITING_FOR_INPUT
    run.inputs.answer("two", NO, "")
    assert run.phase == pb.RUN_PHASE_RUNNING
    assert kinds(await written(run)).count("state") == 2


async def test_a_cancel_drops_what_is_open() -> None:
    run = make_run()
    asked = run.inputs.open(permission())
    run.cancel(5)
    assert (await asked).how == pb.INPUT_RESOLUTION_DROPPED
    assert run.phase == pb.RUN_PHASE_CANCELLING
    assert kinds(await written(run))[-2:] == ["state", "input_resolved"]


async def test_a_client_that_joins_gets_the_open_requests() -> None:
    run = make_run(secrets=[SECRET])
    run.inputs.open(permission("one", title=f"for {SECRET}?"))
    run.inputs.open(permission("two"))
    run.inputs.answer("two", YES, "")
    (copy,) = (pb.AgentEvent.FromString(data) for data in run.inputs.pending_copies())
    assert copy.sequence == 0
    assert (copy.run_id, copy.attempt) == ("run-1", 1)
    assert copy.input_request == (await written(run))[1].input_request
    assert copy.input_request.title == "for [redacted]?"
    run.inputs.drop_all()
    assert run.inputs.pending_copies() == []


async def test_the_agent_gets_the_answer_and_the_record_its_redacted_form() -> None:
    run = make_run(secrets=[SECRET])
    asked = run.inputs.open(permission(editable_input_json='{"a": 1}'))
    answer = pb.InputAnswer(option_ids=["yes"], updated_input_json=json.dumps({"command": SECRET, "password": "x"}))
    run.inputs.answer("r", answer, f"by {SECRET}")
    assert (await asked).answer == answer
    resolved = (await written(run))[3].input_resolved
    assert resolved.responder == "by [redacted]"
    assert json.loads(resolved.answer.updated_input_json) == {"command": "[redacted]", "password": "[redacted]"}
    answer_metadata = refused(run, NO).metadata["answer"]
    assert "hunter2" not in answer_metadata
    assert '\\"x\\"' not in answer_metadata


async def test_a_masked_input_is_not_sent_back_to_the_agent() -> None:
    run = make_run(secrets=[SECRET])
    run.inputs.open(permission(editable_input_json=json.dumps({"command": f"curl -H {SECRET}", "n": 1})))
    shown = (await written(run))[1].input_request.editable_input_json
    assert json.loads(shown) == {"command": "curl -H [redacted]", "n": 1}
    answer = pb.InputAnswer(option_ids=["yes"], updated_input_json=shown.replace("1", "2"))
    error = refused(run, answer)
    assert error.reason is Reason.INVALID_ANSWER
    assert error.violations[0].path == "answer.updated_input_json"
    answer.updated_input_json = json.dumps({"command": "curl", "n": 2})
    run.inputs.answer("r", answer, "")


# Whether an answer fits.

CHOICE = pb.InputRequest(id="r", kind=pb.INPUT_KIND_CHOICE, options=[ALLOW, REJECT])
SEVERAL = pb.InputRequest(id="r", kind=pb.INPUT_KIND_CHOICE, options=[ALLOW, REJECT], multiple=True)
TEXT = pb.InputRequest(id="r", kind=pb.INPUT_KIND_TEXT)


def schema(text: str) -> pb.InputRequest:
    return pb.InputRequest(id="r", kind=pb.INPUT_KIND_SCHEMA, schema_json=text)


NUMBERS = schema('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
EDITABLE = permission(editable_input_json="{}")
DEEP = "[" * 100_000

UNFIT: dict[str, tuple[pb.InputRequest, pb.InputAnswer, str]] = {
    "no option": (permission(), pb.InputAnswer(), "answer.option_ids"),
    "unknown option": (permission(), pb.InputAnswer(option_ids=["maybe"]), "answer.option_ids"),
    "two of one": (CHOICE, pb.InputAnswer(option_ids=["yes", "no"]), "answer.option_ids"),
    "two, one unknown": (SEVERAL, pb.InputAnswer(option_ids=["yes", "x"]), "answer.option_ids"),
    "option for text": (TEXT, pb.InputAnswer(option_ids=["x"], text="t"), "answer.option_ids"),
    "no text": (TEXT, pb.InputAnswer(), "answer.text"),
    "input that may not change": (
        permission(),
        pb.InputAnswer(option_ids=["yes"], updated_input_json="{}"),
        "answer.updated_input_json",
    ),
    "input that is no JSON": (
        EDITABLE,
        pb.InputAnswer(option_ids=["yes"], updated_input_json="{"),
        "answer.updated_input_json",
    ),
    "input that is no object": (
        EDITABLE,
        pb.InputAnswer(option_ids=["yes"], updated_input_json="[]"),
        "answer.updated_input_json",
    ),
    "input too deep": (
        EDITABLE,
        pb.InputAnswer(option_ids=["yes"], updated_input_json=DEEP),
        "answer.updated_input_json",
    ),
    "value that is no JSON": (NUMBERS, pb.InputAnswer(value_json="{"), "answer.value_json"),
    "value that is no JSON, where any would do": (schema(""), pb.InputAnswer(value_json="{"), "answer.value_json"),
    "value absent": (NUMBERS, pb.InputAnswer(), "answer.value_json"),
    "value too deep": (NUMBERS, pb.InputAnswer(value_json=DEEP), "answer.value_json"),
    "value of another type": (NUMBERS, pb.InputAnswer(value_json='{"n": "SECRET-TEXT"}'), "answer.value_json"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_an_answer_that_does_not_fit(case: str) -> None:
    request, answer, path = UNFIT[case]
    with pytest.raises(DragomanError) as caught:
        check_answer(request, answer)
    assert caught.value.reason is Reason.INVALID_ANSWER
    assert [item.path for item in caught.value.violations] == [path]
    assert "SECRET-TEXT" not in str(caught.value)


FIT: dict[str, tuple[pb.InputRequest, pb.InputAnswer]] = {
    "one": (permission(), YES),
    "several": (SEVERAL, pb.InputAnswer(option_ids=["yes", "no"])),
    "one of several": (SEVERAL, YES),
    "text": (TEXT, pb.InputAnswer(text="t")),
    "edited": (EDITABLE, pb.InputAnswer(option_ids=["yes"], updated_input_json='{"a": 1}')),
    "value": (NUMBERS, pb.InputAnswer(value_json='{"n": 5}')),
    "no schema at all": (schema(""), pb.InputAnswer(value_json="1")),
    "broken schema": (schema('{"type": "nonsense"}'), pb.InputAnswer(value_json="1")),
    "schema that is no object": (schema("5"), pb.InputAnswer(value_json="1")),
    "broken pattern": (schema('{"pattern": "("}'), pb.InputAnswer(value_json='"x"')),
    "deep schema": (schema(DEEP), pb.InputAnswer(value_json="1")),
    "schema that refers elsewhere": (schema('{"$ref": "http://127.0.0.1:9/x.json"}'), pb.InputAnswer(value_json="1")),
    "schema that refers to itself": (schema('{"$ref": "#"}'), pb.InputAnswer(value_json="1")),
}


@pytest.mark.parametrize("case", FIT)
def test_an_answer_that_fits_or_cannot_be_checked(case: str) -> None:
    check_answer(*FIT[case])


def test_an_agents_schema_makes_us_fetch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **_: fetched.append(args))
    check_answer(schema('{"$ref": "http://127.0.0.1:9/x.json"}'), pb.InputAnswer(value_json="1"))
    assert fetched == []


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ([ALLOW, REJECT], ["no"]),
        ([pb.InputOption(id="never", kind=pb.INPUT_OPTION_KIND_REJECT_ALWAYS), REJECT], ["no"]),
        ([ALLOW, pb.InputOption(id="never", kind=pb.INPUT_OPTION_KIND_REJECT_ALWAYS)], ["never"]),
        ([ALLOW], []),
        ([], []),
    ],
)
def test_the_default_is_a_refusal(options: list[pb.InputOption], chosen: list[str]) -> None:
    assert list(default_answer(pb.InputRequest(options=options)).option_ids) == chosen


Move = Callable[[Run], object]
MOVES: list[Move] = [
    lambda run: run.inputs.answer("r", YES, ""),
    lambda run: run.inputs.answer("r", NO, ""),
    lambda run: run.inputs.withdraw("r"),
    lambda run: run.inputs.drop_all(),
    lambda run: run.inputs._expire("r"),
]


@given(st.lists(st.sampled_from(range(len(MOVES))), min_size=1, max_size=6))
async def test_whatever_comes_a_request_ends_once(moves: list[int]) -> None:
    run = make_run()
    asked = run.inputs.open(permission())
    for move in moves:
        try:
            MOVES[move](run)
        except DragomanError as error:
            assert error.reason in {Reason.ALREADY_RESOLVED, Reason.REQUEST_EXPIRED}  # noqa: PT017 - often none comes
    resolution = await asked
    hows = {0: pb.INPUT_RESOLUTION_ANSWERED, 1: pb.INPUT_RESOLUTION_ANSWERED, 4: pb.INPUT_RESOLUTION_EXPIRED}
    assert resolution.how == hows.get(moves[0], pb.INPUT_RESOLUTION_DROPPED)
    assert kinds(await written(run)).count("input_resolved") == 1
