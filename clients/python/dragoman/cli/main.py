"""The entry point ``dragoman``."""

import contextlib
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        argv: the arguments; absent, the process's own.
    """
    # gRPC's fork handlers kill children of a process that launches many; its own log is for its developers.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    with contextlib.ExitStack() as stack:
        starting = None
        if arguments[:1] == ["run"]:
            from dragoman.cli.connection.early import started_early  # noqa: PLC0415 - only such a command needs it

            starting = stack.enter_context(started_early(arguments[1:]))
        # click is imported while an adapter starts.
        from dragoman.cli.dispatch import run  # noqa: PLC0415

        return run(arguments, starting)


def _open_closed_streams() -> None:
    """Open closed standard streams on the null device.

    Otherwise the next socket or file would get the descriptor, and everything that writes to it would corrupt it.
    The lowest one is opened first, so that each gets its own number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - it lasts as long as the program
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def script() -> None:
    """Run as a program: like `main`, but end the process.

    It ends at once: after a cancelled call, gRPC's clean-up at exit sometimes blocks forever.
    """
    try:
        code = main()
    except KeyboardInterrupt:  # before the command began
        sys.stderr.write("interrupted\n")
        code = 130
    try:
        sys.stdout.flush()
    except OSError as error:
        from dragoman.cli.dispatch import system_error  # noqa: PLC0415 - as above

        code = system_error(error)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    script()
