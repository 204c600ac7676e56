"""What a router does with a request before an adapter gets it that does not declare a duty. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from dragoman.protocol.bounds import wrong_duration
from dragoman.protocol.budgets import never_reported
from dragoman.protocol.duties import declarations, settings_of, unsupported
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid, invalid_fields, not_supported
from dragoman.protocol.template_values import template_values
from dragoman.protocol.templates import TemplateSizeError, default_prompt, render
from dragoman.protocol.texts import enum_name
from dragoman.router.model.ports import Asked
from dragoman.router.policy.fallback import unknown_settings
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import Message

_NEEDED_BY_CHANGE: Final = {
    "model": pb.FEATURE_UPDATE_MODEL,
    "permission_mode": pb.FEATURE_UPDATE_PERMISSION_MODE,
}
_LIMITS: Final = ("start_up", "idle", "wall", "tool_call", "grace")
_REJECTING: Final = (pb.INPUT_OPTION_KIND_REJECT_ONCE, pb.INPUT_OPTION_KIND_REJECT_ALWAYS)
_NO_ANSWER: Final = "No client answered."
_BRAND: Final = "Dragoman"
"""The name for templates of a caller that gives none."""


def refuse_unsupported(request: adapter_pb2.ExecuteRequest, description: adapter_pb2.DescribeResponse) -> None:
    """Refuse what an adapter cannot honour, unless it declares that it does so itself.

    Args:
        request: as the caller sent it, without what is the router's.
        description: the adapter's.

    Raises:
        DragomanError: NOT_SUPPORTED, CAPABILITY_MISSING, or INVALID_REQUEST of a setting that its schema lacks.
    """
    if adapter_pb2.DUTY_BUDGETS not in description.duties:
        _refuse(unkept_caps(request.limits.budget, description))
    if adapter_pb2.DUTY_REFUSALS in description.duties:
        return
    features = {item.feature for item in description.capabilities.items}
    missing = [feature for feature in request.required_capabilities if feature not in features]
    if missing:
        names = ", ".join(enum_name(pb.Feature.DESCRIPTOR, feature) for feature in missing)
        message = f"Adapter {description.adapter!r} lacks {names}; choose another adapter."
        raise DragomanError(Reason.CAPABILITY_MISSING, message, {"missing": names})
    why = f"adapter {description.adapter!r} does not declare that it honours it; leave it out"
    _refuse([FieldViolation(rule.name, why) for rule in unsupported(request, declarations(description))])
    unknown = unknown_settings(settings_of(request), description.config_schema_json)
    if unknown:
        text = f"is no setting of adapter {description.adapter!r}"
        raise invalid_fields([FieldViolation(f"config.{name}", text) for name in unknown])


def refuse_undeclared(request: Asked, adapter: str, declares: Callable[[pb.Feature.ValueType], bool]) -> None:
    """Refuse what is sent to a run in mid-run and its adapter does not declare, as an earlier revision may not.

    Args:
        request: the request.
        adapter: the adapter's type.
        declares: returns whether it declares a feature.

    Raises:
        DragomanError: NOT_SUPPORTED.
    """
    for path, feature in _needed(request):
        if not declares(feature):
            raise not_supported(path, f"adapter {adapter!r} does not declare {pb.Feature.Name(feature)}")


def _needed(request: Asked) -> Iterator[tuple[str, pb.Feature.ValueType]]:
    """Yield the fields that need a feature of the adapter, with the feature."""
    if isinstance(request, adapter_pb2.SendRequest):
        yield "mode", pb.FEATURE_STEER if request.mode == pb.INPUT_MODE_STEER else pb.FEATURE_QUEUE
        if request.attachments:
            yield "attachments", pb.FEATURE_ATTACHMENTS
    elif isinstance(request, adapter_pb2.UpdateRunRequest) and (change := request.WhichOneof("change")):
        yield change, _NEEDED_BY_CHANGE[change]


def unkept_caps(budget: pb.Budget, description: adapter_pb2.DescribeResponse) -> list[FieldViolation]:
    """Return the caps that neither an adapter keeps nor a router for it: it does not see queued inputs as turns."""
    wrong = never_reported(budget, description.capabilities)
    if adapter_pb2.DUTY_BUDGETS in description.duties:
        return wrong
    if budget.HasField("turns") and any(item.feature == pb.FEATURE_QUEUE for item in description.capabilities.items):
        wrong.append(FieldViolation("limits.budget.turns", "its adapter does not keep it; leave it out"))
    return wrong


def _refuse(wrong: Sequence[FieldViolation]) -> None:
    if wrong:
        raise invalid_fields(wrong, Reason.NOT_SUPPORTED)


def rewritten(
    request: adapter_pb2.ExecuteRequest, duties: frozenset[int]
) -> tuple[adapter_pb2.ExecuteRequest, tuple[str, ...]]:
    """Return the request that an adapter with these duties gets, and what its template names that is not set.

    Raises:
        DragomanError: INVALID_REQUEST: a limit, or the values of the template.
    """
    following, missing = adapter_pb2.ExecuteRequest(), tuple[str, ...]()
    following.CopyFrom(request)
    if adapter_pb2.DUTY_REFUSALS not in duties:
        following.ClearField("required_capabilities")
    if adapter_pb2.DUTY_LIMITS not in duties:
        _check_durations(request.limits, "limits", _LIMITS)
        for name in (*_LIMITS, "output_bytes"):
            following.limits.ClearField(name)
    if adapter_pb2.DUTY_BUDGETS not in duties:
        following.limits.ClearField("budget")
    if not following.limits.ByteSize():
        following.ClearField("limits")
    if adapter_pb2.DUTY_UNATTENDED not in duties:
        _check_durations(request.permissions, "permissions", ("request_timeout",))
        following.permissions.ClearField("interactive")
        following.permissions.ClearField("request_timeout")
        if not following.permissions.ByteSize():
            following.ClearField("permissions")
    if adapter_pb2.DUTY_TEMPLATES not in duties:
        following.prompt, missing = _rendered(request)
        if following.session.handover:
            following.prompt = f"{following.session.handover}\n\n{following.prompt}"
            following.session.ClearField("handover")
    return following, missing


def default_answer(asked: pb.InputRequest) -> pb.InputAnswer:
    """Return the answer where no client gives one: a rejection where there is one, else the request's own default."""
    for kind in _REJECTING:
        for option in asked.options:
            if option.kind == kind:
                return pb.InputAnswer(option_ids=[option.id], message=_NO_ANSWER)
    return asked.default_answer if asked.HasField("default_answer") else pb.InputAnswer(message=_NO_ANSWER)


def _check_durations(message: Message, path: str, names: Iterable[str]) -> None:
    for name in names:
        if problem := wrong_duration(getattr(message, name)):
            raise invalid(f"{path}.{name}", problem)


def _rendered(request: adapter_pb2.ExecuteRequest) -> tuple[str, tuple[str, ...]]:
    if request.WhichOneof("task") == "prompt":
        return request.prompt, ()
    try:
        values = template_values(request, request.brand.name or _BRAND)
        rendered = render(request.prompt_template or default_prompt(values), values)
    except TemplateSizeError as error:
        message = "the values of the template make more than 16 MiB; give large values as files"
        raise invalid("prompt_template", message) from error
    except ValueError as error:
        raise invalid("prompt_template", "a value for it holds a number that is infinite or not a number") from error
    return rendered.text, rendered.missing
