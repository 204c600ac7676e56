"""What an adapter answers about a run counts once the event that it names is in the run, whatever comes first."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.run_record import adapter_lost
from dragoman.router.policy.answers import is_perhaps_recorded
from dragoman.router.runs import inputs as to
from dragoman.router.runs import state as states
from dragoman.router.runs.actor import Run
from dragoman.router.runs.sending import send
from dragoman.v1 import adapter_pb2 as api

from tests.router.runs.test_actor import World

ANSWERED = 3
LOST = to.Abandoned(adapter_lost("fake", "is gone"))


class Asked:
    """A call that an adapter has answered, and perhaps the event that the answer names."""

    def __init__(self) -> None:
        self.world = World()
        self.world.instance.gone = asyncio.Event()
        self.world.instance.channel.answer = self._answer
        self._may_answer = asyncio.Event()

    async def _answer(self, *_call: object, **_how: object) -> bytes:
        await self._may_answer.wait()
        return api.SendResponse(sequence=ANSWERED).SerializeToString()

    async def begin(self) -> "asyncio.Future[bytes]":
        """Bring the run to its adapter, and ask: the adapter is about to answer."""
        await self.world.assign()
        await self.world.event("started")
        await self.world.event("log")
        asking = asyncio.ensure_future(send(self.world.run, api.SendRequest(), b""))
        await self.world.pause()
        return asking

    async def answer(self) -> None:
        """Have the answer come."""
        self._may_answer.set()
        await self.world.pause()


@pytest.mark.parametrize("is_first", [True, False], ids=["answer first", "event first"])
async def test_an_answer_counts_with_the_event_that_it_names(is_first: bool) -> None:
    asked = Asked()
    asking = await asked.begin()
    if is_first:
        await asked.answer()
        assert not asking.done()
    await asked.world.event("log")
    await asked.answer()
    assert api.SendResponse.FromString(asking.result()).sequence == ANSWERED


async def test_an_answer_that_the_result_outran_is_looked_up_in_what_the_run_recorded() -> None:
    asked = Asked()
    asking = await asked.begin()
    await asked.world.event("log")
    await asked.world.event("result")
    assert states.is_ending(asked.world.run.state)
    await asked.answer()
    error = asking.exception()
    assert isinstance(error, DragomanError)
    assert is_perhaps_recorded(api.SendRequest(), error)
    assert is_perhaps_recorded(api.RespondRequest(), error)


async def test_an_answer_counts_that_names_what_was_there_before() -> None:
    asked = Asked()
    await asked.world.assign()
    # As in a router that took the run over: what was before that is in the log, not in memory.
    asked.world.run.record.validator.resume_at(ANSWERED, 1)
    asked.world.run.fanout.last_sequence = ANSWERED
    asked.world.run.send(to.Accepted())
    asking = asyncio.ensure_future(send(asked.world.run, api.RespondRequest(), b""))
    await asked.world.pause()
    await asked.world.event("log")
    await asked.world.event("result")
    await asked.answer()
    assert api.RespondResponse.FromString(asking.result()).sequence == ANSWERED


@pytest.mark.parametrize("is_first", [True, False], ids=["answer first", "end first"])
async def test_an_answer_about_an_event_that_never_came_does_not_count(is_first: bool) -> None:
    asked = Asked()
    asking = await asked.begin()
    if is_first:
        await asked.answer()
    asked.world.run.send(LOST)
    await asked.world.pause()
    await asked.answer()
    assert asked.world.run.fanout.last_sequence == ANSWERED  # of the result
    error = asking.exception()
    assert isinstance(error, DragomanError)
    assert error.reason is Reason.RUN_FINISHED


@pytest.mark.parametrize("is_first", [True, False], ids=["answer first", "next attempt first"])
async def test_an_answer_of_an_attempt_that_is_over_does_not_count_for_the_next(is_first: bool) -> None:
    asked = Asked()
    world = asked.world
    asking = await asked.begin()
    if is_first:
        await asked.answer()
    await world.event("failed")
    await world.end_attempt()
    await world.pause()
    await world.assign()
    await world.event("started")
    await asked.answer()
    error = asking.exception()
    assert isinstance(error, DragomanError)
    assert error.reason is Reason.ADAPTER_UNAVAILABLE
    assert error.retry_after_s is not None


async def test_an_answer_about_a_run_that_another_router_has_by_then_is_that_ones() -> None:
    asked = Asked()
    asking = await asked.begin()
    await asked.answer()
    asked.world.run.send(to.LeaseLost())
    await asked.world.pause()
    error = asking.exception()
    assert isinstance(error, DragomanError)
    assert error.reason is Reason.ADAPTER_UNAVAILABLE


async def test_an_input_that_is_forbidden_is_refused_before_an_adapter_has_the_run() -> None:
    def forbid() -> None:
        raise DragomanError(Reason.POLICY_DENIED, "not that file")

    world = World()
    asking = asyncio.ensure_future(send(world.run, api.SendRequest(), b"", None, forbid))
    await world.pause()
    assert asking.done()
    error = asking.exception()
    assert isinstance(error, DragomanError)
    assert error.reason is Reason.POLICY_DENIED


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda run: send(run, api.RespondRequest(request_id="q"), b"", 0.0), Reason.REQUEST_NOT_FOUND),
        (lambda run: send(run, api.SendRequest(), b"", 0.0), Reason.RUN_FINISHED),
    ],
    ids=["Respond", "Send"],
)
async def test_what_comes_while_a_run_without_adapter_is_cancelled(
    call: Callable[[Run], Awaitable[object]], reason: Reason
) -> None:
    world = World()
    await world.assign()
    world.run.send(to.CancelRequested())
    assert not states.is_ending(world.run.state)
    with pytest.raises(DragomanError) as error:
        await call(world.run)
    assert error.value.reason is reason
