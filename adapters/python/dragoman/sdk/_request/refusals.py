"""What is wrong with a request, before anything is made of it. Every wrong field is reported, not only the first."""

from collections.abc import Iterator
from operator import attrgetter

from dragoman.protocol.bounds import wrong_duration
from dragoman.protocol.budgets import budget_problems, never_reported
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid_fields, not_supported
from dragoman.sdk._encoding.protobuf import struct_to_dict
from dragoman.sdk._encoding.schema import show_path
from dragoman.sdk._request.attachments import refuse_images, wrong_attachments
from dragoman.sdk._request.environment import validate_prefix, validate_variables
from dragoman.sdk._request.workspace import check_cwd
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_BY_FEATURE: tuple[tuple[str, pb.Feature.ValueType], ...] = (
    ("skills", pb.FEATURE_SKILLS),
    ("mcp_servers", pb.FEATURE_MCP_SERVERS),
    ("system_prompt", pb.FEATURE_SYSTEM_PROMPT),
    ("instructions", pb.FEATURE_INSTRUCTIONS),
    ("model", pb.FEATURE_MODEL_CHOICE),
    ("track_changes", pb.FEATURE_CHANGES),
    ("attachments", pb.FEATURE_ATTACHMENTS),
)
"""Fields that are refused where the capability is missing."""

_INTO_VARIABLES = (
    *("agent.id", "agent.company_id", "api_url", "auth_token"),
    *("context.task_id", "context.issue_id", "context.wake_reason", "context.wake_comment_id"),
    *("context.comment_id", "context.approval_id", "context.approval_status", "context.linked_issue_ids"),
)
"""Fields that become variables of the agent."""

_STRUCTS = ("company", "run", "context.extra", "agent.adapter_config")
"""Fields of any shape, for templates. ``config`` is checked by its schema."""

_DURATIONS = (
    *("limits.start_up", "limits.idle", "limits.tool_call", "limits.wall", "limits.grace"),
    *("orphan_after", "permissions.request_timeout"),
)


def refuse_missing_features(request: adapter_pb2.ExecuteRequest, info: AdapterInfo) -> None:
    """Refuse set fields that this adapter cannot honour.

    Raises:
        DragomanError: NOT_SUPPORTED.
    """
    is_set = {field.name for field, _ in request.ListFields()}
    for name, feature in _BY_FEATURE:
        if name in is_set and not info.has(feature):
            raise not_supported(name, f"{info.label} has no {name.replace('_', ' ')}; leave it out")
    refuse_images(request.attachments, info)
    permissions = request.permissions
    asks = permissions.rules or permissions.default_decision or permissions.native_mode or permissions.auto_approve
    # Some never ask, and enforce permissions by leaving out the tools that are not allowed.
    keeps = info.capabilities.permission_mode in {pb.PERMISSION_MODE_STRICT, pb.PERMISSION_MODE_PERMISSIVE}
    if asks and not (keeps or info.has(pb.FEATURE_PERMISSION_REQUESTS)):
        raise not_supported("permissions", f"{info.label} never asks for permission; leave permissions out")
    if unknown := never_reported(request.limits.budget, info.capabilities):
        raise invalid_fields(unknown, Reason.NOT_SUPPORTED)
    if request.HasField("session") and request.session.WhichOneof("selector") == "handle":
        if not info.has(pb.FEATURE_RESUME):
            raise not_supported("session.handle", f"{info.label} cannot resume sessions")
        if request.session.fork and not info.has(pb.FEATURE_FORK):
            raise not_supported("session.fork", f"{info.label} cannot fork sessions")


def wrong_fields(request: adapter_pb2.ExecuteRequest) -> list[FieldViolation]:
    """Return the wrong fields of a request, whatever the adapter."""
    return [
        *_wrong_session(request.session),
        *_wrong_numbers(request),
        *_wrong_paths(request.workspace),
        *_wrong_variables(request),
        *wrong_attachments(request.attachments),
    ]


def _wrong_session(session: adapter_pb2.SessionSelector) -> Iterator[FieldViolation]:
    selector = session.WhichOneof("selector")
    if selector == "fresh" and not session.fresh:
        yield FieldViolation("session.fresh", "must be true, or absent")
    if session.fork and selector != "handle":
        yield FieldViolation("session.fork", "a session to fork is missing; give session.handle")
    for name in ("reason", "handover"):
        if getattr(session, name) and selector != "fresh":
            yield FieldViolation(f"session.{name}", "goes with session.fresh")


def _wrong_numbers(request: adapter_pb2.ExecuteRequest) -> Iterator[FieldViolation]:
    for path in _DURATIONS:
        if problem := wrong_duration(attrgetter(path)(request)):
            yield FieldViolation(path, problem)
    yield from budget_problems(request.limits.budget)
    for path in _STRUCTS:
        try:
            struct_to_dict(attrgetter(path)(request), path)
        except DragomanError as error:
            yield from error.violations


def _wrong_paths(workspace: adapter_pb2.Workspace) -> Iterator[FieldViolation]:
    for index, path in enumerate(workspace.additional_directories):
        problem = check_cwd(path)
        if problem is not None:
            yield FieldViolation(f"workspace.additional_directories[{index}]", problem.message)


def _wrong_variables(request: adapter_pb2.ExecuteRequest) -> Iterator[FieldViolation]:
    problem = validate_prefix(request.brand.env_prefix) if request.brand.env_prefix else None
    if problem is not None:
        yield FieldViolation("brand.env_prefix", problem)
    for name, value in request.env.items():
        wrong = validate_variables({name: value})
        if wrong is not None:
            yield FieldViolation(show_path((name,)).replace("config", "env", 1), wrong[1])
    for path in _INTO_VARIABLES:
        if "\0" in "".join(attrgetter(path)(request)):
            yield FieldViolation(path, "must not contain a zero byte")
