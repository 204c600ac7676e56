"""What a test reads of the logs."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from dragoman.protocol.logs import fields_of

LogLine = dict[str, Any]


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append({**fields_of(record), "event": record.msg, "log_level": record.levelname.lower()})


@contextlib.contextmanager
def capture_logs() -> Iterator[list[LogLine]]:
    """Yield the lines of all levels as they come, and let none be written."""
    kept = _Kept()
    with unchanged_logs():
        logger = logging.getLogger("dragoman")
        logger.handlers[:] = [kept]
        logger.setLevel(logging.DEBUG)
        yield kept.lines


@contextlib.contextmanager
def unchanged_logs() -> Iterator[None]:
    """Undo at the end what is configured meanwhile."""
    logger = logging.getLogger("dragoman")
    handlers, level, propagates = [*logger.handlers], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagates
    logger.setLevel(level)
