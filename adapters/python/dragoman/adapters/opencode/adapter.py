"""What the opencode adapter is."""

import asyncio
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dragoman.adapters.opencode import content
from dragoman.adapters.opencode.account import WithAccount, create_database
from dragoman.adapters.opencode.failures import cut_answer, failure_of_error
from dragoman.adapters.opencode.login import configured_model
from dragoman.adapters.opencode.tools import KINDS, file_changes, tool_name
from dragoman.adapters.opencode.usage import database, last_answer, read_messages, sum_up, with_context
from dragoman.protocol.errors import FieldViolation
from dragoman.protocol.identity import near_names
from dragoman.sdk import Evidence, FailureInfo, Job, Plan, Report, Settings, Terminal, rules
from dragoman.sdk.acp import AcpOptions, Conversation, RpcError, conversation
from dragoman.sdk.detection import Checks, probe
from dragoman.sdk.failures import classify_text
from dragoman.sdk.fields import JsonValue, as_bool, as_object, as_string
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

OURS: Final = ("OPENCODE_CONFIG_CONTENT", "OPENCODE_PERMISSION")
"""Variables with which this adapter configures a run."""

_MODEL: Final = re.compile(r"[^/\s-][^/\s]*/\S+")
_NO_MODEL: Final = "unknown/unknown"
"""The model of a session for which opencode has found none."""
_MODELS_LIMIT_S: Final = 20.0
_UNSEEN: Final = "\u200b"
"""A character that opencode does not take for white space, and that is not visible."""


