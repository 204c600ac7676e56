"""Jobs for the opencode adapter, without a run."""

from pathlib import Path
from typing import Any

from dragoman.adapters.opencode import adapter
from dragoman.sdk import Job
from dragoman.sdk._job import render_prompt
from dragoman.sdk._sessions import NEW, SessionPlan
from dragoman.v1 import adapter_pb2 as api

NEW_ID = "11111111-1111-4111-8111-111111111111"


def request(cwd: Path, config: dict[str, Any] | None = None, **fields: Any) -> api.ExecuteRequest:
    made = api.ExecuteRequest(run_id="run-1", **({"prompt": "Do it."} | fields))
    made.workspace.cwd = made.workspace.cwd or str(cwd)
    made.config.update(config or {})
    return made


def job_of(made: api.ExecuteRequest, session: SessionPlan = NEW, skills_dir: Path | None = None) -> Job:
    settings = adapter().accept(made)
    prompt, _, _ = render_prompt(made, settings, resumes=session.resumes)
    return Job(
        run_id="run-1",
        attempt=1,
        request=made,
        settings=settings,
        prompt=prompt,
        system_prompt=made.system_prompt,
        instructions=settings.instructions,
        session=session,
        new_session_id=NEW_ID,
        executable="/opt/opencode",
        version="1.18.33",
        run_dir=Path("/run/dir"),
        skills=settings.skills,
        skills_dir=skills_dir,
    )
