"""The table of commands, and what becomes of their errors.

Nothing heavy is imported here: a command's module is loaded when the command is used, so that ``dragoman --help``
and a mistyped name answer at once.
"""

import errno
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click
from dragoman.cli.command_error import CommandError


class _Lazy(NamedTuple):
    module: str
    help: str


COMMANDS: dict[str, _Lazy] = {
    "run": _Lazy("dragoman.cli.commands.run", "Run an agent and show what it does."),
    "attach": _Lazy("dragoman.cli.commands.run", "Follow a run: replay, then live events."),
    "cancel": _Lazy("dragoman.cli.commands.control", "Cancel a run."),
    "respond": _Lazy("dragoman.cli.commands.control", "Answer an input request of a run."),
    "update": _Lazy("dragoman.cli.commands.control", "Change the model or permission mode of a run."),
    "send": _Lazy("dragoman.cli.commands.control", "Give a run an input while its agent works."),
    "changes": _Lazy("dragoman.cli.commands.control", "Show what a run changed in its workspace."),
    "artifacts": _Lazy("dragoman.cli.commands.artifacts", "List or read the files that a run left."),
    "runs": _Lazy("dragoman.cli.commands.runs", "List runs, including finished ones."),
    "show": _Lazy("dragoman.cli.commands.runs", "Show the details of a run."),
    "sessions": _Lazy("dragoman.cli.commands.sessions", "List, show and delete stored sessions."),
    "agents": _Lazy("dragoman.cli.commands.agents", "List, show, store and delete stored agents."),
    "detect": _Lazy("dragoman.cli.commands.inspect", "Detect installed agents and their logins."),
    "login": _Lazy("dragoman.cli.commands.inspect", "Log an agent in."),
    "quota": _Lazy("dragoman.cli.commands.inspect", "Show how much of an account's rate limits is used."),
    "adapters": _Lazy("dragoman.cli.commands.inspect", "List a router's adapters."),
    "describe": _Lazy("dragoman.cli.commands.inspect", "Show how an adapter is configured."),
    "test": _Lazy("dragoman.cli.commands.inspect", "Check whether a run could work."),
    "demo": _Lazy("dragoman.cli.commands.demo", "Show a whole run, offline and without an agent."),
    "serve": _Lazy("dragoman.cli.commands.serve", "Run a router."),
    "health": _Lazy("dragoman.cli.commands.health", "Ask whether a router or an adapter serves."),
    "policy": _Lazy("dragoman.cli.commands.policy", "Check the policy of a router's operator."),
    "budgets": _Lazy("dragoman.cli.commands.budgets", "Show what the operator's budgets have left."),
    "webhook": _Lazy("dragoman.cli.commands.webhook", "Try the webhooks of a router."),
    "token": _Lazy("dragoman.cli.commands.token", "Print the token that servers require over TCP, or make others."),
    "adapter": _Lazy("dragoman.cli.commands.serve", "Serve, write or restart one adapter."),
    "conformance": _Lazy("dragoman.cli.commands.conformance", "Examine an adapter in any language, or a router."),
}
"""Every command, with its module and its summary in the help."""


class _LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if entry.module not in sys.modules:
            from dragoman.protocol.importing import importing  # noqa: PLC0415 - not for the help

            with importing():
                importlib.import_module(entry.module)
        command = getattr(sys.modules[entry.module], f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - for mistyped names alone

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " 'dragoman --help' lists the commands."
            raise click.UsageError(f"command {args[0]!r} not found.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


_WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of writing. Without a file name they are standard output's: it is the only file without one."""


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dragoman", prog_name="dragoman")
def cli() -> None:
    """Run any coding agent through one contract.

    Exit code: 0 the run succeeded, 1 it failed, 2 wrong usage, 130 the run was cancelled.
    """


def run(arguments: Sequence[str], starting: object = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: the command line.
        starting: what starts the adapter of a router in this process, if that was opened; see ``connection.early``.
    """
    try:
        outcome = cli.main(list(arguments), prog_name="dragoman", standalone_mode=False, obj=starting)
    except CommandError as error:
        return _report(error, arguments)
    except click.ClickException as error:
        return _usage(error, arguments)
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return 130
    except OSError as error:
        return system_error(error)
    except UnicodeEncodeError as error:
        return _usage(_not_utf8(error), arguments)
    return outcome if isinstance(outcome, int) else 0


def system_error(error: OSError) -> int:
    """Report that something could not be read or written; return the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        # The text is still in the buffer, and would raise a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 1  # the reader of the output has exited; no one would see a message
    is_output = error.filename is None and error.errno in _WRITE_ERRORS
    sys.stderr.write(f"error: {f'cannot write the output: {error.strerror}' if is_output else error}\n")
    return 1


def _not_utf8(error: UnicodeEncodeError) -> click.UsageError:
    """Return the error for text of the system's that the contract cannot carry, as that is not UTF-8.

    Raises:
        UnicodeEncodeError: it is another encoding that lacks a character.
    """
    if error.encoding != "utf-8":
        raise error
    part = ascii(error.object[max(0, error.start - 40) : error.start + 40]).replace("\\udc", "\\x")
    return click.UsageError(f"not UTF-8, in an argument, a variable or the current directory: {part}")


def _report(error: CommandError, arguments: Sequence[str]) -> int:
    # The code that raised the error has loaded this module already.
    from dragoman.cli.errors import as_json, as_text  # noqa: PLC0415

    report = error.report
    sys.stderr.write(as_json(report) if "--json" in arguments else as_text(report))
    return report.exit_code


def _usage(error: click.ClickException, arguments: Sequence[str]) -> int:
    if "--json" in arguments:
        sys.stderr.write(json.dumps({"error": {"message": error.format_message(), "reason": "USAGE"}}) + "\n")
    else:
        error.show()
    return error.exit_code
