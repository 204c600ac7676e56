"""``dragoman serve`` and ``dragoman adapter``."""

import importlib
import os
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import Seconds, json_option, option, with_options
from dragoman.cli.commands.new_adapter import adapter_new_command
from dragoman.cli.display.printing import print_response
from dragoman.cli.display.style import Segment
from dragoman.cli.display.text import one_line
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_USAGE
from dragoman.cli.usage import wrong_usage
from dragoman.protocol.addresses import AddressError, is_served
from dragoman.protocol.identity import near_names
from dragoman.protocol.logs import LogFormat
from dragoman.protocol.private import ROUTER_VARIABLE, default_address
from msgspec import Struct

_GROUP = "dragoman.adapters"
_DRAIN_GRACE = "DRAGOMAN_DRAIN_GRACE"

_EXAMPLES = """\b
Examples:
  dragoman adapter serve process --listen unix:/run/user/1000/process.sock
  dragoman adapter serve my_package.my_adapter:adapter --listen 127.0.0.1:7801
  dragoman adapter serve my_package.my_adapter:adapter --listen unix:/run/user/1000/my.sock --register default
"""
_DEFAULT = "default"
"""The user's own router, as a value of --register."""


class ProcessOptions(Struct, frozen=True):
    """What the servers of routers and of adapters have in common."""

    insecure_tcp_without_token: Annotated[
        bool,
        option(
            "--insecure-tcp-without-token",
            "Accept calls over TCP from every user of this machine, without a token. For tests only.",
        ),
    ]
    log_format: Annotated[
        LogFormat,
        option(
            "--log-format",
            "Format of the log; auto: console on a terminal, else json.",
            type=click.Choice(["auto", "json", "console"]),
            default="auto",
        ),
    ]
    log_level: Annotated[
        str,
        option(
            "--log-level",
            "Lowest level that is logged.",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
        ),
    ]


class RouterOptions(Struct, frozen=True):
    """What a router serves, and where."""

    listen: Annotated[
        tuple[str, ...],
        option(
            "--listen",
            "unix:/path, or host:port on loopback or, with TLS, anywhere, where calls need the token; port 0 picks a "
            "free one. Without a "
            "unix:/path this user's socket, which clients use by default, is served too, unless a router has it.",
            "ADDR",
        ),
    ]
    addresses: Annotated[
        tuple[str, ...], option("--adapter", "Address of an adapter that is already running.", "ADDR")
    ]
    manifests: Annotated[
        tuple[Path, ...],
        option(
            "--manifest",
            "Manifest with an adapter's command, or a directory of manifests; looked at every second.",
            "PATH",
            type=click.Path(exists=True, path_type=Path),
        ),
    ]
    socket_dirs: Annotated[
        tuple[Path, ...],
        option(
            "--socket-dir",
            "Directory in which each Unix socket is an adapter that is already running; looked at every second.",
            "DIR",
            type=click.Path(file_okay=False, path_type=Path),
            envvar="DRAGOMAN_SOCKET_DIR",
        ),
    ]
    kubernetes: Annotated[
        str,
        option(
            "--kubernetes",
            "Labels of Kubernetes Services whose pods are adapters, e.g. app.kubernetes.io/part-of=dragoman. For a "
            "router in a pod: it watches their EndpointSlices.",
            "SELECTOR",
            default="",
            envvar="DRAGOMAN_KUBERNETES",
        ),
    ]
    kubernetes_namespace: Annotated[
        str,
        option(
            "--kubernetes-namespace",
            "Namespace of those Services. Default: the pod's own.",
            "NAMESPACE",
            default="",
            envvar="DRAGOMAN_KUBERNETES_NAMESPACE",
        ),
    ]
    state_dir: Annotated[
        Path | None,
        option(
            "--state-dir",
            "Directory of the run log, the adapters' logs and the detection cache. Default: the user's own "
            "directories.",
            "DIR",
            type=click.Path(file_okay=False, path_type=Path),
        ),
    ]
    run_log: Annotated[
        str,
        option(
            "--run-log",
            "Run log: a postgresql:// URL, which several routers may share, or 'memory'. "
            "Default: a SQLite file in the state directory.",
            "URL",
            default="",
            envvar="DRAGOMAN_RUN_LOG",
        ),
    ]
    advertise: Annotated[
        str | None,
        option(
            "--advertise",
            "Address at which other routers with the same run log reach this one. Default: the first --listen.",
            "ADDR",
            envvar="DRAGOMAN_ADVERTISE",
        ),
    ]
    peer_name: Annotated[
        str,
        option(
            "--peer-name",
            "Name that the certificates of those routers are for, where it is not the host of their addresses.",
            "NAME",
            default="",
            envvar="DRAGOMAN_PEER_NAME",
        ),
    ]
    entry_points: Annotated[
        bool,
        option(
            "--installed/--no-installed",
            "Offer the adapters that are installed with the router. Default: on.",
            default=True,
            envvar="DRAGOMAN_INSTALLED",
        ),
    ]
    policy: Annotated[
        Path | None,
        option(
            "--policy",
            "File with what runs may ask for at most: adapters, models, directories, limits, ... It is read again "
            "when it changes. Default: no restriction.",
            "FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="DRAGOMAN_POLICY",
        ),
    ]
    secrets: Annotated[
        Path | None,
        option(
            "--secrets",
            "Directory with a file for each secret that stored agents refer to as ${NAME}. Default: none.",
            "DIR",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            envvar="DRAGOMAN_SECRETS",
        ),
    ]
    webhooks: Annotated[
        Path | None,
        option(
            "--webhooks",
            "File with URLs that are called when a run asks, ends, or has used a share of its budget. Default: none.",
            "FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="DRAGOMAN_WEBHOOKS",
        ),
    ]
    max_runs: Annotated[
        tuple[str, ...], option("--max-runs", "Concurrency limit of an adapter. Default: none.", "ADAPTER=N")
    ]
    detects_at_start: Annotated[
        bool,
        option(
            "--detect/--no-detect",
            "Detect agents on startup and report them. Default: on.",
            default=True,
            envvar="DRAGOMAN_DETECT",
        ),
    ]
    metrics: Annotated[
        str,
        option(
            "--metrics",
            "Port, on loopback, or host:port at which Prometheus reads metrics over HTTP. Needs the extra telemetry. "
            "Default: none are kept.",
            "ADDR",
            default="",
            envvar="DRAGOMAN_METRICS",
        ),
    ]
    health: Annotated[
        str,
        option(
            "--health",
            "Port, on loopback, or host:port in the clear that serves grpc.health.v1.Health alone, for the probes of "
            "Kubernetes: '' is whether it serves, 'liveness' whether it answers. Default: none.",
            "ADDR",
            default="",
            envvar="DRAGOMAN_HEALTH",
        ),
    ]
    uvloop: Annotated[
        bool,
        option(
            "--uvloop",
            "Use the event loop of uvloop, which costs less CPU. Needs the extra uvloop.",
            is_flag=True,
            envvar="DRAGOMAN_UVLOOP",
        ),
    ]
    process: ProcessOptions


