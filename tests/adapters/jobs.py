"""Jobs as the SDK makes them of a request, without a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.sdk import AgentAdapter, Job
from dragoman.sdk._request.job import render_prompt
from dragoman.sdk._request.sessions import NEW, SessionPlan
from dragoman.v1 import adapter_pb2 as api

NEW_ID = "11111111-1111-4111-8111-111111111111"
OLD_ID = "22222222-2222-4222-8222-222222222222"


def request_of(cwd: Path | str = "/", config: Mapping[str, Any] | None = None, **fields: Any) -> api.ExecuteRequest:
    """Return a request for a run, by default in a directory that exists everywhere."""
    run_request = api.ExecuteRequest(run_id="run-1", **({"prompt": "Do it."} | fields))
    run_request.workspace.cwd = run_request.workspace.cwd or str(cwd)
    run_request.config.update(config or {})
    return run_request


def job_of(adapter: AgentAdapter, request: api.ExecuteRequest, session: SessionPlan = NEW, **facts: Any) -> Job:
    """Return the first attempt at a request that the adapter accepts.

    Args:
        adapter: whose job it is.
        request: it is checked first.
        session: what is intended with it.
        facts: what a run finds out, e.g. ``executable`` and ``version``; over what is usual here.

    Raises:
        DragomanError: the adapter refuses the request.
    """
    settings = adapter.accept(request)
    usual: dict[str, Any] = {
        "run_id": "run-1",
        "attempt": 1,
        "request": request,
        "settings": settings,
        "prompt": render_prompt(request, settings, resumes=session.resumes)[0],
        "system_prompt": request.system_prompt,
        "instructions": settings.instructions,
        "session": session,
        "new_session_id": NEW_ID,
        "executable": "",
        "version": "",
        "run_dir": Path("/run/dir"),
        "skills": settings.skills,
        "skills_dir": None,
    }
    return Job(**{**usual, **facts})
