"""What a command-line adapter's pure pieces see, and what they plan."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any

from dragoman.protocol.template_values import template_values
from dragoman.protocol.templates import default_prompt, render
from dragoman.protocol.texts import utf8_bytes
from dragoman.sdk._encoding.config import as_string
from dragoman.sdk._encoding.framing import Framing
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk._request.environment import EnvironmentInputs
from dragoman.sdk._request.plan_error import PlanError
from dragoman.sdk._request.sessions import SessionPlan
from dragoman.sdk._request.settings import Instructions, Settings
from dragoman.sdk._skills.source import SkillSource
from dragoman.sdk._skills.strategy import SkillStrategy
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field


class Job(Struct, frozen=True):
    """One turn of an attempt, as far as an adapter may know it. Everything is checked and rendered."""

    run_id: str
    attempt: int
    request: adapter_pb2.ExecuteRequest
    settings: Settings
    prompt: str
    """The agent's prompt, bootstrap text included."""
    system_prompt: str
    instructions: Instructions | None
    session: SessionPlan
    """Which conversation is resumed: ``native_id`` is what the parser reported as ``session_id``."""
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
    prompt_bytes: Mapping[str, int] = field(default_factory=dict)
    """The sizes of the prompt's sections."""
    missing_values: tuple[str, ...] = ()
    """Paths in the caller's templates that nothing is at."""
    attachments: tuple[AttachedFile, ...] = ()
    """The files that go with the prompt, which names them."""
    turn: int = 1
    """The number of the turn in its attempt: each input that was queued is another one."""

    @property
    def config(self) -> Mapping[str, JsonValue]:
        """The checked ``config``."""
        return self.settings.config

    @property
    def permissions(self) -> pb.Permissions:
        """What the agent may do."""
        return self.settings.permissions

    @property
    def roots(self) -> list[str]:
        """The directories of the workspace, the working directory first."""
        return [self.settings.cwd, *self.settings.additional_directories]

    @property
    def standing_text(self) -> str:
        """The system prompt and the standing instructions as one text; empty without either."""
        instructions = self.instructions.with_directive() if self.instructions is not None else ""
        return "\n\n".join(part for part in (self.system_prompt, instructions) if part)

    @property
    def requested_env(self) -> dict[str, str]:
        """The variables that the request sets: those of ``config.env``, and its own over them."""
        return {**self.settings.config_env, **self.request.env}

    @property
    def template_values(self) -> dict[str, JsonValue]:
        """What the caller's templates can name, for an adapter that has templates of its own. No secrets."""
        return template_values(self.request, self.settings.brand_name)

    @property
    def images(self) -> list[AttachedFile]:
        """The attachments that go to the model as images."""
        return [file for file in self.attachments if file.image]

    @property
    def interactive(self) -> bool:
        """Whether a person or a program can answer input requests."""
        return self.settings.permissions.interactive


class CancelStep(Struct, frozen=True):
    """One way to ask an agent to stop: bytes for its standard input, a signal for its leader, or both."""

    signal: Signals | None = SIGTERM
    write: bytes = b""
    interrupts: bool = False
    """The parser knows what to write, as the agent has reported it: see ``Interrupts``."""
    share: float = 1.0
    """The share of the grace that this step gets before the next; the last step gets what is left."""


TERMINATE: tuple[CancelStep, ...] = (CancelStep(SIGTERM),)
"""SIGTERM, then the end of the grace."""

INTERRUPT: tuple[CancelStep, ...] = (
    # Answered with what was done so far, as soon as the agent's calls are called off.
    CancelStep(signal=None, interrupts=True, share=0.4),
    CancelStep(SIGTERM),
)
"""What the parser says to interrupt the agent, then SIGTERM."""


class Plan(Struct, frozen=True):
    """How to run the agent. Pure data; the run loop does the rest."""

    argv: tuple[str, ...]
    """The program, absolute, and its arguments. There is no shell."""
    stdin: bytes = b""
    """What the agent reads from its standard input, e.g. the prompt."""
    keep_stdin_open: bool = False
    """Whether answers follow on standard input. Else it is closed after ``stdin``."""
    framing: Framing = "lines"
    """How standard output is cut into what the parser gets as lines."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The agent's own variables. ``config.env`` and ``env`` win over them."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to lay out, by path relative to ``run_dir``; mode 0600."""
    notes: tuple[str, ...] = ()
    """Decisions of the plan, for people."""
    notices: tuple[tuple[str, str], ...] = ()
    """Code and message of warnings to emit after ``started``."""
    cancel: tuple[CancelStep, ...] = TERMINATE

    def __post_init__(self) -> None:
        """Require what a program can be started with; of a text in place of ``argv`` each character would be a word.

        Raises:
            PlanError: ``argv`` is no sequence of texts, or ``stdin`` is not bytes.
        """
        argv: Any = self.argv
        if not isinstance(argv, tuple | list):
            raise PlanError(f"argv is a {type(argv).__name__}; give a tuple of str")
        for part in argv:
            if not isinstance(part, str):
                raise PlanError(f"argv has a {type(part).__name__}; give each item as str")
        stdin: Any = self.stdin
        if not isinstance(stdin, bytes | bytearray | memoryview):
            raise PlanError(f"stdin is {type(stdin).__name__}; give bytes, as of job.prompt.encode()")


