"""The checks, one module per topic; importing this registers all of them."""

from dragoman.conformance.checks import (
    attach,
    cancel,
    describe,
    errors,
    events,
    input,  # noqa: A004 - the topic
    lifecycle,
    limits,
    output,
    requests,
    runs,
    sessions,
)

__all__ = [
    "attach",
    "cancel",
    "describe",
    "errors",
    "events",
    "input",
    "lifecycle",
    "limits",
    "output",
    "requests",
    "runs",
    "sessions",
]
