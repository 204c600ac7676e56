"""What breaks the rules of attachments, also of inputs, and of artifacts."""

from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.conformance.breaks import event, ignored, not_received, reason, request
from tests.conformance.proxy import Break, Call


def _renamed(execute: api.ExecuteRequest) -> None:
    for attachment in execute.attachments:
        attachment.name = attachment.name.replace("/", "-").lstrip(".-")


def _without_types(execute: api.ExecuteRequest) -> None:
    for attachment in execute.attachments:
        attachment.ClearField("media_type")


def _without_files(call: Call) -> None:
    """Leave out the files of inputs, but not their images, which another check looks at."""
    if call.method == "Send" and not any(item.media_type == "image/png" for item in call.request.attachments):
        call.request.ClearField("attachments")


def _without_image_types(call: Call) -> None:
    if call.method == "Send":
        for attachment in call.request.attachments:
            if attachment.media_type == "image/png":
                attachment.ClearField("media_type")


FILE_BREAKS = {
    "unsupported.attachments": ignored("attachments"),
    "attachments.laid-out": not_received("attachments"),
    "attachments.names": request(_renamed),
    "attachments.images": request(_without_types),
    "send.attachments": Break(request=_without_files),
    "send.images": Break(request=_without_image_types),
    "artifacts.read": event("leave=", "artifact", lambda came: came.artifact.ClearField("sha256")),
    "artifacts.links": event("leave-link=", "notice", lambda came: came.artifact.CopyFrom(pb.Artifact(name="link"))),
    "artifacts.unknown": reason(Reason.ARTIFACT_NOT_FOUND, Reason.RUN_NOT_FOUND),
}
