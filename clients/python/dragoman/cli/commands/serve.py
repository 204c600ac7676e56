"""``dragoman serve`` and ``dragoman adapter serve``."""

import importlib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click
from dragoman.cli._failures import Complaint
from dragoman.cli._problem import ProblemError
from dragoman.cli._summary import EXIT_USAGE
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.identity import near_names

_GROUP = "dragoman.adapters"
_DEFAULT_LISTEN = "127.0.0.1:7777"

_EXAMPLES = """\b
Examples:
  dragoman adapter serve process --listen unix:/run/user/1000/process.sock
  dragoman adapter serve my_package.my_adapter:adapter --listen 127.0.0.1:7801
"""

_log_format = click.option(
    "--log-format", type=click.Choice(["auto", "json", "console"]), default="auto", help="auto: by the terminal."
)
_log_level = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="The least told."
)


@click.command("serve", epilog="\b\nExample:\n  dragoman serve --listen unix:$XDG_RUNTIME_DIR/dragoman.sock")
@click.option(
    "--listen",
    metavar="ADDR",
    multiple=True,
    default=[_DEFAULT_LISTEN],
    show_default=True,
    help="unix:/path or host:port on loopback; port 0 takes a free one. May be repeated.",
)
@click.option(
    "--adapter",
    "adapters",
    metavar="ADDR",
    multiple=True,
    help="Where an adapter listens that somebody else started. May be repeated.",
)
@click.option(
    "--manifest",
    "manifests",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    multiple=True,
    help="A manifest, or a folder of them, that names an adapter's command. May be repeated.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where runs, logs of adapters and detections are kept. Default: the user's own directories.",
)
@click.option(
    "--run-log",
    metavar="URL",
    default="",
    envvar="DRAGOMAN_RUN_LOG",
    show_envvar=True,
    help="Where runs are kept: a postgresql:// URL, which several routers may share, or 'memory'. "
    "Default: a SQLite file in the state directory.",
)
@click.option(
    "--advertise",
    metavar="ADDR",
    envvar="DRAGOMAN_ADVERTISE",
    show_envvar=True,
    help="Where other routers of the same run log reach this one. Default: the first --listen.",
)
@click.option(
    "--max-runs",
    "max_runs_pairs",
    metavar="ADAPTER=N",
    multiple=True,
    help="How many runs an adapter may have at once. Default: any number. May be repeated.",
)
@_log_format
@_log_level
def serve_command(
    listen: tuple[str, ...],
    adapters: tuple[str, ...],
    manifests: tuple[Path, ...],
    state_dir: Path | None,
    run_log: str,
    advertise: str | None,
    max_runs_pairs: tuple[str, ...],
    log_format: Any,
    log_level: str,
) -> None:
    """Run a router until it is told to stop (SIGTERM, Ctrl-C; twice: at once).

    It launches the installed adapters when they are first needed. SIGHUP looks for agents anew.
    """
    from dragoman.cli._router import RouterConfig, serve  # noqa: PLC0415 - this module also serves adapters

    config = RouterConfig(
        listen=listen,
        addresses=adapters,
        manifests=manifests,
        state_dir=state_dir,
        run_log=_run_log(run_log),
        advertise=advertise,
        max_runs=_max_runs(max_runs_pairs),
        log_format=log_format,
        log_level=log_level,
    )
    try:
        serve(config)
    except AddressError as error:
        raise ProblemError(Complaint(str(error), exit_code=EXIT_USAGE)) from error


def _run_log(url: str) -> str:
    from dragoman.router.config import run_log_problem  # noqa: PLC0415 - this module also serves adapters

    if problem := run_log_problem(url):
        raise click.BadParameter(problem, param_hint="--run-log")
    return url


def _max_runs(pairs: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if not name or not number.isdecimal() or not int(number):
            raise click.BadParameter(f"{pair!r} is not ADAPTER=N with N of 1 or more", param_hint="--max-runs")
        found[name] = int(number)
    return found


@click.group("adapter")
def adapter_command() -> None:
    """Serve one adapter."""


@adapter_command.command("serve", epilog=_EXAMPLES)
@click.argument("name")
@click.option(
    "--listen",
    metavar="ADDR",
    multiple=True,
    help="unix:/path or host:port on loopback; port 0 takes a free one. May be repeated.  "
    "[env var: DRAGOMAN_LISTEN, one address]",
)
@_log_format
@_log_level
def adapter_serve_command(name: str, listen: tuple[str, ...], log_format: Any, log_level: str) -> None:
    """Serve the adapter NAME: an installed one, or module:attribute."""
    from dragoman.sdk import serve  # noqa: PLC0415 - a router is served without the adapters' half

    try:
        serve(load_adapter(name), list(listen), log_format=log_format, log_level=log_level)
    except AddressError as error:
        raise ProblemError(Complaint(str(error), exit_code=EXIT_USAGE)) from error


def load_adapter(name: str) -> Any:
    """Return the adapter that ``name`` means: an entry point's name, or ``module:attribute``.

    What is found is the adapter, or a function without arguments that returns it.

    Raises:
        ProblemError: there is no such thing.
    """
    found = _module_attribute(name) if ":" in name else _entry_point(name)
    return found() if callable(found) else found


def _entry_point(name: str) -> Any:
    points: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=_GROUP)}
    if name in points:
        return points[name].load()
    raise ProblemError(
        Complaint(
            f"there is no installed adapter {name!r}",
            near=near_names(name, points),
            hint=f"installed: {', '.join(sorted(points)) or 'none'}; or give module:attribute",
            exit_code=EXIT_USAGE,
        )
    )


def _module_attribute(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise ProblemError(Complaint(f"{name}: there is no module {error.name!r}", exit_code=EXIT_USAGE)) from error
    except AttributeError as error:
        raise ProblemError(
            Complaint(f"{name}: module {module_name!r} has no {attribute!r}", exit_code=EXIT_USAGE)
        ) from error
