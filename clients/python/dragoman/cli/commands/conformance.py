"""``dragoman conformance``: examine an adapter in any language, or a router, against the contract's rules."""

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Self, cast

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import Seconds, option, text, with_options
from dragoman.cli.display.printing import print_lines
from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.table import table
from dragoman.cli.display.text import one_line
from dragoman.cli.error_report import ErrorReport
from dragoman.conformance import (
    RULES,
    LaunchError,
    Options,
    Outcome,
    Progress,
    Report,
    Verdict,
    read_expected_failures,
    run_checks,
)
from dragoman.conformance.kit import AgentKind
from dragoman.conformance.reports import as_html, as_json, as_junit, progress_as_json
from dragoman.conformance.runner import CHECK_S
from msgspec import Struct
from msgspec.structs import replace

_EXIT_KIT = 3
_EXIT_TERMINATED = 128 + signal.SIGTERM
_LONGEST_MESSAGE = 1000
_STYLES = {
    Verdict.PASSED: Style.ASSISTANT,
    Verdict.FAILED: Style.ERROR,
    Verdict.SKIPPED: Style.FAINT,
    Verdict.ERROR: Style.ERROR,
}
_EXAMPLES = """
\b
Examples:
  dragoman conformance --config '{"command": "{script}"}' -- ./my-adapter
  dragoman conformance unix:/tmp/adapter.sock --only cancel. --only run.
  dragoman conformance 127.0.0.1:7777 --adapter process --config '{"command": "{script}", "output": "jsonl"}'
"""


class TargetOptions(Struct, frozen=True):
    """What every run of the target is."""

    adapter: Annotated[str, text("--adapter", "NAME", "The adapter's type; needed at a router.")]
    config: Annotated[
        str,
        option(
            "--config",
            "The config of every run. {script} is the program of the scripted agent, {model_url} the address of a "
            "scripted model server, {folder} a temporary directory.",
            "JSON",
            default="{}",
        ),
    ]
    env: Annotated[tuple[str, ...], option("--env", "A variable of every run, as above.", "NAME=VALUE")]
    agent: Annotated[
        str | None,
        option(
            "--agent",
            "Which deterministic agent the adapter runs; by default concluded from --config and --env.",
            type=click.Choice(["script", "model", "none"]),
        ),
    ]
    only: Annotated[tuple[str, ...], option("--only", "Only this rule, or those that begin so.", "ID")]
    check_s: Annotated[
        float,
        option(
            "--check-timeout",
            "How long one check may take; more for agents that start slowly.",
            "SECONDS",
            type=Seconds(),
            default=CHECK_S,
            show_default=True,
        ),
    ]
    expected: Annotated[
        Path | None,
        option(
            "--expected-failures",
            "A file with IDs of rules that are known to fail, one a line. One that does not fail is an error.",
            "FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
        ),
    ]

    def options(self, target: tuple[str, ...]) -> Options:
        """Return the library's options.

        Raises:
            ValueError: a value is wrong.
        """
        is_address = len(target) == 1 and ":" in target[0] and not Path(target[0]).exists()
        return Options(
            address=target[0] if is_address else "",
            command=() if is_address else target,
            adapter=self.adapter,
            config=self.config,
            env=dict(_variable(item) for item in self.env),
            agent=cast("AgentKind | None", self.agent),
            only=self.only,
            check_s=self.check_s,
            expected_failures=read_expected_failures(self.expected) if self.expected else frozenset(),
        )


class ReportOptions(Struct, frozen=True):
    """Where the report goes."""

    as_json: Annotated[bool, option("--json", "Print one line of JSON per rule, and the report as the last.")]
    junit: Annotated[
        Path | None,
        option("--junit", "Write a JUnit report.", "FILE", type=click.Path(dir_okay=False, path_type=Path)),
    ]
    html: Annotated[
        Path | None,
        option(
            "--html", "Write a page with a support table.", "FILE", type=click.Path(dir_okay=False, path_type=Path)
        ),
    ]
    log: Annotated[
        Path | None,
        option(
            "--log",
            "Keep what the COMMAND prints, such as the traces of its failures.",
            "FILE",
            type=click.Path(dir_okay=False, path_type=Path),
        ),
    ]
    verbose: Annotated[bool, option("--verbose", "Show the rules that are kept, too.")]

    def require_usable(self, *, of_command: bool) -> None:
        """Require that the files can be written, before a run of minutes.

        Args:
            of_command: whether the target is a command, whose output there is to keep.

        Raises:
            ValueError: one cannot.
        """
        if self.log and not of_command:
            raise ValueError("--log keeps what a COMMAND prints; a server at an address prints elsewhere")
        for path in filter(None, (self.junit, self.html, self.log)):
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise ValueError(f"the file {str(path)!r} cannot be written")

    def write(self, report: Report) -> None:
        """Write the report."""
        if self.junit:
            self.junit.write_text(as_junit(report), encoding="utf-8")
        if self.html:
            self.html.write_text(as_html(report), encoding="utf-8")
        if self.as_json:
            print_json_line(as_json(report))
        else:
            _print(report, is_verbose=self.verbose)


