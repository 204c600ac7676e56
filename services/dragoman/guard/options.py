"""The guard's command line.

Parsed by hand: ``argparse`` costs more start-up time than the rest of the guard's own code.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket: ``sun_path`` holds 108 bytes with the terminating zero."""

ARGUMENTS_FD = "--arguments-fd"
"""The option that names a descriptor to read all other arguments from; it stands alone."""

WAIT_FD = "--wait-fd"
"""The option that names the owner's socket, through which the command comes; it stands alone."""

DEFAULT_LINGER_S = 1.0
DEFAULT_GRACE_S = 10.0
DEFAULT_ORPHAN_AFTER_S = 60.0


class UsageError(Exception):
    """The command line is invalid; the message says what to change."""


class Options:
    """The options of one guard.

    Attributes:
        argv: The command, never empty; looked up in ``PATH`` unless it contains a slash.
        cwd: The command's working directory; None means the guard's own.
        environment: ``NAME=value`` of each of the command's variables; None means those of the guard.
        control_fd: Connected socket to the owner, or to the launcher of what routers own; None when there is none.
        control: Path of the control socket to listen on, for routers; None when there is none.
        instance: Path of the instance file; set exactly when ``control`` is.
        instance_id: Recorded in the instance file; chosen by the launcher.
        listen: Recorded in the instance file: where the command listens.
        log: Path of the rotated log; set exactly when ``control`` is.
        log_bytes: Size in bytes at which the log is rotated.
        log_keep: How many rotated logs are kept beside the current one.
        orphan_after: Seconds without a connected router before the guard stops the command.
        grace: Seconds between TERM and KILL for the command; None means no limit.
        linger: Seconds between TERM and KILL for processes that outlive the command.
        remove: Directory that the guard removes at the end, also if its owner is gone.
        stays: Whether the guard waits for another command, once this one has left nothing behind.
        subreaper: False makes the guard behave as on systems without a subreaper.
    """

    __slots__ = (
        "argv",
        "control",
        "control_fd",
        "cwd",
        "environment",
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
        "stays",
        "subreaper",
    )

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.control_fd: int | None = None
        self.control: str | None = None
        self.cwd: str | None = None
        self.environment: list[str] | None = None
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
        self.stays = False
        self.subreaper = True

    @property
    def is_forwarding(self) -> bool:
        """Whether the guard has no owner, as the first process of a container."""
        return self.control_fd is None and self.control is None


def parse(arguments: Sequence[str]) -> Options:
    """Read the arguments that follow the program's name.

    Raises:
        UsageError: An option is unknown, lacks its value, has a bad one, or contradicts another.
    """
    own, argv = _split(_read_arguments(arguments))
    options = Options(argv)
    rest = iter(own)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--no-subreaper":
            options.subreaper = False
            continue
        if argument == "--stays":
            options.stays = True
            continue
        convert = _VALUES.get(name)
        if convert is None:
            raise UsageError(f"unknown option {argument!r}; separate the command with --")
        if not equals:
            value = next(rest, "")
        converted = _converted(name, value, convert)
        if name == "--environment":
            options.environment = [next(rest, "") for _ in range(int(value))]
            continue
        setattr(options, name[2:].replace("-", "_"), converted)
    _check(options)
    return options


def _read_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments, read from the descriptor that they name, if they do; zero bytes separate them there."""
    if len(arguments) != 1 or not arguments[0].startswith(f"{ARGUMENTS_FD}="):
        return arguments
    try:
        fd = int(arguments[0].partition("=")[2])
        with open(fd, "rb") as file:
            return os.fsdecode(file.read()).split("\0")
    except (OSError, ValueError) as error:
        raise UsageError(f"{arguments[0]}: {error}") from None


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    arguments = list(arguments)
    if "--" not in arguments:
        raise UsageError("usage: python -m dragoman.guard [options] -- command [argument...]")
    cut = arguments.index("--")
    if not arguments[cut + 1 :]:
        raise UsageError("missing command after --")
    return arguments[:cut], arguments[cut + 1 :]


def _converted(name: str, value: str, convert: Callable[[str], object]) -> object:
    if not value:
        raise UsageError(f"{name} requires a value")
    try:
        return convert(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _check(options: Options) -> None:
    together = [options.control is None, options.instance is None, options.log is None]
    if any(together) and not all(together):
        raise UsageError("--control, --instance and --log require each other")
    if options.control is not None and options.control_fd is None:
        raise UsageError("--control requires --control-fd")
    if options.grace is None and not options.is_forwarding:
        options.grace = DEFAULT_GRACE_S


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{value!r} is not a number of seconds >= 0")
    return seconds


def _count(value: str) -> int:
    count = int(value)
    if count < 0:
        raise ValueError(f"{value!r} is not an integer >= 0")
    return count


def _positive(value: str) -> int:
    count = _count(value)
    if count == 0:
        raise ValueError("must be at least 1")
    return count


def _socket_path(value: str) -> str:
    size = len(value.encode("utf-8", "surrogateescape"))
    if size > SOCKET_PATH_BYTES:
        raise ValueError(f"the socket path has {size} bytes, the system allows {SOCKET_PATH_BYTES}: {value}")
    return value


_VALUES: dict[str, Callable[[str], object]] = {
    "--control": _socket_path,
    "--control-fd": _count,
    "--cwd": str,
    "--environment": _count,
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
