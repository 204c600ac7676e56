"""The checks, one module per topic; importing this registers all of them."""

from dragoman.conformance.checks import (
    attach,
    cancel,
    changes,
    describe,
    errors,
    events,
    input,  # noqa: A004 - the topic
    lifecycle,
    limits,
    output,
    registration,
    reports,
    requests,
    router,
    runs,
    sending,
    sessions,
    settings,
)

__all__ = [
    "attach",
    "cancel",
    "changes",
    "describe",
    "errors",
    "events",
    "input",
    "lifecycle",
    "limits",
    "output",
    "registration",
    "reports",
    "requests",
    "router",
    "runs",
    "sending",
    "sessions",
    "settings",
]
