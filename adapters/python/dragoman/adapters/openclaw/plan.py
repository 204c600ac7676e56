"""From a job to the requests to the gateway. Pure.

The program that is started is the bridge (see ``ws_bridge``): the frames go in as lines, and what the gateway sends
comes out as lines. A session's key holds its id, so that the id alone is enough to find it again.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dragoman.adapters.openclaw import ws_bridge
from dragoman.sdk import CancelStep, FailureInfo, Job, Plan, Report
from dragoman.sdk.fields import JsonValue, as_string, compact
from dragoman.sdk.skills import skill_prompt
from dragoman.v1 import event_pb2 as pb

OPEN: Final = "open"
ADJUST: Final = "adjust"
TURN: Final = "turn"
STOP: Final = "stop"
QUESTION: Final = "question"
"""The IDs of the requests."""

DEFAULT_AGENT: Final = "main"
_SKILLS: Final = "These skills are yours to use. Where one fits the task, do as it says."


def plan_run(job: Job) -> Plan:
    """Return how to run OpenClaw for a job."""
    return Plan(
        argv=(sys.executable, "-I", str(Path(ws_bridge.__file__)), run_key(job), session_key(job)),
        stdin=opening(job),
        keep_stdin_open=True,
        notes=tuple(_notes(job)),
        notices=tuple(_notices(job)),
        cancel=(CancelStep(signal=None, write=stop(session_key(job), run_key(job)), share=0.7), CancelStep()),
    )


def native_id(job: Job) -> str:
    """Return the id of the session that the attempt is in."""
    resumes = job.session.disposition == pb.SESSION_DISPOSITION_RESUME
    return job.session.native_id if resumes else job.new_session_id


def run_key(job: Job) -> str:
    """Return what the gateway calls the turn: under a name that it knows it begins no other one."""
    return f"dragoman-{job.run_id}-{job.attempt}" + (f".{job.turn}" if job.turn > 1 else "")


def session_key(job: Job, session_id: str = "") -> str:
    """Return what the gateway calls a session; the attempt's own without an id."""
    agent = as_string(job.config.get("agent"), "") or DEFAULT_AGENT
    return f"agent:{agent}:dragoman-{session_id or native_id(job)}"


def session_event(job: Job, report: Report) -> pb.AgentEvent:
    """Return the session event of an attempt, and note its session."""
    report.session_id = native_id(job)
    session = pb.Session(native_id=report.session_id, agent_version=job.version, model=report.model)
    session.skills.extend(skill.name for skill in job.skills)
    return pb.AgentEvent(session=session)


def lost_session(job: Job) -> FailureInfo:
    """Return the failure of a session to resume that does not exist."""
    message = f"OpenClaw knows no session {job.session.native_id}."
    return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="openclaw_session_unknown")


def opening(job: Job) -> bytes:
    """Return the request that creates the session, or looks it up: resuming an unknown one would create it."""
    key = session_key(job)
    if job.session.disposition == pb.SESSION_DISPOSITION_RESUME:
        return request(OPEN, "sessions.describe", {"key": key})
    params: dict[str, JsonValue] = {"key": key}
    if job.session.disposition == pb.SESSION_DISPOSITION_FORK:
        params |= {"parentSessionKey": session_key(job, job.session.native_id), "fork": True}
        params["forkFrom"] = "last-completed"  # else a turn in progress would be the copy's only one
    if job.settings.cwd:
        params["cwd"] = job.settings.cwd
    return request(OPEN, "sessions.create", {**params, **_choices(job)})


def adjusting(job: Job) -> bytes:
    """Return the request that gives a resumed session the mode of this run, and its model if one is requested."""
    choices = {"permissionMode": None, **_choices(job)}
    return request(ADJUST, "sessions.patch", {"key": session_key(job), **choices})


def turn(job: Job) -> bytes:
    """Return the request that starts the turn."""
    params: dict[str, JsonValue] = {
        "sessionKey": session_key(job),
        "message": message(job),
        "idempotencyKey": run_key(job),
        "deliver": False,  # to a messenger
    }
    if job.images:
        params["attachments"] = [
            {"type": "image", "mimeType": image.media_type, "fileName": image.name, "content": image.base64}
            for image in job.images
        ]
    system = system_text(job)
    if system:
        params["extraSystemPrompt"] = system
    thinking = thinking_level(job)
    if thinking:
        params["thinking"] = thinking
    return request(TURN, "agent", params)


def thinking_level(job: Job) -> str:
    """Return how much the model is to think; empty if OpenClaw's configuration decides."""
    return as_string(job.config.get("thinking"), "") or as_string(job.config.get("effort"), "")


def next_question(job: Job) -> bytes:
    """Return the request that is answered when a tool is about to change something."""
    return request(QUESTION, "dragoman.question", {"sessionKey": session_key(job)})


def stop(key: str, run: str) -> bytes:
    """Return the request that stops a turn; the programs of its tools are ended with it."""
    return request(STOP, "sessions.abort", {"key": key, "runId": run})


def request(request_id: str, method: str, params: JsonValue) -> bytes:
    """Return a request as a line."""
    return compact({"type": "req", "id": request_id, "method": method, "params": params}).encode() + b"\n"


def _choices(job: Job) -> dict[str, JsonValue]:
    choices: dict[str, JsonValue] = {}
    if job.settings.model:
        choices["model"] = job.settings.model
    if job.permissions.native_mode:
        choices["permissionMode"] = job.permissions.native_mode
    return choices


def message(job: Job) -> str:
    """Return the prompt; one that begins with a slash gets a blank before it, else it would be a command."""
    return f" {job.prompt}" if job.prompt.startswith("/") else job.prompt


def system_text(job: Job) -> str:
    """Return what goes behind OpenClaw's own system prompt; may be empty."""
    return "\n\n".join(_system(job))


def _system(job: Job) -> Iterator[str]:
    if job.system_prompt:
        yield job.system_prompt
    if job.instructions is not None:
        yield job.instructions.with_directive()
    if job.skills:
        yield _SKILLS
        yield from (skill_prompt(skill) for skill in job.skills)


def _notes(job: Job) -> Iterator[str]:
    yield f"session {session_key(job)}"
    if job.prompt.startswith("/"):
        yield "a blank is put before the prompt, so that it is no command of OpenClaw"
    if job.skills:
        yield "skills go into the system prompt"


def _notices(job: Job) -> Iterator[tuple[str, str]]:
    if job.permissions.native_mode:
        yield (
            "native_mode",
            f"OpenClaw's permission mode {job.permissions.native_mode} decides first; what it allows is asked about"
            " as the run's policy says, unless permissions.auto_approve is set.",
        )
