"""How servers log: structlog, one line per RPC start and end, never payloads, secrets or exception texts.

structlog takes longer to import than many commands take in all, so the first line that is written imports it.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, Literal, TextIO

LogFormat = Literal["json", "console", "auto"]

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""The levels and their numbers, as in ``logging``, which takes longer to import than this module."""

_CONTEXT: Final[ContextVar[Mapping[str, Any]]] = ContextVar("dragoman_log_context")
"""What every line of the present call says."""


class _Output:
    """How this process logs; like structlog's configuration there is one."""

    def __init__(self) -> None:
        self.least = 0
        """The least level that is written."""
        self.configure: Callable[[], None] | None = None
        """Configures structlog; ``None`` once that has happened, or if it is left to the program."""


_output = _Output()


class Logger:
    """Writes lines through structlog.

    Args:
        name: the part of Dragoman that logs.
        values: what every line says.
    """

    __slots__ = ("_name", "_values", "_writer")

    def __init__(self, name: str, **values: Any) -> None:
        self._name = name
        self._values = values
        self._writer: Any = None

    def bind(self, **values: Any) -> "Logger":
        """Return a logger whose lines say this too."""
        return Logger(self._name, **{**self._values, **values})

    def debug(self, event: str, **values: Any) -> None:
        """Write what helps to find a fault."""
        self._write("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        """Write what happened."""
        self._write("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Write what an operator should see."""
        self._write("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """Write what an operator has to see to."""
        self._write("error", event, values)

    def _write(self, level: str, event: str, values: dict[str, Any]) -> None:
        if _LEVELS[level] < _output.least:
            return
        if self._writer is None:
            self._writer = _writer(self._name)
        getattr(self._writer, level)(event, **{**self._values, **values})


def _writer(name: str) -> Any:
    import structlog  # noqa: PLC0415 - see above

    if _output.configure is not None:
        configure, _output.configure = _output.configure, None
        configure()
    return structlog.get_logger(name)


def begin_context(**facts: str) -> None:
    """Have every line of a call say this, and nothing of the call before."""
    _CONTEXT.set(facts)


def bind_context(**facts: str) -> None:
    """Have every further line of this call say this too."""
    _CONTEXT.set({**_CONTEXT.get({}), **facts})


def configure_logs(log_format: LogFormat = "auto", *, level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog for this process. Call it once, in a program's main.

    Args:
        log_format: ``auto`` is ``console`` at a terminal and ``json`` elsewhere.
        level: the least level that is written.
        stream: where to; standard error if absent.
    """
    least = _LEVELS[level.lower()]

    def configure() -> None:
        _configure(log_format, least, stream)

    _output.least, _output.configure = least, configure
    if "structlog" in sys.modules:  # then the program may use it as it is
        _output.configure = None
        configure()


def _configure(log_format: LogFormat, least: int, stream: TextIO | None) -> None:
    import structlog  # noqa: PLC0415 - see above

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
            _with_context,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            where_it_failed,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
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


def _with_context(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {**_CONTEXT.get({}), **event}


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
    import traceback  # noqa: PLC0415 - few things fail

    frames = traceback.extract_tb(failure.__traceback__)[-8:]
    trace = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"exception": type(failure).__qualname__, "trace": trace}