class RegistrationOptions(Struct, frozen=True):
    """Where an adapter announces itself."""

    register: Annotated[
        tuple[str, ...],
        option(
            "--register",
            "Router at which the adapter registers, as long as it lives; 'default' is this user's own.",
            "ROUTER",
            envvar="DRAGOMAN_REGISTER",
        ),
    ]
    advertise: Annotated[
        str | None,
        option(
            "--advertise",
            "Address at which routers reach the adapter. Default: the first --listen.",
            "ADDR",
        ),
    ]


@click.command("serve", epilog="\b\nExample:\n  dragoman serve --listen 127.0.0.1:7777")
@with_options("options", RouterOptions)
@wrong_usage(AddressError)
def serve_command(options: RouterOptions) -> None:
    """Run a router until SIGTERM or Ctrl-C, which drains it; a second one stops it at once.

    Installed adapters are started on first use. SIGHUP repeats the detection of agents.
    """
    from dragoman.cli.connection.embedded_router import RouterConfig, serve  # noqa: PLC0415 - adapters do without

    if options.uvloop and find_spec("uvloop") is None:
        raise CommandError(
            ErrorReport("uvloop is not installed; run: pip install 'dragoman[uvloop]'", exit_code=EXIT_USAGE)
        )
    fields = {name: getattr(options, name) for name in options.__struct_fields__ if name != "process"}
    fields |= {name: getattr(options.process, name) for name in options.process.__struct_fields__}
    fields |= {"run_log": _run_log(options.run_log), "max_runs": _max_runs(options.max_runs)}
    # A socket that is named is the only one.
    is_named = any(one.startswith("unix:") for one in options.listen)
    serve(RouterConfig(**fields, at_default_too=bool(options.listen) and not is_named))


def _run_log(url: str) -> str:
    from dragoman.router.config import run_log_problem  # noqa: PLC0415 - this module also serves adapters

    if problem := run_log_problem(url):
        raise click.BadParameter(problem, param_hint="--run-log")
    return url


