"""What the record of a run contains of its request."""

from collections.abc import Iterator

from dragoman.protocol.duties import settings_of
from dragoman.protocol.limits import MAX_ORPHAN_AFTER_S
from dragoman.protocol.secrets import SHORTEST_SECRET, is_plain_word
from dragoman.v1 import adapter_pb2


def orphan_after_s(request: adapter_pb2.ExecuteRequest) -> float:
    """Return how many seconds the run continues without a holder, capped."""
    if not request.HasField("orphan_after"):
        return 0.0
    return min(request.orphan_after.ToNanoseconds() / 1e9, MAX_ORPHAN_AFTER_S)


def safe_labels(request: adapter_pb2.ExecuteRequest) -> dict[str, str]:
    """Return the labels to store and list: a value that contains the token or a variable's value is redacted.

    Variables are those in ``env``, in ``config.env`` and of MCP servers, except for values that are plain words.
    """
    all_values = "\n".join(request.labels.values())
    secrets = {text for text in _variables(request) if not is_plain_word(text)} | {request.auth_token}
    found = [text for text in secrets if len(text) >= SHORTEST_SECRET and text in all_values]
    return {
        name: "[redacted]" if any(secret in value for secret in found) else value
        for name, value in request.labels.items()
    }


def _variables(request: adapter_pb2.ExecuteRequest) -> Iterator[str]:
    yield from request.env.values()
    settings = settings_of(request)
    if "env" in settings.fields:
        yield from (value.string_value for value in settings.fields["env"].struct_value.fields.values())
    for server in request.mcp_servers:
        yield from server.stdio.env.values()
        yield from server.http.headers.values()
