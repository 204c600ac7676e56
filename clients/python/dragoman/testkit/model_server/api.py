"""The interface of a model API's wire format to the scripted model server."""

import json
from collections.abc import Iterator, Mapping
from typing import Protocol

from dragoman.testkit.model_server.conversation import Conversation
from dragoman.testkit.model_server.http1 import HttpRequest
from dragoman.testkit.model_server.script import Failure, Reply
from msgspec import Struct, field


class ErrorAnswer(Struct, frozen=True):
    """An error as it goes over the wire.

    Attributes:
        status: HTTP status.
        body: The JSON body.
        headers: Headers that belong to it, such as ``retry-after``.
    """

    status: int
    body: object
    headers: Mapping[str, str] = field(default_factory=dict)


class ModelApi(Protocol):
    """One model API's wire format: requests in, answers out. Stateless.

    In the replies that it renders, placeholders are filled and tools have the agent's own names.
    """

    name: str

    def conversation(self, request: HttpRequest) -> Conversation | None:
        """Read a model request; None if the request is not for this API."""

    def aside(self, request: HttpRequest) -> object | None:
        """Return the JSON answer to a side request, such as counting tokens; None if it is none."""

    def events(
        self, reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
    ) -> Iterator[bytes]:
        """Render a streamed reply, one item per stream event; ``number`` makes its ids unique.

        With ``ending``, the stream ends with that error.
        """

    def whole(self, reply: Reply, conversation: Conversation, number: int) -> object:
        """Render a reply that is not streamed, as its JSON body."""

    def failure(self, failure: Failure, conversation: Conversation) -> ErrorAnswer:
        """Render an error as the vendor does."""


def cut(text: str, size: int) -> list[str]:
    """Cut a text into pieces of ``size`` characters; 0 leaves it whole."""
    if size <= 0:
        return [text]
    return [text[at : at + size] for at in range(0, len(text), size)]


def flat(content: object) -> str:
    """Return the text of a message's content, which is a string or a list of parts; other parts are left out."""
    return "\n".join(texts(content))


def texts(content: object) -> list[str]:
    """Return the texts of a message's content, one per part."""
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part]


def sse(data: object, event: str = "") -> bytes:
    """Frame one server-sent event, with a name if ``event`` is given; non-ASCII characters are not escaped."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
