"""The model's tool calls: what they may do, what is asked about them, and what the model and the reader learn."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.adapters.model_api.calls import Calls
from dragoman.adapters.model_api.reply import Call
from dragoman.sdk import Answer
from dragoman.v1 import event_pb2 as pb

OFFERED = ("Read", "Write")
YES, NO = Answer(allowed=True), Answer(allowed=False)


class Caller:
    """Records events and questions, and answers as a test wants it."""

    def __init__(self, cwd: Path, answer: Answer = YES, also: tuple[str, ...] = (), **permissions: Any) -> None:
        self.events: list[pb.AgentEvent] = []
        self.questions: list[pb.InputRequest] = []
        self.answer = answer
        settings = SimpleNamespace(cwd=str(cwd), additional_directories=also)
        turn: Any = SimpleNamespace(
            job=SimpleNamespace(settings=settings, permissions=pb.Permissions(interactive=True, **permissions)),
            run=SimpleNamespace(emit=self.events.append),
            ask=self.ask,
        )
        self.calls = Calls(turn, OFFERED)

    async def ask(self, request: pb.InputRequest) -> Answer:
        self.questions.append(request)
        return self.answer

    async def do(self, name: str, **fields: Any) -> Any:
        (result,) = await self.calls.run([Call("call-1", name, fields)])
        return result

    @property
    def result(self) -> pb.ToolResult:
        (result,) = [event.tool_result for event in self.events if event.HasField("tool_result")]
        return result


def option(kind: pb.InputOptionKind.ValueType) -> Answer:
    return Answer(allowed=True, option=pb.InputOption(kind=kind))


async def test_a_call_is_reported_run_and_answered(tmp_path: Path) -> None:
    caller = Caller(tmp_path)
    assert await caller.do("Write", file_path="a.txt", content="hello\n") == {
        "type": "tool_result",
        "tool_use_id": "call-1",
        "content": f"Created {tmp_path}/a.txt (6 bytes).",
    }
    assert (tmp_path / "a.txt").read_text() == "hello\n"
    call, change, result = caller.events
    assert call.tool_call == pb.ToolCall(
        id="call-1",
        name="Write",
        kind=pb.TOOL_KIND_EDIT,
        title="Write a.txt",
        input_json='{"file_path":"a.txt","content":"hello\\n"}',
        status=pb.TOOL_STATUS_RUNNING,
    )
    assert (change.file_change.path, change.file_change.tool_call_id) == (f"{tmp_path}/a.txt", "call-1")
    assert result.tool_result.HasField("duration")
    assert 0 <= result.tool_result.duration.ToNanoseconds() < 1e12
    result.tool_result.ClearField("duration")
    assert result.tool_result == pb.ToolResult(
        tool_call_id="call-1",
        status=pb.TOOL_STATUS_COMPLETED,
        content=f"Created {tmp_path}/a.txt (6 bytes).",
        is_error=False,
    )


async def test_the_results_come_in_the_order_of_the_calls(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    caller = Caller(tmp_path)
    results: Any = await caller.calls.run(
        [
            Call("1", "Read", {"file_path": "a.txt"}),
            Call("2", "Write", {"file_path": "a.txt", "content": "new"}),
            Call("3", "Read", {"file_path": "a.txt"}),
        ]
    )
    assert [(item["tool_use_id"], item["content"]) for item in results if item["tool_use_id"] != "2"] == [
        ("1", "old"),
        ("3", "new"),
    ]


async def test_a_question_shows_the_call(tmp_path: Path) -> None:
    caller = Caller(tmp_path)
    await caller.do("Write", file_path="a.txt", content="x")
    assert caller.questions == [
        pb.InputRequest(
            id="permission-call-1",
            kind=pb.INPUT_KIND_PERMISSION,
            title=f"Write {tmp_path}/a.txt",
            subject=pb.InputSubject(
                tool_call_id="call-1", tool_name="Write", tool_kind=pb.TOOL_KIND_EDIT, paths=[f"{tmp_path}/a.txt"]
            ),
            editable_input_json='{"file_path":"a.txt","content":"x"}',
            options=[
                pb.InputOption(id="allow_once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once"),
                pb.InputOption(
                    id="allow_always",
                    kind=pb.INPUT_OPTION_KIND_ALLOW_ALWAYS,
                    label="Allow Write for the rest of this run",
                ),
                pb.InputOption(id="reject_once", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject"),
            ],
        )
    ]


@pytest.mark.parametrize(
    ("name", "fields", "content"),
    [
        ("Edit", {"file_path": "a.txt"}, "There is no tool 'Edit'; there are Read, Write."),
        ("Read", None, "The input is no JSON object."),
        ("Read", {"file_path": "../a.txt"}, "Paths with '..' are refused; name the file from the working directory."),
        ("Read", {"file_path": "none.txt"}, "none.txt does not exist."),
    ],
    ids=["not-offered", "no-object", "outside", "absent"],
)
async def test_a_call_that_cannot_be_run_fails_and_is_not_asked_about(
    name: str, fields: dict[str, Any] | None, content: str, tmp_path: Path
) -> None:
    caller = Caller(tmp_path)
    (result,) = await caller.calls.run([Call("call-1", name, fields)])
    assert result == {"type": "tool_result", "tool_use_id": "call-1", "content": content, "is_error": True}
    assert (caller.result.status, caller.result.is_error) == (pb.TOOL_STATUS_FAILED, True)
    assert caller.result.content == content
    assert caller.questions == []


@pytest.mark.parametrize(("message", "content"), [("", "Not allowed."), ("Ask me later.", "Ask me later.")])
async def test_what_is_rejected_is_denied_in_the_words_of_who_rejects(
    message: str, content: str, tmp_path: Path
) -> None:
    caller = Caller(tmp_path, Answer(allowed=False, message=message))
    result = await caller.do("Write", file_path="a.txt", content="x")
    assert (result["content"], result["is_error"]) == (content, True)
    assert (caller.result.status, caller.result.is_error) == (pb.TOOL_STATUS_DENIED, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "default", "asked"),
    [
        ("Read", pb.PERMISSION_DECISION_UNSPECIFIED, False),
        ("Read", pb.PERMISSION_DECISION_ASK, False),
        ("Read", pb.PERMISSION_DECISION_DENY, True),
        ("Write", pb.PERMISSION_DECISION_UNSPECIFIED, True),
        ("Write", pb.PERMISSION_DECISION_ALLOW, False),
    ],
)
async def test_reading_needs_no_answer_unless_all_is_denied(
    name: str, default: pb.PermissionDecision.ValueType, asked: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("x")
    caller = Caller(tmp_path, default_decision=default)
    await caller.do(name, file_path="a.txt", content="y")
    assert bool(caller.questions) is asked


async def test_a_rule_denies_reading(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    rule = pb.PermissionRule(tool_name="Read", decision=pb.PERMISSION_DECISION_DENY)
    caller = Caller(tmp_path, NO, rules=[rule])
    await caller.do("Read", file_path="a.txt")
    assert caller.result.status == pb.TOOL_STATUS_DENIED


@pytest.mark.parametrize(
    ("kind", "questions"), [(pb.INPUT_OPTION_KIND_ALLOW_ALWAYS, 1), (pb.INPUT_OPTION_KIND_ALLOW_ONCE, 2)]
)
async def test_always_is_for_the_rest_of_the_run(
    kind: pb.InputOptionKind.ValueType, questions: int, tmp_path: Path
) -> None:
    caller = Caller(tmp_path, option(kind))
    for name in ("a.txt", "b.txt"):
        await caller.do("Write", file_path=name, content="x")
    assert len(caller.questions) == questions
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


async def test_always_is_for_one_tool_and_outranked_by_a_rule(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    rule = pb.PermissionRule(path_glob="**/secret", decision=pb.PERMISSION_DECISION_DENY)
    ask = pb.PermissionRule(tool_name="Read", decision=pb.PERMISSION_DECISION_ASK)
    caller = Caller(tmp_path, option(pb.INPUT_OPTION_KIND_ALLOW_ALWAYS), rules=[rule, ask])
    await caller.do("Write", file_path="b.txt", content="x")
    await caller.do("Read", file_path="a.txt")
    assert [question.subject.tool_name for question in caller.questions] == ["Write", "Read"]
    caller.answer = NO
    refused = await caller.do("Write", file_path="secret", content="x")
    assert refused["content"] == "Not allowed."
    assert not (tmp_path / "secret").exists()


async def test_an_input_that_was_edited_is_the_one_that_runs(tmp_path: Path) -> None:
    caller = Caller(tmp_path, Answer(allowed=True, updated_input_json='{"file_path": "b.txt", "content": "edited"}'))
    await caller.do("Write", file_path="a.txt", content="x")
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]
    assert (tmp_path / "b.txt").read_text() == "edited"


async def test_an_edited_input_without_an_object_changes_nothing(tmp_path: Path) -> None:
    caller = Caller(tmp_path, Answer(allowed=True, updated_input_json="[]"))
    await caller.do("Write", file_path="a.txt", content="x")
    assert (tmp_path / "a.txt").read_text() == "x"


@pytest.mark.parametrize("slash", ["", "/"])
async def test_files_elsewhere_are_read_and_not_written(slash: str, tmp_path: Path) -> None:
    here, there, beside = (tmp_path / name for name in ("here", "there", "there-too"))
    for folder in (here, there, beside):
        folder.mkdir()
        (folder / "a.txt").write_text(folder.name)
    caller = Caller(here, also=(f"{tmp_path}/none", f"{there}{slash}"))
    assert (await caller.do("Read", file_path=f"{there}/a.txt"))["content"] == "there"
    assert (await caller.do("Read", file_path="a.txt"))["content"] == "here"
    outside = f"{beside}/a.txt is outside the working directory."
    assert (await caller.do("Read", file_path=f"{beside}/a.txt"))["content"] == outside
    written = await caller.do("Write", file_path=f"{there}/a.txt", content="x")
    assert written["content"] == f"{there}/a.txt is outside the working directory."
    assert (there / "a.txt").read_text() == "there"


async def test_an_edited_path_is_read_where_it_is(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "a.txt").write_text(folder.name)
    edited = Answer(allowed=True, updated_input_json=f'{{"file_path": "{there}/a.txt"}}')
    caller = Caller(here, edited, also=(str(there),), default_decision=pb.PERMISSION_DECISION_DENY)
    assert (await caller.do("Read", file_path="a.txt"))["content"] == "there"


async def test_a_call_that_waits_for_its_answer_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(tmp_path)
    asked = asyncio.Event()

    async def never(_: pb.InputRequest) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(caller.calls._turn, "ask", never)
    task = asyncio.create_task(caller.do("Write", file_path="a.txt", content="x"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (caller.result.status, caller.result.is_error) == (pb.TOOL_STATUS_CANCELLED, True)
    assert (caller.result.tool_call_id, caller.result.content) == ("call-1", "The run was stopped.")


async def test_a_result_has_the_time_that_its_call_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: Callable[[], float] = iter([10.0, 12.5]).__next__
    monkeypatch.setattr("dragoman.adapters.model_api.calls.time", SimpleNamespace(monotonic=times))
    caller = Caller(tmp_path)
    await caller.do("Read", file_path="a.txt")
    assert caller.result.duration.ToMilliseconds() == 2500
