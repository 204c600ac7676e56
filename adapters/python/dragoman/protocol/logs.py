"""How servers log: structlog, one line per RPC start and end, never payloads, secrets or exception texts."""

import contextlib
import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

__all__ = [
    "LineLogger",
    "LogFormat",
    "configure_logs",
    "failure_fields",
    "where_it_failed",
]

LogFormat = Literal["json", "console", "auto"]


def configure_logs(log_format: LogFormat = "auto", *, level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog for this process. Call it once, in a program's main.

    Args:
        log_format: ``auto`` is ``console`` at a terminal and ``json`` elsewhere.
        level: the least level that is written.
        stream: where to; standard error if absent.
    """
    out = stream if stream is not None else sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    renderer = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if console
        else structlog.processors.JSONRenderer(sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            where_it_failed,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: LineLogger(stream),
        cache_logger_on_first_use=True,
    )


class LineLogger:
    """Writes finished lines. A line that cannot be written is dropped: no call may fail because of it.

    Args:
        stream: where to; absent, what is standard error when a line is written.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write a line."""
        out = self._stream if self._stream is not None else sys.stderr
        # Closed, a pipe without a reader, a full disk.
        with contextlib.suppress(OSError, ValueError):
            out.write(line + "\n")
            out.flush()

    # The names of levels, by which structlog calls it.
    log = debug = info = warn = warning = error = critical = fatal = exception = msg


def where_it_failed(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace ``failure=<exception>`` by ``failure_fields``, wherever one is logged."""
    failure = event.pop("failure", None)
    if isinstance(failure, BaseException):
        event.update(failure_fields(failure))
    return event


def failure_fields(failure: BaseException) -> dict[str, Any]:
    """Return an exception's type and the places it passed, to log instead of the exception.

    An exception's text may quote what it was given: a prompt, a token, a path with a name in it.
    """
    frames = traceback.extract_tb(failure.__traceback__)[-8:]
    trace = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"exception": type(failure).__qualname__, "trace": trace}
