"""A parser for agents that print JSON objects, one a line. Pure: lines in, events out."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from dragoman.sdk._encoding.fields import Fields, text
from dragoman.sdk._encoding.json_text import parse_json_object
from dragoman.sdk._encoding.lines import Line
from dragoman.sdk._output.parser import FailureInfo, Output, Report, Stream, Terminal, log_event, outputs_of
from dragoman.sdk._output.retries import Retries
from dragoman.sdk._output.text_items import TextItems
from dragoman.sdk._output.usage import UsageTotals, call_usage
from dragoman.v1 import event_pb2 as pb

Handler: TypeAlias = Callable[[Fields], Iterable[Output] | None]
"""Reads an object; None if it does not know it after all."""


class JsonLinesParser:
    """Understands one attempt: each object goes to the handler of its type.

    What is no JSON object, or one of a type that is not known, becomes a ``log`` event: nothing is lost. A handler
    reads the object with ``sdk.fields``, so that whatever is missing or wrong in it reads as absent and never raises.

    Args:
        handlers: by the objects' type.
        silent: types of objects that say nothing that others do not say.
        other: reads objects of all other types. Without it they are not recognized.
        names_frames: whether events are to say which type of object they come from, as objects are passed on.
        once: see ``TextItems``.
        type_key: the key that holds an object's type.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        silent: Collection[str] = (),
        other: Handler | None = None,
        names_frames: bool = False,
        once: bool = False,
        type_key: str = "type",
    ) -> None:
        self.report = Report()
        self.texts = TextItems(once=once)
        self.usage = UsageTotals()
        self.retries = Retries()
        self.failure: FailureInfo | None = None
        """How the run fails if the output ends so: an agent may try again after an error."""
        self._other = other
        self._handlers = {**dict.fromkeys(silent, _nothing), **handlers}
        self._names_frames = names_frames
        self._type_key = type_key

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""
        frame = parse_json_object(line.data) if stream == "stdout" else None
        if frame is None:
            return [log_event(stream, line)]
        handler = self._handlers.get(text(frame, self._type_key))
        read = (
            partial(self.read, handler, frame) if handler is not None else self._other and partial(self._other, frame)
        )
        return outputs_of(self.report, stream, line, read, self.frame_name(frame) if self._names_frames else "")

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        if self.report.terminal is None and self.failure is not None:
            self.report.terminal = Terminal(succeeded=False, subtype="error", failure=self.failure)
        return list(self.texts.end_all())

    def read(self, handler: Handler, frame: Fields) -> Iterable[Output] | None:
        """Read an object of a known type; override it for what all of them have in common."""
        return handler(frame)

    def session_event(self, session_id: str, model: str = "") -> pb.AgentEvent:
        """Report the agent's session and model, and return the event that says so."""
        self.report.session_id, self.report.model = session_id, model or self.report.model
        return pb.AgentEvent(session=pb.Session(native_id=session_id, model=model))

    def call_event(self, tokens: pb.TokenCounts | None, cost: float | None = None, model: str = "") -> pb.AgentEvent:
        """Add a call of the model to what the run has used, and return the event that says so."""
        call = call_usage(tokens)
        self.report.usage = self.usage.add(call, cost)
        if model:
            call.models.add(model=model).tokens.CopyFrom(call.tokens)
        return pb.AgentEvent(usage=call)

    def frame_name(self, frame: Fields) -> str:
        """Return the agent's own name for an object."""
        return text(frame, self._type_key)


def _nothing(frame: Fields) -> Iterable[Output]:
    del frame
    return ()
