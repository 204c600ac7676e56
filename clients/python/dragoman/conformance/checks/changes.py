"""Changes: what a run did to the files of its workspace."""

from dragoman.conformance.check import check, expect
from dragoman.conformance.kit import Kit, expect_reason, refusal
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_FILE = "written-by-the-agent"


@check("changes.files")
async def files(kit: Kit) -> None:
    """Have a file written, and ask for the changes afterwards."""
    request = kit.request(f"touch={_FILE}")
    request.track_changes = True
    await kit.run(request)
    asked = api.GetChangesRequest(run_id=request.run_id, adapter=kit.adapter)
    changes = await kit.call("GetChanges", asked)
    found = {file.path.rpartition("/")[2]: file.operation for file in changes.files}
    expect(_FILE in found, f"the file that the agent wrote is not among the changes: {sorted(found)}")
    operation = found[_FILE]
    name = pb.FileOperation.Name(operation)
    expect(operation == pb.FILE_OPERATION_CREATE, f"{name} where CREATE is due")
    expect(changes.is_final, "is_final is not set, although the run has ended")


@check("changes.untracked")
async def untracked(kit: Kit) -> None:
    """Ask for the changes of a run that did not set track_changes."""
    request = kit.request("say=one")
    await kit.run(request)
    asked = api.GetChangesRequest(run_id=request.run_id, adapter=kit.adapter)
    expect_reason(await refusal(kit.call("GetChanges", asked)), Reason.CHANGES_UNKNOWN)
