"""What is wrong with an input in mid-run, before its run is asked."""

from dragoman.protocol.errors import FieldViolation, invalid_fields, not_supported
from dragoman.protocol.identity import is_run_id
from dragoman.sdk._run.sent_inputs import mode_of
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb


def check_input(request: adapter_pb2.SendRequest) -> None:
    """Check an input by itself.

    Raises:
        DragomanError: INVALID_REQUEST with the wrong fields.
    """
    wrong = []
    if not is_run_id(request.input_id):
        wrong.append(FieldViolation("input_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}"))
    if not request.text:
        wrong.append(FieldViolation("text", "must not be empty"))
    if request.mode not in pb.InputMode.values():
        wrong.append(FieldViolation("mode", f"{request.mode} is not known; it is STEER or QUEUE"))
    if wrong:
        raise invalid_fields(wrong)


def refuse_undeclared(info: AdapterInfo, request: adapter_pb2.SendRequest) -> None:
    """Refuse an input that an adapter does not take in this way.

    Raises:
        DragomanError: NOT_SUPPORTED.
    """
    if mode_of(request) == pb.INPUT_MODE_STEER:
        if not info.has(pb.FEATURE_STEER):
            raise not_supported("mode", f"{info.label} takes no input in its present turn; queue it, or start a run")
    elif not info.has(pb.FEATURE_QUEUE):
        raise not_supported("mode", f"{info.label} has one turn in each run; start another run afterwards")
