"""The agent loop: call the model and run its tool calls, until it makes none."""

import asyncio
import contextlib
import random
from collections.abc import Sequence

from dragoman.adapters.model_api.calls import Calls
from dragoman.adapters.model_api.failures import (
    ServiceError,
    cut,
    failure_of,
    failure_of_stop,
    retry_delay,
    turns_used_up,
)
from dragoman.adapters.model_api.providers import Provider, Service
from dragoman.adapters.model_api.reply import Message, Reply
from dragoman.adapters.model_api.system import system_prompt
from dragoman.adapters.model_api.tools import Tool
from dragoman.sdk import FailureError, FailureInfo, Terminal, Turn
from dragoman.sdk import fields as read
from dragoman.sdk.fields import as_int
from dragoman.sdk.parsing import add_call, context_used
from dragoman.v1 import event_pb2 as pb

DEFAULT_TURNS = 100
"""Answers of the model that a run may have without a setting."""
DEFAULT_RETRIES = 3


class Loop:
    """One run's conversation with the model.

    Args:
        turn: the attempt.
        provider: the provider of the model.
        service: its connection.
        model: the model's ID.
        tools: the tools that the model is offered.
        messages: the conversation so far, the prompt last. The loop adds messages to it.
    """

    def __init__(
        self,
        turn: Turn,
        provider: Provider,
        service: Service,
        model: str,
        tools: Sequence[Tool],
        messages: list[Message],
    ) -> None:
        self.messages = messages
        self._turn = turn
        self._provider = provider
        self._service = service
        self._model = model
        self._tools = tools
        self._system = system_prompt(turn.job)
        self._most_turns = turn.job.settings.max_turns or DEFAULT_TURNS
        self._most_retries = as_int(turn.job.config.get("maxRetries"), DEFAULT_RETRIES)
        self._calls = Calls(turn, [tool.name for tool in tools])
        self._taken = {
            read.text(block, "id") for message in messages for block in read.objects(message, "content")
        } - {""}

    async def go(self) -> None:
        """Continue until the model calls no more tools.

        Raises:
            FailureError: the run failed.
        """
        report = self._turn.report
        for number in range(1, self._most_turns + 1):
            reply = await self._answer(number)
            report.turns = number
            report.summary = reply.text
            failure = failure_of_stop(reply)
            if failure is not None:
                raise FailureError(failure)
            message = reply.message()
            if message is not None:
                self.messages.append(message)
            if not reply.calls:
                report.terminal = Terminal(succeeded=True, subtype=reply.stop_word)
                return
            self.messages.append({"role": "user", "content": await self._calls.run(reply.calls)})
        raise FailureError(turns_used_up(self._most_turns))

    async def _answer(self, number: int) -> Reply:
        """Return the next answer; the call is retried as long as that may help."""
        tries = 0
        while True:
            tries += 1
            reply = Reply(f"m{number}" if tries == 1 else f"m{number}t{tries}", self._taken)
            try:
                await self._receive(reply)
            except ServiceError as error:
                info = failure_of(error)
                delay = retry_delay(error, info, tries, random.random())  # noqa: S311 - no secret
                if delay is None or tries > self._most_retries:
                    raise FailureError(info) from error
                await self._wait(reply, info, tries, delay)
            else:
                self._taken |= {call.id for call in reply.calls}
                return reply
            finally:
                self._count(reply)

    async def _receive(self, reply: Reply) -> None:
        reader = self._provider.reader(reply)
        request = self._provider.arguments(
            self._model, self._system, self.messages, self._tools, self._turn.job.config
        )
        async with contextlib.aclosing(self._service.events(request)) as events:
            async for data in events:
                self._turn.activity()
                self._turn.run.emit_all(reader.take(data))
                self._turn.report.model = reply.model or self._turn.report.model
        if not reply.stop:
            raise cut()

    async def _wait(self, reply: Reply, info: FailureInfo, tries: int, delay_s: float) -> None:
        run = self._turn.run
        run.emit_all(reply.retract())
        state = pb.State(
            phase=pb.RUN_PHASE_RETRYING,
            retry_attempt=tries,
            max_retries=self._most_retries,
            reason=info.message,
            retry_cause=info.kind,
        )
        state.retry_delay.FromNanoseconds(int(delay_s * 1e9))
        run.emit(pb.AgentEvent(state=state))
        self._turn.activity()
        await asyncio.sleep(delay_s)
        run.state(pb.RUN_PHASE_RUNNING)
        self._turn.activity()

    def _count(self, reply: Reply) -> None:
        usage = reply.usage()
        if usage is not None:
            self._turn.run.emit(pb.AgentEvent(usage=usage))
            total = self._turn.report.usage = add_call(self._turn.report.usage, usage)
            total.MergeFrom(pb.Usage(context_used=context_used(usage.tokens)))
