"""Logs: what they say, and that no call fails for them."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from dragoman.protocol.logs import Logger, begin_context, bind_context, configure_logs, failure_fields


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_is_json_with_what_is_bound_and_nothing_below_its_level() -> None:
    out = io.StringIO()
    configure_logs("json", level="info", stream=out)
    log = Logger("test").bind(run_id="r")
    begin_context(rpc="Execute")
    bind_context(peer="p")
    log.debug("unseen")
    log.info("seen", code="OK")
    (line,) = out.getvalue().splitlines()
    seen = json.loads(line)
    del seen["timestamp"]
    assert seen == {"event": "seen", "run_id": "r", "code": "OK", "level": "info", "rpc": "Execute", "peer": "p"}


def test_facts_of_a_call_are_in_its_own_lines_only() -> None:
    out = io.StringIO()
    configure_logs("json", stream=out)
    begin_context(rpc="Execute", run_id="r")
    begin_context(rpc="Cancel")
    Logger("test").info("ended")
    assert "run_id" not in json.loads(out.getvalue())


def test_a_program_that_writes_no_line_does_not_import_structlog() -> None:
    program = (
        "import sys; from dragoman.protocol.logs import Logger, configure_logs; configure_logs(level='critical');"
        "Logger('test').error('unseen'); print('structlog' in sys.modules);"
        "configure_logs('json', stream=sys.stdout); Logger('test').error('seen'); print('structlog' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    before, line, after = done.stdout.splitlines()
    assert (before, json.loads(line)["event"], after) == ("False", "seen", "True")


def test_console_lines_are_for_people() -> None:
    out = io.StringIO()
    configure_logs("console", stream=out)
    Logger("test").warning("look here", adapter="a")
    assert "look here" in out.getvalue()
    assert not out.getvalue().startswith("{")


class _Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [_Broken(), io.StringIO()])
def test_a_stream_that_is_gone_fails_nobodys_call(stream: io.StringIO) -> None:
    configure_logs("json", stream=stream)
    log = Logger("test")
    stream.close()
    log.info("into the void")


def test_standard_error_is_what_it_is_when_a_line_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure_logs("json")
    log = Logger("test")
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
    Logger("test").error("failed", failure=caught.value)
    fields = failure_fields(caught.value)
    assert "very-secret" not in out.getvalue()
    assert fields["exception"] == "RuntimeError"
    assert "test_an_exceptions_text_is_not_logged" in fields["trace"][-1]
