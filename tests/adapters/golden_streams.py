"""Recordings of real agents, put through their parsers, as text: the golden streams."""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.adapters.gemini_cli.parse import StreamParser
from dragoman.adapters.pi.parse import PiParser
from dragoman.sdk import Answer, Ask, Line, Output, Parser, Report, Withdraw, Write
from dragoman.sdk.acp import AcpParser, Conversation
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.adapters.claude_code import replay as claude_code
from tests.adapters.codex import replay as codex
from tests.adapters.copilot import replay as copilot
from tests.adapters.openclaw import test_parse as openclaw
from tests.sdk.acp import talking

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
#: Files beside the recordings that are none.
OTHER = {"index.json"}

#: What makes the parser of a recording, by the folder of the recordings and the beginning of a name; the first wins.
PARSERS: tuple[tuple[Path, str, Callable[[str], Parser]], ...] = (
    (claude_code.RECORDINGS, "", lambda name: ClaudeParser(resumes=claude_code.resumes(name))),
    (HERE / "codex/recordings", "", lambda _: codex.parser()),
    (HERE / "copilot/recordings", "", lambda _: copilot.parser()),
    (HERE / "gemini_cli/recordings", "", lambda _: StreamParser(withholds=False)),
    (HERE / "openclaw/recordings", "", lambda _: openclaw.new_parser()),
    (HERE / "pi/recordings", "", lambda _: PiParser()),
    (HERE / "qwen/recordings", "", lambda _: AcpParser(Conversation(talking.CWD, "hello"))),
    (talking.RECORDINGS, "", lambda _: AcpParser(Conversation(talking.CWD, "hello"))),
)


def recordings() -> Iterator[tuple[str, Path, Callable[[str], Parser]]]:
    """Yield the name of each golden file, its recording, and what makes a parser for it."""
    for folder in dict.fromkeys(folder for folder, _, _ in PARSERS):
        for path in sorted(path for path in folder.iterdir() if path.name not in OTHER):
            name = path.name.partition(".")[0]
            make = next(make for at, prefix, make in PARSERS if at == folder and name.startswith(prefix))
            agent = folder.name if folder.name != "recordings" else folder.parent.name
            yield f"{agent}_{name}", path, make


RECORDINGS = {name: (path, make) for name, path, make in recordings()}


def replay(name: str) -> str:
    """Return what comes out of a recording; and of its first half, if the agent is interrupted or cut off there."""
    path, make = RECORDINGS[name]
    lines = path.read_bytes().splitlines()
    parser = make(path.name.partition(".")[0])
    whole = shown([*_fed(parser, lines), *parser.finish()], parser.report)
    halved = make(path.name.partition(".")[0])
    list(_fed(halved, lines[: len(lines) // 2]))
    interrupt = getattr(halved, "interrupt", tuple)
    return f"{whole}## half of it\n{shown([*interrupt(), *halved.finish()], halved.report)}"


def _fed(parser: Parser, lines: Iterable[bytes]) -> Iterator[Output]:
    return (output for line in lines for output in parser.line("stdout", Line(line, 0, True)))


def shown(outputs: Iterable[Output], report: Report) -> str:
    """Return all of it as text, a line each."""
    lines = [line for output in outputs for line in _output(output)]
    return "\n".join([*lines, f"report {compact(_report(report))}"]) + "\n"


def _output(output: Output) -> Iterator[str]:
    if isinstance(output, pb.AgentEvent):
        yield f"{output.WhichOneof('body')} {compact(_body(output))}"
    elif isinstance(output, Ask):
        lineage = f" {compact(_dict(output.lineage))}" if output.lineage is not None else ""
        yield f"ask {compact(_dict(output.request))}{lineage}"
        for option in output.request.options:
            yield f"  {option.id}: {decoded(output.encode(_answer(option)))}"
    elif isinstance(output, Withdraw):
        yield f"withdraw {output.request_id}"
    elif isinstance(output, Write):
        yield f"write {decoded(output.data)}"
    else:
        yield "close"


def decoded(data: bytes) -> str:
    """Return a message; one with a header that says its length only if that is right."""
    header, _, body = data.partition(b"\r\n\r\n")
    if header == b"Content-Length: %d" % len(body):
        data = body  # the length depends on where the checkout is
    return data.decode().rstrip()


def _answer(option: pb.InputOption) -> Answer:
    allows = option.kind in {pb.INPUT_OPTION_KIND_ALLOW_ONCE, pb.INPUT_OPTION_KIND_ALLOW_ALWAYS}
    return Answer(allowed=allows, option=option, chosen=(option,), message="" if allows else "Not now.")


def _body(event: pb.AgentEvent) -> dict[str, Any]:
    kind = event.WhichOneof("body") or ""
    body = _dict(getattr(event, kind))
    for key in ("tools", "commands", "skills"):  # as long as they are dull
        if kind == "session" and key in body:
            body[key] = f"{len(body[key])} of them"
    if event.HasField("lineage"):
        body["@lineage"] = _dict(event.lineage)
    return body


def _report(report: Report) -> dict[str, Any]:
    return {
        name: plain(value) for name, value in msgspec.structs.asdict(report).items() if value not in (None, "", {})
    }


def plain(value: Any) -> Any:
    if isinstance(value, Message):
        return _dict(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(item) for name, item in msgspec.structs.asdict(value).items()}
    return "a time" if isinstance(value, datetime) else value  # it counts from now


def _dict(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
