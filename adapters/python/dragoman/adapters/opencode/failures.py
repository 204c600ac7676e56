"""Failures, by what opencode stores with a message of its model. Pure."""

from dragoman.sdk import FailureInfo, Terminal
from dragoman.sdk.failures import ANSWER_CUT, classify_http, classify_text
from dragoman.sdk.fields import Fields, as_int, as_object, as_string
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace


def cut_answer() -> Terminal:
    """Return the end of a run whose last answer was cut."""
    failure = FailureInfo(pb.FAILURE_KIND_OUTPUT_LIMIT, ANSWER_CUT, code="opencode_length", errors=("length",))
    return Terminal(succeeded=False, subtype="length", failure=failure)


def failure_of_error(error: Fields) -> FailureInfo:
    """Return the failure of an error that opencode stores with a message."""
    data = as_object(error.get("data"), {})
    message = as_string(data.get("message"), "") or as_string(error.get("name"), "")
    message = message or "opencode failed without a reason."
    code = f"opencode_{as_string(error.get('name'), 'error')}"
    status, body = as_int(data.get("statusCode"), None), as_string(data.get("responseBody"), "")
    failure = None
    if status is not None:
        headers = as_object(data.get("responseHeaders"), {}).items()
        failure = classify_http(
            status, f"{message}\n{body}", {name: value for name, value in headers if isinstance(value, str)}
        )
    failure = failure or classify_text(message) or FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message)
    return replace(failure, code=code, errors=(message,), http_status=status)
