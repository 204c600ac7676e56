"""GetChanges, asked synchronously of a sidecar and of a router, about a real program."""

from collections.abc import Callable
from pathlib import Path

import pytest
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.contract.test_contract import DEADLINE_S, SECRET, Stub, read, refusal, request_of

__all__ = ["request_of"]

Requests = Callable[..., api.ExecuteRequest]
WRITE = "import os; open('key.txt', 'w').write(os.environ['DRAGOMAN_API_KEY'] + '\\n'); print('written', flush=True)"


@pytest.fixture
def tracked(request_of: Requests) -> Requests:
    """Return a function that makes a request whose changes are tracked."""

    def make(code: str) -> api.ExecuteRequest:
        request = request_of(code)
        request.track_changes = True
        return request

    return make


def ask(stub: Stub, run_id: str, **fields: bool) -> api.GetChangesResponse:
    """Ask what a run changed."""
    request = api.GetChangesRequest(run_id=run_id, adapter="process", **fields)
    return stub.GetChanges(request, timeout=DEADLINE_S)


def test_the_changes_of_a_run_that_is_over(grpc_stub: Stub, tracked: Requests, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old\n")
    events = read(grpc_stub.Execute(tracked(f"{WRITE}; os.remove('old.txt')"), timeout=DEADLINE_S))
    run_id = events[0].run_id
    (tmp_path / "later.txt").write_text("after its end\n")
    changes = ask(grpc_stub, run_id)
    assert changes.is_final
    assert changes.root == str(tmp_path)
    operations = {file.path: file.operation for file in changes.files}
    assert operations == {"key.txt": pb.FILE_OPERATION_CREATE, "old.txt": pb.FILE_OPERATION_DELETE}
    assert changes.files[0].diff.endswith("@@ -0,0 +1 @@\n+[redacted]\n")
    assert SECRET.encode() not in changes.SerializeToString()
    assert not changes.overlapping_run_ids
    assert [file.diff for file in ask(grpc_stub, run_id, without_diffs=True).files] == ["", ""]
    assert ask(grpc_stub, run_id) == changes


def test_the_changes_of_a_live_run(grpc_stub: Stub, tracked: Requests, tmp_path: Path) -> None:
    wait = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)"
    call = grpc_stub.Execute(tracked(f"{WRITE}\n{wait}"), timeout=DEADLINE_S)
    event = next(event for event in call if event.HasField("log"))
    changes = ask(grpc_stub, event.run_id)
    assert not changes.is_final
    assert [file.path for file in changes.files] == ["key.txt"]
    (tmp_path / "go").touch()
    assert [*call][-1].HasField("result")
    assert [file.path for file in ask(grpc_stub, event.run_id).files] == ["go", "key.txt"]


def test_runs_that_overlap_are_named(grpc_stub: Stub, tracked: Requests, tmp_path: Path) -> None:
    wait = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)"
    call = grpc_stub.Execute(tracked(f"print('up', flush=True)\n{wait}"), timeout=DEADLINE_S)
    first = next(event for event in call if event.HasField("log")).run_id
    (tmp_path / "sub").mkdir()
    request = tracked("open('f', 'w').write('1\\n')")
    request.workspace.cwd = str(tmp_path / "sub")
    second = read(grpc_stub.Execute(request, timeout=DEADLINE_S))[0].run_id
    (tmp_path / "go").touch()
    assert [*call][-1].HasField("result")
    third = read(grpc_stub.Execute(tracked("pass"), timeout=DEADLINE_S))[0].run_id
    changes = ask(grpc_stub, first)
    assert changes.overlapping_run_ids == [second]
    assert "sub/f" in {file.path for file in changes.files}
    assert not ask(grpc_stub, third).overlapping_run_ids


def test_a_run_that_did_not_ask_for_it(grpc_stub: Stub, request_of: Requests) -> None:
    run_id = read(grpc_stub.Execute(request_of("pass"), timeout=DEADLINE_S))[0].run_id
    error = refusal(lambda: ask(grpc_stub, run_id))
    assert error.reason is Reason.CHANGES_UNKNOWN
    assert "track_changes" in str(error)


def test_an_unknown_run(grpc_stub: Stub) -> None:
    assert refusal(lambda: ask(grpc_stub, "nowhere")).reason is Reason.RUN_NOT_FOUND


def test_it_is_declared(grpc_stub: Stub) -> None:
    described = grpc_stub.Describe(api.DescribeRequest(adapter="process"), timeout=DEADLINE_S)
    assert pb.FEATURE_CHANGES in {item.feature for item in described.capabilities.items}
