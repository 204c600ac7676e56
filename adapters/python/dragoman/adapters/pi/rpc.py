"""pi's RPC mode: commands on its standard input, each answered with its ID; it stays until that is closed. Pure.

It reads inputs between two calls of its model. One that comes after the last call begins another turn of the same
process. What extensions ask in this mode is cancelled.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dragoman.adapters.pi.parse import PiParser, compaction
from dragoman.sdk import CloseInput, FailureInfo, Output, Terminal, Write
from dragoman.sdk.detection import version_of
from dragoman.sdk.fields import Fields, inner, objects, text
from dragoman.sdk.parsing import NotUpdated, PendingInputs, Steering, Update, Updated, notice_event
from dragoman.sdk.run import AttachedFile
from dragoman.v1 import event_pb2 as pb

SINCE: Final = (0, 84, 3)
"""The first version that leaves the user's settings as they are where a run changes its model.

0.80.4 is the first to report that it has settled."""
_QUESTIONS: Final = frozenset({"select", "confirm", "input", "editor"})


def has_rpc(version: str, extra_args: Iterable[str] = ()) -> bool:
    """Return whether pi is run in RPC mode: not with arguments that it rejects there, nor in a version not known."""
    if any(word == "--mode" or word.startswith("@") for word in extra_args):
        return False
    return bool(version) and version_of(version) >= SINCE


def command(kind: str, command_id: str = "", **members: object) -> bytes:
    """Return the line of a command; its answer has the ID, by default its kind."""
    return json.dumps({"id": command_id or kind, "type": kind, **members}).encode() + b"\n"


def opening(prompt: str, images: Iterable[AttachedFile]) -> bytes:
    """Return the lines that ask for the session and send the prompt."""
    return command("get_state") + _prompt("prompt", prompt, images)


def abort() -> bytes:
    """Return the lines that stop pi; what was queued would begin another turn."""
    return command("clear_queue") + command("abort")


def as_text(prompt: str) -> str:
    """Return the prompt as pi gets it: a slash at its beginning is text."""
    return f" {prompt}" if prompt.startswith("/") else prompt


def _prompt(command_id: str, prompt: str, images: Iterable[AttachedFile], **members: object) -> bytes:
    attached = [{"type": "image", "data": image.base64, "mimeType": image.media_type} for image in images]
    return command(
        "prompt", command_id, message=as_text(prompt), **({"images": attached} if attached else {}), **members
    )


class SentCommands:
    """The commands that pi was sent while it works, for inputs and changes of its model, and what becomes of each."""

    def __init__(self) -> None:
        self._inputs = PendingInputs()
        self._confirmed: list[str] = []
        """Inputs that pi has taken before its turn was over: queued, or given to an extension that keeps them."""
        self._is_queued = False
        """Whether pi has any in its queue."""
        self._second: dict[str, Output] = {}
        """By change, what pi is asked for next if it rejects the first name of a model."""
        self.provider = ""
        """Whose model the present one is."""

    @property
    def waits(self) -> bool:
        """Whether pi may have an input that it has not begun with: another turn may follow then."""
        return bool(self._inputs.first(lambda one: self._is_queued or one.input_id not in self._confirmed))

    def steer(self, steering: Steering) -> Output:
        """Give pi an input: for its present turn, or for another one if that is over."""
        self._inputs.add(steering.input_id, steering)
        name = f"steer {steering.input_id}"
        return Write(_prompt(name, steering.prompt, steering.images, streamingBehavior="steer"))

    def update(self, update: Update) -> Output:
        """Give pi another model: one of the present provider, whose IDs may have a slash, else ``provider/id``."""
        provider, slash, model = update.model.partition("/")
        first = _set_model(update, self.provider, update.model)
        if slash:
            self._second[update.update_id] = _set_model(update, provider, model)
        return first

    def noted(self, message: Fields, *, begins_turn: bool) -> list[Output]:
        """Handle a user's message, which may be an input.

        It says more than that if pi had to change its images, and anything if an extension has changed it. The one
        that begins another turn is an input in any case.
        """
        words = "".join(text(part, "text") for part in objects(message, "content"))
        name = self._inputs.first(lambda steering: words.startswith(as_text(steering.prompt)))
        return self._inputs.taken(name or (self._inputs.first(lambda _: True) if begins_turn else ""))

    def queue_changed(self, frame: Fields) -> Iterable[Output]:
        """Note what pi has in its queue."""
        self._is_queued = bool(frame.get("steering"))
        return ()

    def used(self) -> Iterator[Output]:
        """Handle the end of all turns: what pi has confirmed it has used, if perhaps as an extension made it."""
        for name in self._confirmed:
            yield from self._inputs.taken(name)

    def answered(self, frame: Fields, *, is_over: bool) -> Iterator[Output]:
        """Handle the answer to a command; ``is_over``: pi's turn is."""
        kind, _, name = text(frame, "id").partition(" ")
        is_done, data = frame.get("success") is True, inner(frame, "data")
        if kind == "steer" and not is_done:
            yield from self._inputs.refused(name)
        elif kind == "steer" and not is_over:  # else another turn begins
            self._confirmed.append(name)
        elif kind == "update":
            second = self._second.pop(name, None)
            if is_done:
                self.provider, model = text(data, "provider") or self.provider, text(data, "id")
                yield Updated(name, f"{self.provider}/{model}" if model else "")
            else:
                yield second or NotUpdated(name, text(frame, "error"))