def options(values: Mapping[str, str]) -> list[str]:
    """Return command-line options, each with its value, without those that have none."""
    return [word for option, value in values.items() if value for word in (option, value)]


def render_prompt(
    request: adapter_pb2.ExecuteRequest, settings: Settings, *, resumes: bool, skills: str = "", attached: str = ""
) -> tuple[str, dict[str, int], tuple[str, ...]]:
    """Return the prompt, the sizes of its sections in bytes, and paths that were missing in the caller's templates.

    The bootstrap text goes before it in new sessions only: a resumed one has had it. So does what is handed over
    from an earlier session; that is plain text and no template. ``skills`` are those that go into the
    prompt, as text; they go into that of every run, as each has its own. ``attached`` names the files that go with
    the prompt; it goes behind it.
    """
    values: dict[str, JsonValue] = {}
    missing: list[str] = []
    sizes: dict[str, int] = {}

    def fill(name: str, template: str) -> str:
        values.update(values or template_values(request, settings.brand_name))  # made once, and only for a template
        rendered = render(template or default_prompt(values), values)
        missing.extend(rendered.missing)
        sizes[name] = utf8_bytes(rendered.text)
        return rendered.text

    sections: list[str] = []
    bootstrap = as_string(settings.config.get("bootstrapPromptTemplate"), "")
    if bootstrap and not resumes:
        sections.append(fill("bootstrap", bootstrap))
    if request.session.handover and not resumes:
        sizes["handover"] = utf8_bytes(request.session.handover)
        sections.append(request.session.handover)
    if skills:
        sizes["skills"] = utf8_bytes(skills)
        sections.append(skills)
    if request.WhichOneof("task") == "prompt":
        prompt = request.prompt  # read once: each reading makes a text of it anew
        sizes["prompt"] = utf8_bytes(prompt)
        sections.append(prompt)
    else:
        configured = as_string(settings.config.get("promptTemplate"), "")
        sections.append(fill("prompt", request.prompt_template or configured))
    if attached:
        sizes["attachments"] = utf8_bytes(attached)
        sections.append(attached)
    return "\n\n".join(sections), sizes, tuple(dict.fromkeys(missing))


def following_request(
    request: adapter_pb2.ExecuteRequest, text: str, handle: pb.SessionHandle
) -> adapter_pb2.ExecuteRequest:
    """Return the request of a later turn of a run.

    Args:
        request: the run's.
        text: the input that the turn begins with.
        handle: the session that it continues.
    """
    following = adapter_pb2.ExecuteRequest()
    following.CopyFrom(request)
    following.prompt = text
    following.session.Clear()
    following.session.handle.CopyFrom(handle)
    return following


def environment_inputs(
    request: adapter_pb2.ExecuteRequest,
    settings: Settings,
    marker: str,
    secrets: tuple[str, ...] = (),
    artifacts: str = "",
) -> EnvironmentInputs:
    """Return what the agent's variables are made of.

    ``secrets`` are those of the request, ``artifacts`` is the directory for the files that the agent leaves.
    """
    context = request.context
    return EnvironmentInputs(
        variables={
            "AGENT_ID": request.agent.id,
            "COMPANY_ID": request.agent.company_id,
            "API_URL": request.api_url,
            "RUN_ID": request.run_id,
            "ARTIFACTS": artifacts,
            "TASK_ID": context.task_id or context.issue_id,
            "WAKE_REASON": context.wake_reason,
            "WAKE_COMMENT_ID": context.wake_comment_id or context.comment_id,
            "APPROVAL_ID": context.approval_id,
            "APPROVAL_STATUS": context.approval_status,
            "LINKED_ISSUE_IDS": ",".join(context.linked_issue_ids),
        },
        auth_token=request.auth_token or None,
        env_prefix=settings.env_prefix,
        config_env=settings.config_env,
        env=dict(request.env),
        marker=marker,
        secrets=secrets,
    )


def masked_argv(argv: Sequence[str], prompt: str) -> list[str]:
    """Return the arguments with the prompt replaced by its length."""
    if not prompt:
        return list(argv)
    mask = f"[prompt: {utf8_bytes(prompt)} bytes]"
    # A short prompt may occur in other arguments by chance; masking those too would only confuse.
    return [item.replace(prompt, mask) if len(prompt) > 8 else mask if item == prompt else item for item in argv]
