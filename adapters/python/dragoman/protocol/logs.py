"""How servers log: one line per RPC start and end, never payloads, secrets or exception texts.

The standard library's ``logging`` writes the lines, below the logger ``dragoman``. ``Log`` adds what that lacks,
fields: ``log.info("rpc ended", code="OK")``.
"""

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

__all__ = [
    "Log",
    "LogFormat",
    "bind_fields",
    "clear_fields",
    "configure_logs",
    "failure_fields",
    "fields_of",
    "get_log",
]

LogFormat = Literal["json", "console", "auto"]

_ROOT = "dragoman"
_NO_FIELDS: Mapping[str, Any] = {}
_bound: ContextVar[Mapping[str, Any]] = ContextVar("bound log fields", default=_NO_FIELDS)
_COLORS = {"debug": 32, "info": 32, "warning": 33, "error": 31}


class Log:
    """A logger whose lines carry fields.

    Args:
        logger: what writes its lines.
        fields: what each of them carries.
    """

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, fields: Mapping[str, Any] = _NO_FIELDS) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: Any) -> "Log":
        """Return a logger whose lines carry these fields too."""
        return Log(self._logger, {**self._fields, **fields})

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log what helps to find a fault."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log what happened."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log what should not happen and is coped with."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Log what needs a look; ``failure=<exception>`` becomes its ``failure_fields``."""
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if isinstance(failure := fields.get("failure"), BaseException):
            del fields["failure"]
            fields.update(failure_fields(failure))
        record = logging.LogRecord(self._logger.name, level, "", 0, event, None, None)
        record.fields = {**_bound.get(), **self._fields, **fields}
        self._logger.handle(record)


def get_log(name: str) -> Log:
    """Return the logger of a part of the program: ``dragoman`` and a name behind a dot."""
    return Log(logging.getLogger(name))


def bind_fields(**fields: Any) -> None:
    """Have each line that this task, and those it starts, log from now on carry these fields too."""
    _bound.set({**_bound.get(), **fields})


def clear_fields() -> None:
    """Forget what ``bind_fields`` added."""
    _bound.set(_NO_FIELDS)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields of a line; empty where another logger wrote it."""
    fields: Mapping[str, Any] = getattr(record, "fields", _NO_FIELDS)
    return fields


def configure_logs(log_format: LogFormat = "auto", *, level: str = "info", stream: TextIO | None = None) -> None:
    """Configure the logs of this process. Call it once, in a program's main.

    Args:
        log_format: ``auto`` is ``console`` at a terminal and ``json`` elsewhere.
        level: the least level that is written.
        stream: where to; if absent, what is standard error when a line is written.
    """
    out = stream if stream is not None else sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    handler = _Lines(stream)
    handler.setFormatter(_Console(colors=out.isatty()) if console else _Json())
    logger = logging.getLogger(_ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


class _Lines(logging.Handler):
    """Writes lines. One that cannot be written is dropped: no call may fail because of it."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        out = self._stream if self._stream is not None else sys.stderr
        # Closed, a pipe without a reader, a full disk.
        with contextlib.suppress(OSError, ValueError):
            out.write(self.format(record) + "\n")
            out.flush()


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"event": record.msg, "level": record.levelname.lower(), "timestamp": _time(record)}
        return json.dumps({**fields_of(record), **line}, default=repr)


class _Console(logging.Formatter):
    def __init__(self, *, colors: bool) -> None:
        super().__init__()
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        shown = f"{level:<8}"
        if self._colors:
            shown = f"\x1b[{_COLORS.get(level, 31)}m{shown}\x1b[0m"
        return " ".join(
            [_time(record), f"[{shown}]", f"{record.msg:<30}", *_pairs(fields_of(record).items())]
        ).rstrip()


def _pairs(fields: Iterable[tuple[str, Any]]) -> Iterable[str]:
    for name, value in sorted(fields):
        plain = isinstance(value, str) and value.isprintable() and value and " " not in value
        yield f"{name}={value if plain else repr(value)}"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def failure_fields(failure: BaseException) -> dict[str, Any]:
    """Return an exception's type and the places it passed, to log instead of the exception.

    An exception's text may quote what it was given: a prompt, a token, a path with a name in it.
    """
    frames = traceback.extract_tb(failure.__traceback__)[-8:]
    trace = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"exception": type(failure).__qualname__, "trace": trace}
