"""What the record of a run contains of its request."""

from dragoman.protocol.limits import MAX_ORPHAN_AFTER_S
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.protocol.secrets import SHORTEST_SECRET
from dragoman.v1 import adapter_pb2


def orphan_after_s(request: adapter_pb2.ExecuteRequest) -> float:
    """Return how many seconds the run continues without a holder, capped."""
    if not request.HasField("orphan_after"):
        return 0.0
    return min(request.orphan_after.ToNanoseconds() / 1e9, MAX_ORPHAN_AFTER_S)


def safe_labels(request: adapter_pb2.ExecuteRequest) -> dict[str, str]:
    """Return the labels to store and list: a value that contains a secret of the request is redacted."""
    labels = dict(request.labels)
    secrets = [text for text in request_secrets(request) if len(text) >= SHORTEST_SECRET] if labels else []
    return {
        name: "[redacted]" if any(secret in value for secret in secrets) else value for name, value in labels.items()
    }