def _max_runs(pairs: tuple[str, ...]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if not name or not number.isdecimal() or not int(number):
            raise click.BadParameter(f"{pair!r} is not ADAPTER=N with N of 1 or more", param_hint="--max-runs")
        limits[name] = int(number)
    return limits


@click.group("adapter")
def adapter_command() -> None:
    """Serve, write or restart one adapter."""


adapter_command.add_command(adapter_new_command)


@adapter_command.command("serve", epilog=_EXAMPLES)
@click.argument("name", envvar="DRAGOMAN_ADAPTER")
@click.option(
    "--listen",
    metavar="ADDR",
    multiple=True,
    help="unix:/path, or host:port on loopback or, with TLS, anywhere, where calls need the token; port 0 picks a "
    "free one. Repeatable.  "
    "[env var: DRAGOMAN_LISTEN, one address]",
)
@click.option(
    "--drain-grace",
    metavar="SECONDS",
    type=Seconds(),
    default=0.0,
    help="How long live runs may continue after SIGTERM, before they are cancelled. Default: 0.",
    envvar=_DRAIN_GRACE,
    show_envvar=True,
)
@with_options("announcing", RegistrationOptions)
@with_options("options", ProcessOptions)
@wrong_usage(AddressError)
def adapter_serve_command(
    name: str,
    listen: tuple[str, ...],
    drain_grace: float,
    announcing: RegistrationOptions,
    options: ProcessOptions,
) -> None:
    """Serve the adapter NAME (or that of DRAGOMAN_ADAPTER): an installed one, or module:attribute.

    After SIGTERM or Ctrl-C it takes no new runs, and cancels live ones after --drain-grace. A second signal cancels
    them at once.
    """
    from dragoman.sdk import serve  # noqa: PLC0415 - a router is served without the adapters' half
    from dragoman.sdk.registration import Registration  # noqa: PLC0415 - as above

    os.environ[_DRAIN_GRACE] = str(drain_grace)  # where the SDK looks, whatever starts the adapter
    routers = [default_address() if router == _DEFAULT else router for router in announcing.register]
    serve(
        load_adapter(name),
        list(listen),
        log_format=options.log_format,
        log_level=options.log_level,
        insecure_tcp_without_token=options.insecure_tcp_without_token,
        register=Registration(routers, announcing.advertise or "") if routers else None,
    )


@adapter_command.command("restart")
@click.argument("adapter")
@click.option(
    "--grace",
    type=Seconds(),
    metavar="SECONDS",
    help="How long live runs may continue in the old process. Default: as long as they take.",
)
@click.option("--now", is_flag=True, help="Cancel live runs at once; the same as --grace 0.")
@json_option("Print the RestartAdapterResponse as JSON.")
@click.option(
    "--router",
    metavar="ADDR",
    envvar=ROUTER_VARIABLE,
    show_envvar=True,
    help="Address of the router: unix:/path or host:port. Default: this user's router.",
)
def adapter_restart_command(
    *, adapter: str, grace: float | None, now: bool, as_json: bool, router: str | None
) -> int:
    """Replace the process of ADAPTER, which a router launched: new runs go to a new one."""
    from dragoman.cli.connection.connect import run_connected  # noqa: PLC0415 - serving needs no client
    from dragoman.client import Client  # noqa: PLC0415 - as above

    if now and grace is not None:
        raise click.UsageError("--now and --grace exclude each other")
    if router is None and not is_served(default_address()):  # one in this process would have nothing to restart
        hint = "start one with 'dragoman serve', or give --router"
        raise CommandError(ErrorReport(f"no router is running at {default_address()}", hint=hint))

    async def work(client: Client) -> None:
        response = await client.restart_adapter(adapter, grace_s=0.0 if now else grace)
        entry, draining = response.adapter, response.draining_runs
        line = f"{one_line(entry.adapter)}: new process {entry.pid}"
        if draining:
            line += f"; {draining} run{'s' if draining > 1 else ''} in the old one"
        print_response(response, [[Segment(line)]], as_json=as_json)

    return run_connected(router or default_address(), work)


def load_adapter(name: str) -> Any:
    """Return the adapter of a name: an entry point's name, or ``module:attribute``.

    The object is the adapter, or a function without arguments that returns it.

    Raises:
        CommandError: there is no such adapter, or what it declares is wrong.
    """
    from dragoman.sdk.spec import SpecError  # noqa: PLC0415 - a router is served without the adapters' half

    try:
        adapter = _module_attribute(name) if ":" in name else _entry_point(name)
        adapter = adapter() if callable(adapter) else adapter
        adapter.describe().check_schema()
    except SpecError as error:
        raise CommandError(ErrorReport(f"adapter {name!r}: {error}", exit_code=EXIT_USAGE)) from error
    return adapter


def _entry_point(name: str) -> Any:
    points: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=_GROUP)}
    if name in points:
        return points[name].load()
    raise CommandError(
        ErrorReport(
            f"adapter {name!r} is not installed",
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
        raise CommandError(ErrorReport(f"{name}: module {error.name!r} not found", exit_code=EXIT_USAGE)) from error
    except AttributeError as error:
        raise CommandError(
            ErrorReport(f"{name}: module {module_name!r} has no {attribute!r}", exit_code=EXIT_USAGE)
        ) from error
