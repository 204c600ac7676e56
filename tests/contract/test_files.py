"""Attachments and artifacts, asked synchronously of a sidecar and of a router, about a real program."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.contract.test_contract import DEADLINE_S, SECRET, Stub, read, refusal, request_of

__all__ = ["request_of"]

Requests = Callable[..., api.ExecuteRequest]
LEAVE = """
import os, pathlib
left = pathlib.Path(os.environ["DRAGOMAN_ARTIFACTS"])
(left / "report").mkdir()
(left / "report" / "index.html").write_text("<p>done")
(left / "big.bin").write_bytes(bytes(range(256)) * 4096)
(left / "empty").touch()
(left / "link").symlink_to("/etc/passwd")
os.mkfifo(left / "pipe")
"""
BIG = bytes(range(256)) * 4096


def pieces(stub: Stub, run_id: str, name: str, **fields: int) -> list[api.ReadArtifactResponse]:
    """Read an artifact; return the messages."""
    request = api.ReadArtifactRequest(run_id=run_id, name=name, adapter="process", **fields)
    return list(stub.ReadArtifact(request, timeout=DEADLINE_S))


def content(messages: list[api.ReadArtifactResponse]) -> bytes:
    return b"".join(message.data for message in messages)


def test_what_an_agent_leaves_is_reported_and_read(grpc_stub: Stub, request_of: Requests) -> None:
    events = read(grpc_stub.Execute(request_of(LEAVE), timeout=DEADLINE_S))
    artifacts = [event.artifact for event in events if event.HasField("artifact")]
    assert [(one.name, one.size, one.media_type) for one in artifacts] == [
        ("big.bin", len(BIG), "application/octet-stream"),
        ("empty", 0, ""),
        ("report/index.html", 7, "text/html"),
    ]
    assert artifacts[0].sha256 == hashlib.sha256(BIG).hexdigest()
    assert events[-1].HasField("result")
    (notice,) = [event.notice for event in events if event.notice.code == "artifacts_left_out"]
    assert notice.message == (
        "2 of the files that the agent left are not kept: link is a link; pipe is no regular file."
    )
    run_id = events[0].run_id
    whole = pieces(grpc_stub, run_id, "big.bin")
    assert content(whole) == BIG
    assert [(one.size, one.sha256) for one in whole] == [(len(BIG), artifacts[0].sha256)] + [(0, "")] * 3
    assert max(len(one.data) for one in whole) <= 256 * 1024
    part = pieces(grpc_stub, run_id, "big.bin", offset=1000, length=300_000)
    assert (content(part), part[0].size) == (BIG[1000:301_000], len(BIG))
    assert content(pieces(grpc_stub, run_id, "big.bin", offset=len(BIG))) == b""
    assert [one.size for one in pieces(grpc_stub, run_id, "empty")] == [0]


def test_what_cannot_be_read(grpc_stub: Stub, request_of: Requests) -> None:
    run_id = read(grpc_stub.Execute(request_of(LEAVE), timeout=DEADLINE_S))[0].run_id
    for name in ("link", "../artifacts/empty", "/etc/passwd", ""):
        assert refusal(partial(pieces, grpc_stub, run_id, name)).reason is Reason.ARTIFACT_NOT_FOUND
    near = refusal(lambda: pieces(grpc_stub, run_id, "report/index.htm"))
    assert near.metadata["did_you_mean"] == "report/index.html"
    assert refusal(lambda: pieces(grpc_stub, "nowhere", "empty")).reason is Reason.RUN_NOT_FOUND
    beyond = refusal(lambda: pieces(grpc_stub, run_id, "empty", offset=1))
    assert (beyond.reason, beyond.violations[0].path) == (Reason.INVALID_REQUEST, "offset")


def test_files_go_with_the_prompt(grpc_stub: Stub, request_of: Requests, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"by its path")
    (tmp_path / "work").mkdir()
    request = request_of("import sys; print(sys.stdin.read())")
    request.workspace.cwd = str(tmp_path / "work")
    request.config["promptVia"] = "stdin"
    request.attachments.add(name="notes.txt", media_type="text/plain", content=b"by its bytes")
    request.attachments.add(name="a b.bin", path=str(tmp_path / "source"))
    request.config["args"] = ["-c", READ]
    events = read(grpc_stub.Execute(request, timeout=DEADLINE_S))
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED, events[-1]
    (line,) = [event.log.text for event in events if event.log.text.startswith("{")]
    seen = json.loads(line)
    folder = seen["folder"]
    assert seen["prompt"] == (
        f"hello\n\nAttached files, in {folder}:\n- notes.txt (text/plain, 12 bytes)\n- a b.bin (11 bytes)"
    )
    assert seen["files"] == {"notes.txt": "by its bytes", "a b.bin": "by its path"}
    assert not os.path.lexists(folder)
    assert list((tmp_path / "work").iterdir()) == []
    started = next(event.started for event in events if event.HasField("started"))
    assert started.prompt_bytes["attachments"] == len(seen["prompt"]) - len("hello\n\n")


READ = """
import json, os, re, sys
prompt = sys.stdin.read()
folder = re.search("Attached files, in (.*):", prompt)[1]
files = {name: open(f"{folder}/{name}").read() for name in os.listdir(folder)}
print(json.dumps({"prompt": prompt, "folder": folder, "files": files}))
"""


@pytest.mark.parametrize(
    ("attachments", "field"),
    [
        ([{"name": "../a", "content": b""}], "attachments[0].name"),
        ([{"name": "", "content": b""}], "attachments[0].name"),
        ([{"name": ".hidden", "content": b""}], "attachments[0].name"),
        ([{"name": "a", "content": b""}, {"name": "A", "content": b""}], "attachments[1].name"),
        ([{"name": "a"}], "attachments[0].content"),
        ([{"name": "a", "path": "relative"}], "attachments[0].path"),
        ([{"name": "a", "path": "/dev/null"}], "attachments[0].path"),
        ([{"name": "a", "path": "/nonexistent/file"}], "attachments[0].path"),
        ([{"name": "a", "media_type": "text/plain\nIgnore", "content": b""}], "attachments[0].media_type"),
        ([{"name": "a", "content": bytes(5 << 20)}, {"name": "b", "content": bytes(4 << 20)}], "attachments"),
        ([{"name": str(number), "content": b""} for number in range(33)], "attachments"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_attachments(
    grpc_stub: Stub, request_of: Requests, attachments: list[dict[str, str]], field: str
) -> None:
    request = request_of("pass")
    for attachment in attachments:
        request.attachments.add(**attachment)
    error = refusal(lambda: read(grpc_stub.Execute(request, timeout=DEADLINE_S)))
    assert (error.reason, [item.path for item in error.violations]) == (Reason.INVALID_REQUEST, [field])


def test_a_link_is_no_attachment(grpc_stub: Stub, request_of: Requests, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    request = request_of("pass")
    request.attachments.add(name="a", path=str(tmp_path / "link"))
    error = refusal(lambda: read(grpc_stub.Execute(request, timeout=DEADLINE_S)))
    assert error.violations[0].description == "must be a regular file, and no link"


def test_an_image_for_an_agent_that_sees_none(grpc_stub: Stub, request_of: Requests) -> None:
    request = request_of("pass")
    request.attachments.add(name="a.png", media_type="image/png", content=b"\x89PNG\r\n\x1a\n")
    error: DragomanError = refusal(lambda: read(grpc_stub.Execute(request, timeout=DEADLINE_S)))
    assert (error.reason, error.violations[0].path) == (Reason.NOT_SUPPORTED, "attachments[0].media_type")
    request.attachments[0].media_type = ""
    assert read(grpc_stub.Execute(request, timeout=DEADLINE_S))[-1].result.outcome == pb.OUTCOME_SUCCEEDED


def test_the_name_of_an_artifact_may_hold_a_secret(grpc_stub: Stub, request_of: Requests) -> None:
    leave = f"import os; open(os.environ['DRAGOMAN_ARTIFACTS'] + '/{SECRET}.txt', 'w').write('kept')"
    events = read(grpc_stub.Execute(request_of(leave), timeout=DEADLINE_S))
    (name,) = [event.artifact.name for event in events if event.HasField("artifact")]
    assert name == "[redacted].txt"
    assert content(pieces(grpc_stub, events[0].run_id, name)) == b"kept"
