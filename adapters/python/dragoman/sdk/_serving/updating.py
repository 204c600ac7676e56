"""What is wrong with a change of a run, before its agent is asked."""

from dragoman.protocol.errors import DragomanError, invalid, not_supported
from dragoman.sdk.spec import AdapterInfo, AgentSpec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_FEATURES = {"model": pb.FEATURE_UPDATE_MODEL, "permission_mode": pb.FEATURE_UPDATE_PERMISSION_MODE}


def check_update(request: adapter_pb2.UpdateRunRequest) -> None:
    """Check a change by itself.

    Raises:
        DragomanError: INVALID_REQUEST with the wrong field.
    """
    name = request.WhichOneof("change")
    if name is None:
        raise invalid("change", "there is nothing to change; set model or permission_mode")
    if not getattr(request, name).strip():
        raise invalid(name, "must not be empty")
    if getattr(request, name).startswith("-"):
        raise invalid(name, "must not begin with '-': a later turn would take it for an option")


def refuse_undeclared_update(info: AdapterInfo, request: adapter_pb2.UpdateRunRequest) -> None:
    """Refuse a change that an adapter does not make.

    Raises:
        DragomanError: NOT_SUPPORTED, or INVALID_REQUEST: the agent has no such mode.
    """
    name = request.WhichOneof("change") or ""
    if not info.has(_FEATURES[name]):
        raise _unsupported(info, name)
    modes = info.native_modes if isinstance(info, AgentSpec) else None
    if name == "permission_mode" and modes is not None and request.permission_mode not in modes:
        raise invalid(name, f"must be one of {', '.join(modes)}")


def _unsupported(info: AdapterInfo, name: str) -> DragomanError:
    what = "model" if name == "model" else "permission mode"
    return not_supported(name, f"{info.label} does not change its {what} while it works; resume its session instead")
