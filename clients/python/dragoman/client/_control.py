"""Calls for the run of a stream."""

from collections.abc import Iterable

from dragoman.client._channel import Channel
from dragoman.client._requests import optional_duration, update_request
from dragoman.protocol.identity import new_input_id
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb


class RunControl:
    """Cancels a run, answers it, changes it, and gives it inputs."""

    def __init__(self, channel: Channel, attach: api.AttachRequest, timeout_s: float | None) -> None:
        self._channel = channel
        self._attach = attach
        self._timeout = timeout_s

    @property
    def run_id(self) -> str:
        """The run's ID."""
        return self._attach.run_id

    async def cancel(self, *, grace_s: float | None = None, reason: str = "") -> api.CancelResponse:
        """Cancel the run and wait until its result is recorded; the events can still be read.

        Args:
            grace_s: seconds that the agent gets to stop by itself; ``None`` for the run's own, 0 kills it now.
            reason: why, for people.

        Raises:
            DragomanError: the call failed; RUN_NOT_FOUND if there is no such run.
        """
        grace = optional_duration(grace_s, "grace")
        request = api.CancelRequest(run_id=self.run_id, reason=reason, adapter=self._attach.adapter, grace=grace)
        return await self._channel.answer(self._channel.adapter.Cancel(request))

    async def respond(self, request_id: str, answer: pb.InputAnswer, *, responder: str = "") -> api.RespondResponse:
        """Answer an ``input_request`` of this run.

        Args:
            request_id: the request's ID.
            answer: the answer, of the kind that the request asks for.
            responder: who answers, for the record.

        Raises:
            DragomanError: the answer is invalid or too late, or another one was given before.
        """
        request = api.RespondRequest(
            run_id=self.run_id,
            request_id=request_id,
            answer=answer,
            responder=responder,
            adapter=self._attach.adapter,
        )
        return await self._channel.answer(self._channel.adapter.Respond(request, timeout=self._timeout))

    async def send(
        self,
        text: str,
        *,
        mode: pb.InputMode.ValueType = pb.INPUT_MODE_QUEUE,
        attachments: Iterable[api.Attachment] = (),
        input_id: str = "",
        sender: str = "",
    ) -> api.SendResponse:
        """Give this run an input while its agent works; see `Client.send`."""
        request = api.SendRequest(
            run_id=self.run_id,
            text=text,
            mode=mode,
            input_id=input_id or new_input_id(),
            attachments=attachments,
            sender=sender,
            adapter=self._attach.adapter,
        )
        return await self._channel.answer(self._channel.adapter.Send(request, timeout=self._timeout))

    async def update(self, *, model: str = "", permission_mode: str = "", sender: str = "") -> api.UpdateRunResponse:
        """Change the model or the permission mode of this run while its agent works; see `Client.update_run`."""
        request = update_request(self.run_id, model, permission_mode)
        request.sender, request.adapter = sender, self._attach.adapter
        return await self._channel.answer(self._channel.adapter.UpdateRun(request, timeout=self._timeout))
