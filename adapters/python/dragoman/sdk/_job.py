"""What a command-line adapter's pure pieces see, and what they plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals

from dragoman.sdk._config import as_string
from dragoman.sdk._environment import EnvironmentInputs
from dragoman.sdk._framing import Framing
from dragoman.sdk._json import JsonValue
from dragoman.sdk._sessions import SessionPlan
from dragoman.sdk._settings import Instructions, Settings
from dragoman.sdk._skill_strategy import SkillStrategy
from dragoman.sdk._skills import SkillSource
from dragoman.sdk._template import DEFAULT_PROMPT, render, template_data
from dragoman.sdk._values import struct_to_dict
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt, as far as an adapter may know it. Everything is checked and rendered."""

    run_id: str
    attempt: int
    request: adapter_pb2.ExecuteRequest
    settings: Settings
    prompt: str
    """What the agent is told, bootstrap text included."""
    system_prompt: str
    instructions: Instructions | None
    session: SessionPlan
    new_session_id: str
    """A UUID, for agents that take their session's id."""
    executable: str
    """Absolute, or the bare name if it was not found."""
    version: str
    """The agent's version. Empty if unknown."""
    run_dir: Path
    """Private to this attempt; removed afterwards."""
    skills: Sequence[SkillSource]
    skills_dir: Path | None
    """Where the skills were laid out, as the adapter's ``skill_layout`` says. None without skills."""
    skill_strategy: SkillStrategy = SkillStrategy.PLAN
    """The way they go."""

    @property
    def config(self) -> Mapping[str, JsonValue]:
        """The checked ``config``."""
        return self.settings.config

    @property
    def permissions(self) -> pb.Permissions:
        """What the agent may do."""
        return self.settings.permissions

    @property
    def template_values(self) -> dict[str, JsonValue]:
        """What the caller's templates can name, for an adapter that has templates of its own. No secrets."""
        return _template_data(self.request, self.settings)

    @property
    def interactive(self) -> bool:
        """Whether somebody is there to answer."""
        return self.settings.permissions.interactive


@dataclass(frozen=True, slots=True)
class CancelStep:
    """One way to ask an agent to stop: bytes for its standard input, a signal for its leader, or both."""

    signal: Signals | None = SIGTERM
    write: bytes = b""
    interrupts: bool = False
    """The parser knows what to write, as the agent has told it: see ``Interrupts``."""
    share: float = 1.0
    """The share of the grace that this step gets before the next; the last step gets what is left."""