def _set_model(update: Update, provider: str, model: str) -> Output:
    return Write(command("set_model", f"update {update.update_id}", provider=provider, modelId=model))


class PiRpcParser(PiParser):
    """Understands one attempt in RPC mode, and gives pi what comes while it works."""

    def __init__(self, roots: Sequence[str] = ()) -> None:
        self._sent = SentCommands()
        further = {
            "response": self._response,
            "compaction_start": self._compaction,
            "compaction_end": self._compaction,
            "agent_end": lambda _: (),  # others may follow
            "queue_update": self._sent.queue_changed,
            "agent_settled": self._agent_settled,
            "extension_ui_request": _cancelled,
            "extension_error": _extension_failed,
        }
        super().__init__(roots, further)
        self._is_running = self._is_compacting = self._is_interrupted = False

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        """Give pi an input once it has the prompt; while it compacts the conversation it rejects any."""
        return [self._sent.steer(steering)] if self._takes_commands and not self._is_compacting else None

    def update(self, update: Update) -> Iterable[Output] | None:
        """Give pi another model once it has the prompt."""
        return [self._sent.update(update)] if self._takes_commands else None

    def interrupt(self) -> Iterable[Output]:
        """Ask pi to stop what it does."""
        self._is_interrupted = True
        return [Write(abort()) if self._is_running and self.report.deferred is None else CloseInput()]

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        self.report.terminal = self.report.terminal or self.report.deferred
        return super().finish()

    @property
    def _takes_commands(self) -> bool:
        return self._is_running and self.report.terminal is None and not self._is_interrupted

    def _response(self, frame: Fields) -> Iterator[Output]:
        name, data = text(frame, "id"), inner(frame, "data")
        if name == "get_state":
            self._sent.provider = text(inner(data, "model"), "provider")
            yield self.session_event(text(data, "sessionId"))
        elif name == "prompt" and frame.get("success") is True:
            yield Write(command("get_state", "prompted"))
        elif name == "prompt":
            error = text(frame, "error")
            failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, error, "pi_prompt", (error,))
            self.report.terminal = Terminal(succeeded=False, subtype="error", failure=failure)
        elif name == "prompted" and not (data.get("isStreaming") is True or self._is_running):
            yield CloseInput()  # an extension took the prompt for itself
        deferred = self.report.deferred
        yield from self._sent.answered(frame, is_over=deferred is not None)
        if deferred is not None:
            yield from self._end_turn(deferred)  # perhaps no turn follows after all

    def _agent_settled(self, _: Fields) -> Iterator[Output]:
        failure = self.failure
        if failure is None and not self._message:
            yield CloseInput()
            return
        subtype = "" if failure is None else "error"
        ended = Terminal(failure is None, subtype, failure, interrupted=self._is_interrupted and failure is not None)
        yield from self._end_turn(ended)

    def _end_turn(self, ended: Terminal) -> Iterator[Output]:
        """Note how the turn has ended: for good, or unless another one begins with an input."""
        if self._sent.waits and not self._is_interrupted:
            self.report.deferred = ended
            return
        yield from () if self._is_interrupted else self._sent.used()
        self.report.terminal, self.report.deferred = ended, None

    def _message_start(self, frame: Fields) -> Iterator[Output]:
        yield from super()._message_start(frame)
        message = inner(frame, "message")
        if text(message, "role") == "user":
            begins_turn = self.report.deferred is not None
            if self._is_running:  # the first one is the prompt
                yield from self._sent.noted(message, begins_turn=begins_turn)
            self._is_running = True

    def _compaction(self, frame: Fields) -> Iterable[Output]:
        self._is_compacting = text(frame, "type") == "compaction_start"
        return compaction(frame)


def _cancelled(frame: Fields) -> Iterable[Output]:
    """Handle ``extension_ui_request``: cancel a question, and leave alone what only a terminal shows."""
    if text(frame, "method") in _QUESTIONS:
        answer = {"type": "extension_ui_response", "id": text(frame, "id"), "cancelled": True}
        yield Write(json.dumps(answer).encode() + b"\n")


def _extension_failed(frame: Fields) -> Iterable[Output]:
    yield notice_event("extension_failed", f"An extension of pi failed: {text(frame, 'error')}")
