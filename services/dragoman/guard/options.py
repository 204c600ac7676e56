"""The guard's command line: words to values and back.

Parsed by hand: ``argparse`` costs more start-up time than the rest of the guard's own code.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket: ``sun_path`` holds 108 bytes with the terminating zero."""

DEFAULT_LINGER_S = 1.0
DEFAULT_GRACE_S = 10.0
DEFAULT_ORPHAN_AFTER_S = 60.0


class UsageError(Exception):
    """The command line cannot be obeyed; the text says what to change."""


class Options:
    """What one guard was asked to do.

    Attributes:
        argv: The command, never empty; looked up in ``PATH`` unless it contains a slash.
        control_fd: Connected socket to the owner; None when there is none.
        control: Path of the control socket to listen on; None when there is none.
        instance: Path of the instance file; set exactly when ``control`` is.
        instance_id: Recorded in the instance file; chosen by the launcher.
        listen: Recorded in the instance file: where the command listens.
        log: Path of the rotated log; set exactly when ``control`` is.
        log_bytes: Size in bytes at which the log is rotated.
        log_keep: How many rotated logs are kept beside the current one.
        orphan_after: Seconds without a connected router before the command is asked to stop.
        grace: Seconds between asking the command to stop and killing; None means for ever.
        linger: Seconds that processes left behind by the command get between TERM and KILL.
        remove: Directory to remove once the command and all it started are gone, whoever else has died meanwhile.
        subreaper: False makes the guard behave as on systems that have no subreaper.
    """

    __slots__ = (
        "argv",
        "control",
        "control_fd",
        "grace",
        "instance",
        "instance_id",
        "linger",
        "listen",
        "log",
        "log_bytes",
        "log_keep",
        "orphan_after",
        "remove",
        "subreaper",
    )

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.control_fd: int | None = None
        self.control: str | None = None
        self.instance: str | None = None
        self.instance_id = ""
        self.listen = ""
        self.log: str | None = None
        self.log_bytes = 8 << 20
        self.log_keep = 3
        self.orphan_after = DEFAULT_ORPHAN_AFTER_S
        self.grace: float | None = None
        self.linger = DEFAULT_LINGER_S
        self.remove: str | None = None
        self.subreaper = True

    @property
    def is_forwarding(self) -> bool:
        """True when nobody owns the guard: it is the first process of a container."""
        return self.control_fd is None and self.control is None


def parse(words: Sequence[str]) -> Options:
    """Read the arguments that follow the program's name.

    Raises:
        UsageError: An option is unknown, lacks its value, has a bad one, or contradicts another.
    """
    own, argv = _split(words)
    options = Options(argv)
    rest = iter(own)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == "--no-subreaper" and not equals:
            options.subreaper = False
            continue
        convert = _VALUES.get(name)
        if convert is None:
            raise UsageError(f"unknown option {word!r}; put -- before the command")
        if not equals:
            value = next(rest, "")
        setattr(options, name[2:].replace("-", "_"), _converted(name, value, convert))
    _check(options)
    return options


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(words)
    if "--" not in words:
        raise UsageError("usage: python -m dragoman.guard [options] -- command [argument...]")
    cut = words.index("--")
    if not words[cut + 1 :]:
        raise UsageError("no command after --")
    return words[:cut], words[cut + 1 :]


def _converted(name: str, value: str, convert: Callable[[str], object]) -> object:
    if not value:
        raise UsageError(f"{name} needs a value")
    try:
        return convert(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _check(options: Options) -> None:
    together = [options.control is None, options.instance is None, options.log is None]
    if any(together) and not all(together):
        raise UsageError("--control, --instance and --log are given together or not at all")
    if options.control is not None and options.control_fd is not None:
        raise UsageError("--control and --control-fd exclude each other")
    if options.grace is None and not options.is_forwarding:
        options.grace = DEFAULT_GRACE_S


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{value!r} is not a number of seconds, 0 or more")
    return seconds


def _count(value: str) -> int:
    count = int(value)
    if count < 0:
        raise ValueError(f"{value!r} is negative")
    return count


def _positive(value: str) -> int:
    count = _count(value)
    if count == 0:
        raise ValueError("must be at least 1")
    return count


def _socket_path(value: str) -> str:
    size = len(value.encode("utf-8", "surrogateescape"))
    if size > SOCKET_PATH_BYTES:
        raise ValueError(f"a socket path holds at most {SOCKET_PATH_BYTES} bytes, this one has {size}: {value}")
    return value


_VALUES: dict[str, Callable[[str], object]] = {
    "--control": _socket_path,
    "--control-fd": _count,
    "--grace": _seconds,
    "--instance": str,
    "--instance-id": str,
    "--linger": _seconds,
    "--remove": str,
    "--listen": str,
    "--log": str,
    "--log-bytes": _positive,
    "--log-keep": _count,
    "--orphan-after": _seconds,
}