@click.command("conformance", epilog=_EXAMPLES)
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="ADDRESS | -- COMMAND...")
@with_options("options", TargetOptions)
@with_options("output", ReportOptions)
@click.option("--list", "is_list", is_flag=True, help="List the rules, and examine nothing.")
def conformance_command(target: tuple[str, ...], options: TargetOptions, output: ReportOptions, is_list: bool) -> int:
    """Examine an adapter in any language, or a router, against the rules of the contract.

    The target is the ADDRESS of a running server, or a COMMAND that listens where DRAGOMAN_LISTEN or {listen} in its
    arguments says.

    Exit code: 0 no MUST rule is violated, 1 one is or an expected failure did not fail, 2 wrong usage, 3 the target
    cannot be reached or ended meanwhile, or the kit itself failed.
    """
    if is_list:
        rows = [(rule.id, rule.level.value, rule.text) for rule in RULES.values()]
        print_lines(table(("RULE", "LEVEL", "TEXT"), rows, empty="no rules"))
        return 0
    if not target:
        raise click.UsageError("give the address of a server, or -- and the command of an adapter")
    try:
        examined = options.options(target)
        output.require_usable(of_command=bool(examined.command))
        with _Progress(is_json=output.as_json) as progress:
            report = asyncio.run(_examined(replace(examined, log=output.log), progress))
    except LaunchError as error:
        raise CommandError(ErrorReport(str(error), exit_code=_EXIT_KIT)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except asyncio.CancelledError:
        return _EXIT_TERMINATED
    output.write(report)
    if report.stopped:
        hint = "The other rules were not examined. Name one rule with --only to see whether it ends the target alone."
        raise CommandError(ErrorReport(report.stopped, hint=hint, exit_code=_EXIT_KIT))
    if report.violations and examined.command and not output.log:
        click.echo("--log FILE keeps what the target prints, such as the traces of its failures.", err=True)
    return report.exit_code


async def _examined(options: Options, progress: "_Progress") -> Report:
    """Run the kit; SIGTERM cancels it, as SIGINT does, so that the target ends with it."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_checks(options, on_progress=progress.show)


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"--env {text!r} is not NAME=VALUE")
    return name, value


class _Progress:
    """Shows how far the kit is: a line at a terminal, and lines of JSON for programs.

    Args:
        is_json: whether to print a line of JSON for each rule.
    """

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._write("")

    def show(self, progress: Progress) -> None:
        """Show which rules are being examined, and how many are done."""
        if self._is_json and progress.outcome is not None:
            print_json_line(progress_as_json(progress, progress.outcome))
        self._write(progress_line(progress, shutil.get_terminal_size().columns))

    def _write(self, line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()


def print_json_line(values: dict[str, object]) -> None:
    """Print a line of JSON at once: a program waits for it."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def progress_line(progress: Progress, columns: int) -> str:
    """Return the state of the kit in one line that fits a terminal."""
    line = f"{progress.done} of {progress.total}  {', '.join(progress.running)}"
    return line if len(line) < columns else f"{line[: max(columns - 2, 0)]}…"


def _print(report: Report, *, is_verbose: bool) -> None:
    shown = [outcome for outcome in report.outcomes if is_verbose or outcome.verdict is not Verdict.PASSED]
    for outcome in shown:
        print_lines(_lines(outcome))
    for rule_id in report.stale:
        print_lines([[Segment(f"{rule_id} is expected to fail, and did not fail", Style.ERROR)]])
    if report.unexamined:
        line = f"declared, not examined: {', '.join(report.unexamined)}"
        print_lines([[Segment(one_line(line, _LONGEST_MESSAGE), Style.STRONG)]])
    described = report.described
    counts = ", ".join(f"{report.count(verdict)} {verdict.value}" for verdict in Verdict if report.count(verdict))
    name = f"{'router, ' if report.is_router else ''}{described.adapter} {described.version}".strip()
    summary = f"{name}, revision {described.revision}: {counts} in {report.duration_s:.1f} s"
    print_lines([[Segment(one_line(summary, _LONGEST_MESSAGE), Style.STRONG)]])


def _lines(outcome: Outcome) -> list[list[Segment]]:
    rule = outcome.rule
    verdict = outcome.verdict.value + (" (expected)" if outcome.is_expected else "")
    head = [Segment(f"{verdict:8}", _STYLES[outcome.verdict]), Segment(f"  {rule.id}", Style.STRONG)]
    if outcome.verdict is Verdict.PASSED:
        return [[*head, Segment(f"  {rule.text}")]]
    if outcome.verdict is Verdict.SKIPPED:
        return [[*head, Segment(f"  {one_line(outcome.message, _LONGEST_MESSAGE)}", Style.FAINT)]]
    return [
        [*head, Segment(f"  {rule.level}  {rule.text}")],
        [Segment(f"{'':10}{one_line(outcome.message, _LONGEST_MESSAGE)}")],
        [Segment(f"{'':10}{rule.place}", Style.FAINT)],
    ]