class OpencodeAdapter(WithAccount):
    """Runs opencode."""

    spec = agent_spec(__package__)

    # How it is run.

    def acp_args(self, job: Job) -> Sequence[str]:
        """Return the arguments that make it speak the Agent Client Protocol."""
        del job
        return ("acp",)

    def acp_env(self, job: Job) -> Mapping[str, str]:
        """Return the variables that configure a run."""
        return content.environment(job)

    def acp_options(self, job: Job) -> AcpOptions:
        """Return how its protocol differs."""
        variant = as_string(job.config.get("variant"), "")
        return AcpOptions(
            mode=content.agent_of(job),
            config_values={"effort": variant} if variant else {},
            slash_commands=True,  # see _prompt
            steers=True,  # its loop looks for further messages before each call of the model
            acknowledged=("fs/write_text_file",),  # it notifies the editor of a text, and writes the file itself
            usage="last_call",
            tool_name=tool_name,
            tool_kinds=KINDS,
            file_changes=file_changes,
            lost_session=_is_lost,
            provider=job.settings.model.partition("/")[0],
        )

    def acp_conversation(self, job: Job) -> Conversation:
        """Return what a run requests: its instructions and directories are in the configuration."""
        return replace(conversation(job, self.acp_options(job)), prompt=_prompt(job), additional_directories=())

    def plan(self, job: Job) -> Plan:
        """Return how to run opencode."""
        plan = super().plan(job)
        return replace(
            plan,
            files={content.INSTRUCTIONS: job.standing_text.encode()} if job.standing_text else {},
            notices=(*plan.notices, *content.notices(job)),
        )

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return what a run failed of that had no model, or no result; else what the parser reports stands."""
        terminal = evidence.report.terminal
        if evidence.report.model == _NO_MODEL and terminal is not None and not terminal.succeeded:
            errors = terminal.failure.errors if terminal.failure is not None else ()
            message = "opencode knows no model. Set model to provider/model, and see that its provider has a key."
            return FailureInfo(pb.FAILURE_KIND_MODEL_NOT_FOUND, message, code="opencode_no_model", errors=errors)
        if terminal is not None or not evidence.stderr_tail:
            return None
        failure = classify_text(evidence.stderr_tail)
        return replace(failure, code="opencode_failed") if failure is not None else None

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """Have opencode create its database alone."""
        await create_database(job.executable, env, self.login_locks)
        return await super().prepare(job, env)

    async def complete(self, job: Job, env: Mapping[str, str], report: Report, began_at: float) -> None:
        """Learn from opencode's store what all calls of the model used, and how the last one ended."""
        del job
        if not report.session_id:
            return
        since_ms = int(began_at * 1000)
        messages = await asyncio.to_thread(read_messages, database(env), report.session_id, since_ms)
        if messages is not None:
            report.terminal = _better_terminal(report.terminal, last_answer(messages, report.session_id))
        used = sum_up(message.content for message in messages or ())
        if used is not None:
            report.usage = with_context(used, report.usage)
        elif report.usage is not None and report.usage.cost.amount == "0":
            report.usage.ClearField("cost")  # nothing was priced, or nothing was used

    # What is known before a run.

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield the values that opencode would read as something else."""
        mode = settings.permissions.native_mode
        variant = as_string(settings.config.get("variant"), "")
        yield from rules.read_as_options({"config.variant": variant})
        near = near_names(mode, content.OWN_AGENTS) if mode and mode not in content.OWN_AGENTS else []
        if near:
            # opencode would create an agent of that name, with all of its tools.
            yield FieldViolation("permissions.native_mode", f"is no agent of opencode; did you mean {near[0]}?")
        if settings.model and not _MODEL.fullmatch(settings.model):
            yield FieldViolation("model", "must be provider/model, e.g. anthropic/claude-sonnet-4-5")
        for name in OURS:
            for source, env in (("config.env", settings.config_env), ("env", request.env)):
                if name in env:
                    advice = "would undo the run's permissions; use config.opencodeConfig"
                    yield FieldViolation(f"{source}.{name}", advice)
        if "permission" in as_object(settings.config.get("opencodeConfig"), {}):
            advice = "is the run's own; use permissions of the request"
            yield FieldViolation("config.opencodeConfig.permission", advice)

    def extra_checks(self, config: Mapping[str, JsonValue], env: Mapping[str, str], checks: Checks) -> None:
        """Add the checks that only this adapter makes."""
        if shutil.which("rg", path=env.get("PATH", "")) is None:
            message = "ripgrep is not on this PATH: opencode fetches it from GitHub when it first searches."
            hint = (
                "Install ripgrep where opencode may not fetch programs; without it, skills and searches fail there."
            )
            checks.add(pb.SEVERITY_INFO, "ripgrep_missing", message, hint=hint)
        if not as_string(config.get("model"), ""):
            message = (
                "No model is set: opencode's own configuration decides, but not for opencode.ai's hosted models."
            )
            hint = "Set config.model, or the request's model, to provider/model."
            checks.add(pb.SEVERITY_INFO, "model_not_set", message, hint=hint)
        for name in ("dangerouslySkipPermissions", "ownPermissions"):
            if as_bool(config.get(name), False):
                message = f"config.{name}: opencode itself decides what it asks about."
                hint = "Use rules in permissions, or permissions.auto_approve, which at least reports what is done."
                checks.add(pb.SEVERITY_WARNING, "permissions_skipped", message, hint=hint)

    async def list_models(self, request: adapter_pb2.ListModelsRequest) -> adapter_pb2.ListModelsResponse:
        """List the models of the providers that opencode has a login or key for."""
        env = {**os.environ, **request.env}
        found = await self.look(env, {})
        if not found.executable:
            return await super().list_models(request)
        answer = await probe([found.executable, "models"], env, _MODELS_LIMIT_S)
        response = adapter_pb2.ListModelsResponse(source=adapter_pb2.MODEL_SOURCE_AGENT)
        response.listed_at.GetCurrentTime()
        default = configured_model(env)
        for line in answer.stdout.splitlines() if answer.exit_code == 0 else ():
            if _MODEL.fullmatch(line.strip()) and not line.startswith(f"{content.HOSTED}/"):
                name = line.strip()
                response.models.add(id=name, label=name.partition("/")[2], is_default=name == default)
        return response


def _better_terminal(terminal: Terminal | None, answer: Mapping[str, JsonValue]) -> Terminal | None:
    """Return how a run ended, by the stored last answer of its model: why it stopped, and its error."""
    if terminal is None or terminal.interrupted:
        return terminal
    if terminal.succeeded:
        is_cut = as_string(answer.get("finish"), "") == "length"
        return cut_answer() if is_cut else terminal
    error, failure = as_object(answer.get("error"), {}), terminal.failure
    if not error or failure is None or failure.kind == pb.FAILURE_KIND_SESSION_LOST:
        return terminal
    known = failure_of_error(error)
    if known.http_status is None:
        return terminal
    return replace(terminal, failure=replace(known, code=failure.code, errors=failure.errors or known.errors))


def _prompt(job: Job) -> str:
    """Return the prompt; one that begins with a slash is kept from being a command.

    opencode looks at it without the blanks before it, and drops a prompt whose command it does not know.
    """
    is_command = job.prompt.lstrip().startswith("/")
    if not is_command or as_bool(job.config.get("allowSlashCommands"), False):
        return job.prompt
    return _UNSEEN + job.prompt


def _is_lost(error: RpcError) -> bool:
    """Return whether an error of load, resume or fork is about the session: opencode has no code for that."""
    data = error.data if isinstance(error.data, dict) else {}
    return data.get("service") == "session" and "service failure" in error.message
