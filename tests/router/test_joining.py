"""A client that asks for a run that another router has, or the log, holds it and gets its events as it asked."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from dragoman.router.api import adapter_service
from dragoman.router.api.locate import Finished, Located, Remote
from dragoman.router.model.stored import StoredRun
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

STORED = StoredRun("r", 1.0, "fake", router_pb2.GetRunResponse(), owner="other", lease_until=2.0)
FORWARDER: Any = None


@pytest.mark.parametrize("located", [Remote(STORED, FORWARDER), Finished(STORED)], ids=["remote", "finished"])
@pytest.mark.parametrize("batching", [None, pb.Batching()], ids=["single", "batches"])
async def test_the_same_request_attaches_where_the_run_is(located: Located, batching: pb.Batching | None) -> None:
    async def of_request(_request: pb.ExecuteRequest) -> Located:
        return located

    async def elsewhere(found: Located, attach: pb.AttachRequest, _context: object) -> None:
        assert found is located
        attached.append(attach)

    attached: list[pb.AttachRequest] = []
    nothing: Any = SimpleNamespace(refuse_new=lambda: None, elsewhere=elsewhere, policy=None)
    locator: Any = SimpleNamespace(of_request=of_request)
    servicer = adapter_service.AdapterServicer(nothing, nothing, locator, nothing, nothing, nothing)
    request = pb.ExecuteRequest(adapter="fake", prompt="p", run_id="r", batching=batching)
    await servicer.Execute(request.SerializeToString(), cast("Any", None))
    assert attached == [pb.AttachRequest(run_id="r", hold=True, batching=batching)]
