"""The names of an agent's own frames, on the events that come from them, if a run asks for that."""

from collections.abc import Callable

import pytest
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.adapters.codex.parse import AppServerParser
from dragoman.adapters.copilot.parse import CopilotParser
from dragoman.adapters.gemini_cli.parse import StreamParser
from dragoman.sdk import Line, Parser
from dragoman.v1 import event_pb2 as pb

from tests.adapters.codex import replay as codex
from tests.adapters.copilot import replay as copilot
from tests.adapters.golden_streams import RECORDINGS


def _codex(asks: bool) -> Parser:
    job = codex.job()
    job.request.include_native = asks
    return AppServerParser(job, "0.169.0")


def _copilot(asks: bool) -> Parser:
    job = copilot.job()
    job.request.include_native = asks
    return CopilotParser(job, {})


PARSERS: dict[str, Callable[[bool], Parser]] = {
    "claude_text": lambda asks: ClaudeParser(names_frames=asks),
    "codex_text": _codex,
    "copilot_text": _copilot,
    "gemini_cli_drop": lambda asks: StreamParser(withholds=False, names_frames=asks),
}
NAMES: dict[str, set[str]] = {
    "claude_text": {"system/init", "stream_event", "result/success"},
    "codex_text": {"item/agentMessage/delta", "item/completed", "thread/tokenUsage/updated"},
    "copilot_text": {
        *("assistant.message", "assistant.message_delta", "assistant.usage"),
        *("session.skills_loaded", "session.title_changed"),
    },
    "gemini_cli_drop": {"init", "message", "error", "result"},
}


def named(recording: str, asks: bool) -> set[str]:
    parser = PARSERS[recording](asks)
    lines = RECORDINGS[recording][0].read_bytes().splitlines()
    outputs = [output for line in lines for output in parser.line("stdout", Line(line, 0, True))]
    return {output.native.type for output in outputs if isinstance(output, pb.AgentEvent)} - {""}


@pytest.mark.parametrize("recording", PARSERS)
def test_events_have_the_names_of_their_frames(recording: str) -> None:
    assert named(recording, True) == NAMES[recording]
    assert named(recording, False) == set()
