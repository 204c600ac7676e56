"""Jobs for the OpenClaw adapter, without a run."""

from pathlib import Path
from typing import Any

from dragoman.adapters.openclaw import adapter
from dragoman.sdk import Job
from dragoman.sdk._job import render_prompt
from dragoman.sdk._sessions import NEW, SessionPlan
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

ADAPTER = adapter()
NEW_ID = "11111111-1111-4111-8111-111111111111"
OLD_ID = "22222222-2222-4222-8222-222222222222"
RESUMED = SessionPlan(pb.SESSION_DISPOSITION_RESUME, native_id=OLD_ID)
COPIED = SessionPlan(pb.SESSION_DISPOSITION_FORK, native_id=OLD_ID)


def request(config: dict[str, Any] | None = None, **fields: Any) -> api.ExecuteRequest:
    made = api.ExecuteRequest(run_id="run-1", **({"prompt": "Do it."} | fields))
    made.workspace.cwd = "/"
    made.config.update(config or {})
    return made


def job_of(made: api.ExecuteRequest, session: SessionPlan = NEW) -> Job:
    settings = ADAPTER.accept(made)
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
        executable="/opt/openclaw",
        version="2026.9.6",
        run_dir=Path("/run/dir"),
        skills=settings.skills,
        skills_dir=None,
    )
