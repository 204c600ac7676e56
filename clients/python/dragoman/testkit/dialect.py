"""The door a wire format of model APIs enters the scripted model server by."""

from collections.abc import Iterator
from typing import Protocol

from dragoman.testkit.conversation import Conversation
from dragoman.testkit.http1 import HttpRequest
from dragoman.testkit.scenarios import Failure, Reply


class Dialect(Protocol):
    """One model API's wire format: requests in, answers out. Stateless."""

    name: str

    def conversation(self, request: HttpRequest) -> Conversation | None:
        """Read a model request; None if the request is none of this dialect's."""

    def aside(self, request: HttpRequest) -> object | None:
        """Return the JSON answer to a side request, such as counting tokens; None if it is none."""

    def events(self, reply: Reply, conversation: Conversation, number: int) -> Iterator[bytes]:
        """Render a streamed reply, one item per stream event; ``number`` makes its ids unique."""

    def whole(self, reply: Reply, conversation: Conversation, number: int) -> object:
        """Render a reply that is not streamed, as its JSON body."""

    def failure(self, failure: Failure, conversation: Conversation) -> object:
        """Render an error answer, as its JSON body."""

    def failure_event(self, failure: Failure, conversation: Conversation) -> bytes:
        """Render an error that is reported inside a stream."""
