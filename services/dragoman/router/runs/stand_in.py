"""What the router does for a run at an adapter that does not declare a duty; see ``dragoman.protocol.duties``."""

import asyncio
from typing import Final

from dragoman.protocol.duties import ALL_DUTIES
from dragoman.router.policy.duties import refuse_unsupported, rewritten
from dragoman.router.runs.actor import Run
from dragoman.v1 import adapter_pb2

_ALL: Final = frozenset(ALL_DUTIES)
_MOST_MISSING: Final = 50
"""Values missing in a template that are reported."""


def refuse(run: Run, request: adapter_pb2.ExecuteRequest) -> None:
    """Refuse what the run's adapter cannot honour and would not refuse itself.

    Raises:
        DragomanError: NOT_SUPPORTED, CAPABILITY_MISSING or INVALID_REQUEST.
    """
    description = run.backend.record.description
    if description is not None:
        refuse_unsupported(request, description)


async def request_for(run: Run, request: adapter_pb2.ExecuteRequest) -> adapter_pb2.ExecuteRequest:
    """Return what the run's adapter gets, without what it leaves to a router.

    Raises:
        DragomanError: INVALID_REQUEST: the template cannot be rendered.
    """
    description = run.backend.record.description
    if description is None or _ALL.issubset(description.duties):
        return request
    # Beside the loop: a request may have 16 MiB.
    following, missing = await asyncio.to_thread(rewritten, request, frozenset(description.duties))
    for path in missing[:_MOST_MISSING]:
        message = f"The template's {{{{{path}}}}} is not set; it was replaced by nothing."
        run.notices.warn("template_value_missing", message)
    return following
