"""Files that come with inputs in mid-run: laid out, named in the text, and gone at the end of the run."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.sdk import Job, Plan, capabilities
from dragoman.sdk._run import files as run_files
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.adapters.process.arena import Arena
from tests.sdk.agents.test_sent_inputs import (
    QUEUE,
    STEER,
    Begun,
    SteeredAdapter,
    arena,
    inputs,
    script,
)
from tests.sdk.serving import refusal

__all__ = ["arena"]
MODES = pytest.mark.parametrize("mode", [QUEUE, STEER], ids=["queued", "steered"])
LINES = ("read", "read", "read")


class Jobs(SteeredAdapter):
    """Keeps the jobs of its turns, and takes no images."""

    spec = replace(
        SteeredAdapter.spec,
        capabilities=capabilities(
            *(feature for feature in pb.Feature.values() if feature not in {0, pb.FEATURE_IMAGES}),
            resume=pb.RESUME_STYLE_CAPTURE,
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    def plan(self, job: Job) -> Plan:
        self.jobs.append(job)
        return super().plan(job)


@pytest.fixture
def words() -> Jobs:
    return Jobs()


def notes(text: str = "mulberry", name: str = "notes.txt") -> api.Attachment:
    return api.Attachment(name=name, media_type="text/plain", content=text.encode())


def heard(events: list[pb.AgentEvent]) -> list[str]:
    """Return the lines that the agent read beyond its script."""
    return [event.message.text for event in events if event.HasField("message") and not event.message.input_id]


def begun(arena: Arena, mode: pb.InputMode.ValueType) -> tuple[Begun, str]:
    """Return a run and an input for it, whose agent reads what comes with the input."""
    last = {"kind": "state", "phase": "RUN_PHASE_RUNNING"}
    closed = f"gate {arena.workspace.parent / 'read'}"
    if mode == STEER:
        return Begun(arena, "read", *LINES, last, closed), "left"
    return Begun(arena, f"gate {arena.workspace.parent / 'gate'}"), script("session", *LINES, last, closed)


@MODES
async def test_files_of_an_input_are_where_its_text_says(
    arena: Arena, words: Jobs, mode: pb.InputMode.ValueType
) -> None:
    run, text = begun(arena, mode)
    source = arena.workspace.parent / "source"
    source.write_bytes(b"by its path")
    attached = [notes(), api.Attachment(name="a b.bin", path=str(source))]
    async with run:
        sequence = await run.send(text, mode=mode, files=attached)
        run.gate.touch()
        await run.until(lambda _: len(heard(run.events)) == len(LINES))
        blank, title, first = heard(run.events)
        folder = Path(title.removeprefix("Attached files, in ").removesuffix(":"))
        assert (blank, first) == ("", "- notes.txt (text/plain, 8 bytes)")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            "notes.txt": b"mulberry",
            "a b.bin": b"by its path",
        }
        (arena.workspace.parent / "read").touch()
        events = await run.rest()
    assert not os.path.lexists(folder.parent)
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]
    accepted = next(event for event in events if event.HasField("input_accepted"))
    assert accepted.sequence == sequence
    assert list(accepted.input_accepted.attachments) == ["notes.txt", "a b.bin"]
    taken = next(event.message for event in events if event.message.input_id)
    assert taken.text == text, "the message is what was sent"
    assert b"mulberry" not in b"".join(event.SerializeToString() for event in events)
    if mode == QUEUE:
        assert [len(job.attachments) for job in words.jobs] == [0, 2]
        assert str(folder) in words.jobs[1].settings.additional_directories


async def test_a_repeated_input_has_the_same_files(arena: Arena) -> None:
    run, text = begun(arena, QUEUE)
    async with run:
        first = await run.send(text, files=[notes()])
        assert await run.send(text, files=[notes()]) == first
        for others in ([], [notes("cherry")], [notes(name="other.txt")], [notes(), notes(name="other.txt")]):
            error = await refusal(run.send(text, files=others))
            assert error.reason is Reason.INPUT_ID_REUSED
        (arena.workspace.parent / "read").touch()
        await run.rest()
        assert await run.send(text, files=[notes()]) == first
        late = await refusal(run.send(text, "late", files=[notes()]))
        assert late.reason is Reason.RUN_FINISHED


async def test_the_same_input_twice_at_once_is_one(arena: Arena) -> None:
    run, text = begun(arena, QUEUE)
    async with run:
        first, second = await asyncio.gather(*(run.send(text, files=[notes()]) for _ in range(2)))
        assert first == second
        (arena.workspace.parent / "read").touch()
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]


@pytest.mark.parametrize(
    ("fields", "reason", "path"),
    [
        ({"name": "../a", "content": b""}, Reason.INVALID_REQUEST, "attachments[0].name"),
        ({"name": "a"}, Reason.INVALID_REQUEST, "attachments[0].content"),
        ({"name": "a", "path": "/dev/null"}, Reason.INVALID_REQUEST, "attachments[0].path"),
        ({"name": "a", "content": b"x" * (8 * 1024 * 1024 + 1)}, Reason.INVALID_REQUEST, "attachments[0].content"),
        (
            {"name": "a.png", "media_type": "image/png", "content": b"\x89PNG\r\n\x1a\n"},
            Reason.NOT_SUPPORTED,
            "attachments[0].media_type",
        ),
    ],
)
@MODES
async def test_wrong_files_are_refused_with_their_field(
    arena: Arena, mode: pb.InputMode.ValueType, fields: dict[str, Any], reason: Reason, path: str
) -> None:
    run, _ = begun(arena, QUEUE)
    async with run:
        error = await refusal(run.send("x", mode=mode, files=[api.Attachment(**fields)]))
        assert (error.reason, [one.path for one in error.violations]) == (reason, [path])
        assert inputs(await run.rest()) == []


async def test_the_files_of_a_run_are_bounded_together(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "MOST_SENT_BYTES", 10)
    run, _ = begun(arena, QUEUE)
    async with run:
        await run.send(script("session"), files=[notes()])
        error = await refusal(run.send(script("session"), "j", files=[notes()]))
        assert (error.reason, [one.path for one in error.violations]) == (Reason.INVALID_REQUEST, ["attachments"])
        assert inputs(await run.rest()) == [("accepted", "i"), ("taken", "i")]


async def test_a_secret_in_the_name_of_a_file_is_hidden(arena: Arena) -> None:
    run, text = begun(arena, QUEUE)
    run.request.env["KEY"] = "mulberry-4711"
    async with run:
        await run.send(text, files=[notes(name="mulberry-4711.txt")])
        (arena.workspace.parent / "read").touch()
        events = await run.rest()
    (accepted,) = [event.input_accepted for event in events if event.HasField("input_accepted")]
    assert list(accepted.attachments) == ["[redacted].txt"]
