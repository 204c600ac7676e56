"""Logs: what they say, and that no call fails for them."""

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog
from dragoman.protocol.logs import configure_logs, failure_fields


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_is_json_with_what_is_bound_and_nothing_below_its_level() -> None:
    out = io.StringIO()
    configure_logs("json", level="info", stream=out)
    log = structlog.get_logger("test").bind(run_id="r")
    log.debug("unseen")
    log.info("seen", code="OK")
    (line,) = out.getvalue().splitlines()
    seen = json.loads(line)
    assert (seen["event"], seen["run_id"], seen["code"], seen["level"]) == ("seen", "r", "OK", "info")


def test_console_lines_are_for_people() -> None:
    out = io.StringIO()
    configure_logs("console", stream=out)
    structlog.get_logger("test").warning("look here", adapter="a")
    assert "look here" in out.getvalue()
    assert not out.getvalue().startswith("{")


class _Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [_Broken(), io.StringIO()])
def test_a_stream_that_is_gone_fails_nobodys_call(stream: io.StringIO) -> None:
    configure_logs("json", stream=stream)
    log = structlog.get_logger("test")
    stream.close()
    log.info("into the void")


def test_standard_error_is_what_it_is_when_a_line_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure_logs("json")
    log = structlog.get_logger("test")
    log.info("one")
    monkeypatch.setattr(sys, "stderr", second)
    log.info("two")
    assert "one" in first.getvalue()
    assert "two" in second.getvalue()


def test_an_exceptions_text_is_not_logged() -> None:
    out = io.StringIO()
    configure_logs("json", stream=out)
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("sk-very-secret")
    structlog.get_logger("test").error("failed", failure=caught.value)
    fields = failure_fields(caught.value)
    assert "very-secret" not in out.getvalue()
    assert fields["exception"] == "RuntimeError"
    assert "test_an_exceptions_text_is_not_logged" in fields["trace"][-1]
