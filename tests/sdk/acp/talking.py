"""A conversation with an agent that is only lines: what the parser makes of them, and what it says."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.sdk import Ask, CloseInput, Line, Output, Write
from dragoman.sdk.acp import AcpOptions, AcpParser, Conversation
from dragoman.v1 import event_pb2 as pb

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))
CWD = "/project"

#: What most agents answer to the first two requests.
READY = (
    {"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}},
    {"id": 2, "result": {"sessionId": "s-1"}},
)


def recorded(name: str) -> bytes:
    return (RECORDINGS / f"{name}.jsonl").read_bytes()


def update(what: str, session: str = "s-1", /, **fields: Any) -> dict[str, Any]:
    return {"method": "session/update", "params": {"sessionId": session, "update": {"sessionUpdate": what, **fields}}}


def agent_text(text: str, **fields: Any) -> dict[str, Any]:
    return update("agent_message_chunk", content={"type": "text", "text": text}, **fields)


def asks(method: str, request_id: Any = 7, **params: Any) -> dict[str, Any]:
    return {"id": request_id, "method": method, "params": {"sessionId": "s-1", **params}}


@dataclass
class Talk:
    """One attempt: feed it what the agent says."""

    options: AcpOptions = field(default_factory=AcpOptions)
    conversation: Conversation = field(default_factory=lambda: Conversation(CWD, "hello"))
    outputs: list[Output] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parser = AcpParser(self.conversation, self.options)

    @classmethod
    def ready(cls, *frames: dict[str, Any], **options: Any) -> "Talk":
        """Return a conversation whose prompt was sent, and where ``frames`` came after it."""
        talk = cls(AcpOptions(**options))
        return talk.hear(*READY, *frames)

    def hear(self, *frames: dict[str, Any]) -> "Talk":
        return self.feed(json.dumps({"jsonrpc": "2.0", **frame}).encode() for frame in frames)

    def feed(self, lines: Iterable[bytes]) -> "Talk":
        for line in lines:
            self.outputs += self.parser.line("stdout", Line(line, 0, True))
        return self

    @property
    def written(self) -> list[dict[str, Any]]:
        """What was written to the agent."""
        return [json.loads(output.data) for output in self.outputs if isinstance(output, Write)]

    @property
    def asked(self) -> list[Ask]:
        return [output for output in self.outputs if isinstance(output, Ask)]

    @property
    def closes(self) -> bool:
        return any(isinstance(output, CloseInput) for output in self.outputs)

    @property
    def events(self) -> list[pb.AgentEvent]:
        return [output for output in self.outputs if isinstance(output, pb.AgentEvent)]

    def of(self, kind: str) -> list[Any]:
        return [getattr(event, kind) for event in self.events if event.WhichOneof("body") == kind]

    @property
    def text(self) -> str:
        return "".join(text.delta for text in self.of("text"))
