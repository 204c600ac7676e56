"""What an agent says of its session, piece by piece: an event whenever that has changed. Pure."""

from collections.abc import Iterator

from dragoman.sdk._output.parser import notice_event
from dragoman.v1 import event_pb2 as pb


class SessionFacts:
    """The session of one attempt, emitted once its ID is known."""

    def __init__(self) -> None:
        self.now = pb.Session()
        """What is known. It may be changed."""
        self._emitted = pb.Session()

    def news(self, **changed: str) -> Iterator[pb.AgentEvent]:
        """Yield the session if its ID is known, and it is not what was emitted last; note changed fields before."""
        for name, value in changed.items():
            setattr(self.now, name, value)
        if self.now.native_id and self.now != self._emitted:
            self._emitted.CopyFrom(self.now)
            yield pb.AgentEvent(session=self.now)


def version_notice(program: str, version: str, tested: str) -> Iterator[pb.AgentEvent]:
    """Yield a notice if a program's version is not the one that the adapter was written for and is tested with."""
    if version != tested:
        known = f"{program} {version or 'of an unknown version'}"
        message = f"{known} is not the version this adapter is tested with ({tested})."
        hint = "Messages that are not recognized are shown as log lines; the run continues."
        yield notice_event("version_untested", message, hint=hint)