TERMINATE: tuple[CancelStep, ...] = (CancelStep(SIGTERM),)
"""SIGTERM, then the end of the grace."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run the agent. Pure data; the run loop does the rest."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    keep_stdin_open: bool = False
    """Whether answers follow on standard input. Else it is closed after ``stdin``."""
    framing: Framing = "lines"
    """How standard output is cut into what the parser gets as lines."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The agent's own variables. ``config.env`` and ``env`` win over them."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to lay out, by path relative to ``run_dir``; mode 0600."""
    workspace_files: Mapping[str, bytes] = field(default_factory=dict)
    """Files for the workspace, by path relative to it: there for the time of the attempt, if the caller allows it by
    ``config.placeInWorkspace``; else left out, which is told."""
    notes: tuple[str, ...] = ()
    """Decisions in words, for people."""
    notices: tuple[tuple[str, str], ...] = ()
    """Code and message of warnings to emit after ``started``."""
    cancel: tuple[CancelStep, ...] = TERMINATE


def render_prompt(
    request: adapter_pb2.ExecuteRequest, settings: Settings, *, resumes: bool, skills: str = ""
) -> tuple[str, dict[str, int], tuple[str, ...]]:
    """Return the prompt, the sizes of its sections in bytes, and paths that were missing in the caller's templates.

    The bootstrap text goes before it in new sessions only: a resumed one has had it. So does what is handed over
    from an earlier session; that is somebody's words and no template. ``skills`` are those that go into the
    prompt, as text; they go into that of every run, as each has its own.
    """
    data = _template_data(request, settings)
    missing: list[str] = []
    sizes: dict[str, int] = {}

    def fill(name: str, template: str) -> str:
        rendered = render(template, data)
        if template is not DEFAULT_PROMPT:  # nobody wrote that one here, so nobody can have forgotten a value
            missing.extend(rendered.missing)
        sizes[name] = len(rendered.text.encode())
        return rendered.text

    sections: list[str] = []
    bootstrap = as_string(settings.config.get("bootstrapPromptTemplate"), "")
    if bootstrap and not resumes:
        sections.append(fill("bootstrap", bootstrap))
    if request.session.handover and not resumes:
        sizes["handover"] = len(request.session.handover.encode())
        sections.append(request.session.handover)
    if skills:
        sizes["skills"] = len(skills.encode())
        sections.append(skills)
    if request.WhichOneof("task") == "prompt":
        sizes["prompt"] = len(request.prompt.encode())
        sections.append(request.prompt)
    else:
        configured = as_string(settings.config.get("promptTemplate"), "")
        sections.append(fill("prompt", request.prompt_template or configured or DEFAULT_PROMPT))
    return "\n\n".join(sections), sizes, tuple(dict.fromkeys(missing))


def _template_data(request: adapter_pb2.ExecuteRequest, settings: Settings) -> dict[str, JsonValue]:
    agent = request.agent
    return template_data(
        run_id=request.run_id,
        agent={
            "id": agent.id,
            "companyId": agent.company_id,
            "name": agent.name,
            "adapterType": agent.adapter_type,
            "adapterConfig": struct_to_dict(agent.adapter_config),
        },
        company=struct_to_dict(request.company),
        run=struct_to_dict(request.run),
        context=context_data(request.context),
        brand={"name": settings.brand_name, "envPrefix": settings.env_prefix},
    )


def context_data(context: adapter_pb2.Context) -> dict[str, JsonValue]:
    """Return the context in the seeds' names, with what else the caller put into it."""
    data = struct_to_dict(context.extra)
    named: dict[str, JsonValue] = {
        "taskId": context.task_id or context.issue_id,
        "issueId": context.issue_id or context.task_id,
        "wakeReason": context.wake_reason,
        "wakeCommentId": context.wake_comment_id or context.comment_id,
        "commentId": context.comment_id or context.wake_comment_id,
        "approvalId": context.approval_id,
        "approvalStatus": context.approval_status,
    }
    data.update({key: value for key, value in named.items() if value})
    if context.linked_issue_ids:
        data["issueIds"] = list(context.linked_issue_ids)
    return data


def environment_inputs(request: adapter_pb2.ExecuteRequest, settings: Settings, marker: str) -> EnvironmentInputs:
    """Return what the agent's variables are made of."""
    context = request.context
    return EnvironmentInputs(
        agent_id=request.agent.id or None,
        company_id=request.agent.company_id or None,
        api_url=request.api_url or None,
        run_id=request.run_id,
        task_id=context.task_id or context.issue_id or None,
        wake_reason=context.wake_reason or None,
        wake_comment_id=context.wake_comment_id or context.comment_id or None,
        approval_id=context.approval_id or None,
        approval_status=context.approval_status or None,
        linked_issue_ids=tuple(context.linked_issue_ids),
        auth_token=request.auth_token or None,
        env_prefix=settings.env_prefix,
        config_env=settings.config_env,
        env=dict(request.env),
        marker=marker,
        tool_servers=tuple({**server.stdio.env, **server.http.headers} for server in request.mcp_servers),
    )


def masked_argv(argv: Sequence[str], prompt: str) -> list[str]:
    """Return the arguments with the prompt replaced by its length."""
    if not prompt:
        return list(argv)
    mask = f"[prompt: {len(prompt.encode())} bytes]"
    # A short prompt may occur in other arguments by chance; masking those too would only confuse.
    return [item.replace(prompt, mask) if len(prompt) > 8 else mask if item == prompt else item for item in argv]
