"""What the tour says to type next."""

import pytest
from dragoman.cli.tour import type_next
from dragoman.v1 import adapter_pb2 as pb

READY = pb.Detection(adapter="a", available=True, confidence=pb.DETECTION_CONFIDENCE_CONFIDENT)
ABSENT = pb.Detection(adapter="b", confidence=pb.DETECTION_CONFIDENCE_ABSENT, hint="Install\x1b it.")
MUTE = pb.Detection(adapter="c", confidence=pb.DETECTION_CONFIDENCE_ABSENT, message="It is not there.")
GENERIC = pb.Detection(adapter="process", available=True, confidence=pb.DETECTION_CONFIDENCE_NOT_APPLICABLE)


def test_what_would_make_an_agent_ready_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    type_next([ABSENT, MUTE, GENERIC])
    out = capsys.readouterr().out
    assert "[dragoman]   b: Install␛ it.  (then make run again)\n" in out
    assert "[dragoman]   c: It is not there.  (then make run again)\n" in out
    assert "process: " not in out


def test_agents_that_are_ready_come_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    type_next([READY, ABSENT])
    out = capsys.readouterr().out
    assert "  make run AGENT=a PROMPT=" in out
    assert "Install" not in out
