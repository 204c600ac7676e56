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


def has_rpc(version: str) -> bool:
    """Return whether a version is run in RPC mode; one that is not known is."""
    return not version or version_of(version) >= SINCE


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


class Changes:
    """The inputs and the changes of its model that pi is given while it works."""

    def __init__(self) -> None:
        self._inputs = PendingInputs()
        self.provider = ""
        """Whose model the present one is."""

    @property
    def waits(self) -> bool:
        """Whether pi has an input that it has not begun with: another turn follows then."""
        return self._inputs.waits

    def steer(self, steering: Steering) -> Output:
        """Give pi an input: for its present turn, or for another one if that is over."""
        self._inputs.add(steering.input_id, steering)
        name = f"steer {steering.input_id}"
        return Write(_prompt(name, steering.prompt, steering.images, streamingBehavior="steer"))

    def update(self, update: Update) -> Output:
        """Give pi another model: ``provider/id``, or one of the present provider."""
        provider, slash, model = update.model.partition("/")
        names = (provider, model) if slash else (self.provider, update.model)
        return Write(command("set_model", f"update {update.update_id}", provider=names[0], modelId=names[1]))

    def noted(self, message: Fields) -> list[Output]:
        """Take a user's message, which may be an input. It says more than that if pi had to change its images."""
        words = "".join(text(part, "text") for part in objects(message, "content"))
        return self._inputs.taken(self._inputs.first(lambda steering: words.startswith(as_text(steering.prompt))))

    def answered(self, frame: Fields) -> Iterator[Output]:
        """Take the answer to a command."""
        kind, _, name = text(frame, "id").partition(" ")
        is_done = frame.get("success") is True
        if kind == "steer" and not is_done:
            yield from self._inputs.refused(name)
        elif kind == "update":
            self.provider = text(inner(frame, "data"), "provider") or self.provider
            yield Updated(name) if is_done else NotUpdated(name, text(frame, "error"))


class PiRpcParser(PiParser):
    """Understands one attempt in RPC mode, and gives pi what comes while it works."""

    def __init__(self, roots: Sequence[str] = ()) -> None:
        further = {
            "response": self._answered,
            "message_start": self._message_begun,
            "compaction_start": self._compacting,
            "compaction_end": self._compacting,
            "agent_end": lambda _: (),  # others may follow
            "agent_settled": self._settled,
            "extension_ui_request": _cancelled,
            "extension_error": _extension_failed,
        }
        super().__init__(roots, further)
        self._changes = Changes()
        self._is_running = self._is_compacting = self._is_interrupted = False

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        """Give pi an input once it has the prompt; while it compacts the conversation it rejects any."""
        return [self._changes.steer(steering)] if self._takes_commands and not self._is_compacting else None

    def update(self, update: Update) -> Iterable[Output] | None:
        """Give pi another model once it has the prompt."""
        return [self._changes.update(update)] if self._takes_commands else None

    def interrupt(self) -> Iterable[Output]:
        """Ask pi to stop what it does."""
        self._is_interrupted = True
        return [Write(abort()) if self._is_running else CloseInput()]

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        self.report.terminal = self.report.terminal or self.report.deferred
        return super().finish()

    @property
    def _takes_commands(self) -> bool:
        return self._is_running and self.report.terminal is None and not self._is_interrupted

    def _answered(self, frame: Fields) -> Iterator[Output]:
        name, data = text(frame, "id"), inner(frame, "data")
        if name == "get_state":
            self._changes.provider = text(inner(data, "model"), "provider")
            yield self.session_event(text(data, "sessionId"))
        elif name == "prompt" and frame.get("success") is True:
            yield Write(command("get_state", "prompted"))
        elif name == "prompt":
            error = text(frame, "error")
            failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, error, "pi_prompt", (error,))
            self.report.terminal = Terminal(succeeded=False, subtype="error", failure=failure)
        elif name == "prompted" and not (data.get("isStreaming") is True or self._is_running):
            yield CloseInput()  # an extension took the prompt for itself
        yield from self._changes.answered(frame)
        if self.report.deferred is not None and not self._changes.waits:  # no turn follows after all
            self.report.terminal, self.report.deferred = self.report.deferred, None

    def _settled(self, _: Fields) -> Iterator[Output]:
        failure = self.failure
        if failure is None and not self._message:
            yield CloseInput()
            return
        subtype = "" if failure is None else "error"
        ended = Terminal(failure is None, subtype, failure, interrupted=self._is_interrupted and failure is not None)
        if self._changes.waits and not self._is_interrupted:
            self.report.deferred = ended
        else:
            self.report.terminal, self.report.deferred = ended, None

    def _message_begun(self, frame: Fields) -> Iterator[Output]:
        yield from self._begun(frame)
        message = inner(frame, "message")
        if text(message, "role") == "user":
            yield from self._changes.noted(message) if self._is_running else ()  # the first one is the prompt
            self._is_running = True

    def _compacting(self, frame: Fields) -> Iterable[Output]:
        self._is_compacting = text(frame, "type") == "compaction_start"
        return compaction(frame)


def _cancelled(frame: Fields) -> Iterable[Output]:
    """Take ``extension_ui_request``: cancel a question, and leave alone what only a terminal shows."""
    if text(frame, "method") in _QUESTIONS:
        answer = {"type": "extension_ui_response", "id": text(frame, "id"), "cancelled": True}
        yield Write(json.dumps(answer).encode() + b"\n")


def _extension_failed(frame: Fields) -> Iterable[Output]:
    yield notice_event("extension_failed", f"An extension of pi failed: {text(frame, 'error')}")
