"""Checking a request before its run exists. Pure."""

from collections.abc import Mapping

from dragoman.protocol.errors import DragomanError, FieldViolation, invalid_fields
from dragoman.protocol.outgoing import redacted_error
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.protocol.templates import TemplateSizeError
from dragoman.sdk._agents.hooks import AgentHooks
from dragoman.sdk._encoding.schema import ConfigSchema
from dragoman.sdk._request.job import render_prompt
from dragoman.sdk._request.sessions import SessionPlan, plan_session
from dragoman.sdk._request.settings import Settings, read_settings
from dragoman.sdk._skills.strategy import prompt_section, strategy_in_force
from dragoman.sdk.rules import blank_prompt, native_mode, read_as_options, wrong_mcp_servers
from dragoman.sdk.spec import AgentSpec
from dragoman.v1 import adapter_pb2
from msgspec.structs import replace


def accepted(agent: AgentHooks, schema: ConfigSchema, request: adapter_pb2.ExecuteRequest) -> Settings:
    """Check a request and read its settings.

    Raises:
        DragomanError: it is wrong; no secret of the request is in the error.
    """
    try:
        return _accepted(agent, schema, request)
    except DragomanError as error:
        raise redacted_error(error, Redactor(request_secrets(request))) from error


def prompt_of(
    spec: AgentSpec,
    request: adapter_pb2.ExecuteRequest,
    settings: Settings,
    session: SessionPlan,
    attached: str = "",
) -> tuple[str, Mapping[str, int], tuple[str, ...]]:
    """Return the prompt, the sizes of its parts, and the values that its template misses."""
    skills = prompt_section(strategy_in_force(spec.skill_strategy, spec.skill_layout), settings.skills)
    return render_prompt(request, settings, resumes=session.resumes, skills=skills, attached=attached)


def _accepted(agent: AgentHooks, schema: ConfigSchema, request: adapter_pb2.ExecuteRequest) -> Settings:
    spec = agent.spec
    settings = read_settings(request, spec, schema)
    wrong = [*wrong_mcp_servers(request.mcp_servers)]
    wrong += read_as_options({"model": settings.model})
    wrong += () if spec.takes_blank_prompt else blank_prompt(request)
    if spec.native_modes is None:
        wrong += read_as_options({"permissions.native_mode": settings.permissions.native_mode})
    else:
        wrong += native_mode(settings.permissions, spec.native_modes)
    wrong += agent.wrong_fields(request, settings)
    if wrong:
        raise invalid_fields(wrong)
    session = plan_session(
        request,
        adapter=spec.type,
        aliases=tuple(spec.aliases),
        cwd=settings.cwd,
        is_session_id=agent.is_session_id,
    )
    if request.WhichOneof("task") != "prompt" or "bootstrapPromptTemplate" in settings.config:
        try:
            prompt_of(spec, request, settings, session)
        except TemplateSizeError as error:
            message = "the values of the template make more than 16 MiB; give large values as files"
            raise invalid_fields([FieldViolation("prompt_template", message)]) from error
    return replace(settings, session=session)
