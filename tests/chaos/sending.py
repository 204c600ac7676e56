"""Who gives a run an input, over whatever is killed meanwhile, until it is known what the run made of it."""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from dragoman.client import Client, DragomanError
from dragoman.protocol.errors import Reason
from dragoman.v1 import event_pb2 as pb

from tests.chaos.oracle import Sent

_ASK_AGAIN = {None, Reason.ADAPTER_UNAVAILABLE, Reason.RUN_LOG_UNAVAILABLE, Reason.DRAINING, Reason.RUN_NOT_FOUND}


class Sender:
    """Sends one input.

    Args:
        run_id: the run.
        adapter: its adapter.
        addresses: of the routers; it goes round while none answers.
        mode: when the agent is to get it.
        text: what to send, beside the name by which the agent notes it.
    """

    def __init__(
        self, run_id: str, adapter: str, addresses: Sequence[str], mode: pb.InputMode.ValueType, text: str
    ) -> None:
        self.sent = Sent(f"in-{secrets.token_hex(6)}")
        self._run_id, self._adapter, self._mode = run_id, adapter, mode
        self._addresses = list(addresses)
        self._text = f"[{self.sent.input_id}] {text}"

    async def send(self, is_over: Callable[[], bool]) -> None:
        """Send it, and again as long as no router knows an answer.

        Args:
            is_over: whether the run has ended, or was refused: who is unknown then never was.
        """
        while True:
            was_over = is_over()
            try:
                self.sent.answers.append(await self._ask())
            except DragomanError as error:
                if error.reason is Reason.RUN_FINISHED or (error.reason is Reason.RUN_NOT_FOUND and was_over):
                    self.sent.answers.append(0)
                    return
                if error.reason not in _ASK_AGAIN:
                    raise
            else:
                return
            self._addresses.append(self._addresses.pop(0))
            await asyncio.sleep(0.1)

    async def _ask(self) -> int:
        async with Client(self._addresses[0]) as client:
            answer = await client.send(
                self._run_id, self._text, mode=self._mode, input_id=self.sent.input_id, adapter=self._adapter
            )
        return answer.sequence
