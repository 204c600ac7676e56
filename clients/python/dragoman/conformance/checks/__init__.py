"""The checks, one module per topic; importing this registers all of them."""

from dragoman.conformance.checks import (  # noqa: F401 - to be registered
    agents,
    attach,
    cancel,
    changes,
    describe,
    errors,
    events,
    files,
    input,  # noqa: A004 - the topic
    lifecycle,
    limits,
    missing,
    output,
    registration,
    reports,
    requests,
    router,
    runs,
    sending,
    sessions,
    settings,
    updating,
)
