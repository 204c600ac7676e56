"""``dragoman detect``, ``quota``, ``adapters``, ``describe`` and ``test``: information without a run."""

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click
from dragoman.cli import values
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import SetupOptions, json_option, router_option, with_options
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display import detections
from dragoman.cli.display.printing import print_list, print_response
from dragoman.cli.display.slow_notice import slow_notice
from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.table import table
from dragoman.cli.display.text import enum_label, moment, one_line, sanitize, seconds
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_FAILED, EXIT_OK
from dragoman.client import Client
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

_LEVELS = {event_pb2.SEVERITY_WARNING: ("!", Style.TOOL), event_pb2.SEVERITY_ERROR: ("✗", Style.ERROR)}
_DETECTION_S = 2.0
"""How long detection may take before a notice says so."""
_STATUS_STYLES = {pb.TEST_STATUS_PASS: Style.ASSISTANT, pb.TEST_STATUS_FAIL: Style.ERROR}


@click.command("detect")
@click.argument("adapter", required=False, default="")
@click.option("--refresh", is_flag=True, help="Detect now, without the cache.")
@json_option("Print one line of JSON per agent, a Detection.")
@router_option()
def detect_command(adapter: str, refresh: bool, as_json: bool, router: str | None) -> int:
    """Detect installed agents and their logins. No agent is run.

    With ADAPTER the exit code is 0 only if that agent is ready.
    """

    async def work(client: Client) -> int:
        async with slow_notice("still detecting agents…", after_s=_DETECTION_S):
            agents = await client.detect(adapter, refresh=refresh)
        now = time.time()
        lines = [*detections.lines(agents, now), detections.summary(agents, now)]
        print_list(agents, lines, as_json=as_json)
        return EXIT_FAILED if adapter and not all(map(detections.is_ready, agents)) else EXIT_OK

    return run_connected(router, work)


@click.command("quota")
@click.argument("adapter")
@json_option("Print the GetQuotaResponse as JSON.")
@router_option()
def quota_command(adapter: str, as_json: bool, router: str | None) -> int:
    """Show how much of the rate limits of ADAPTER's account is used. Exit code 1 if the agent does not answer."""

    async def work(client: Client) -> int:
        response = await client.get_quota(adapter)
        print_response(response, _quota(response), as_json=as_json)
        return EXIT_FAILED if response.HasField("failure") else EXIT_OK

    return run_connected(router, work, adapter=adapter)


def _quota(response: pb.GetQuotaResponse) -> list[list[Segment]]:
    if response.HasField("failure"):
        return [[Segment(one_line(response.failure.message, 600), Style.ERROR)]]
    rows = [_window(window) for window in response.windows]
    return table(("WINDOW", "USED", "RESETS (UTC)", "STATUS"), rows, empty="no rate limits")


def _window(window: event_pb2.RateLimit) -> tuple[str, ...]:
    used = f"{window.used_percent:.0f} %" if window.HasField("used_percent") else ""
    resets = moment(window.resets_at, "%Y-%m-%d %H:%M")
    return one_line(window.window, 80), used, resets, one_line(window.status, 80)


@click.command("login")
@click.argument("adapter")
@click.option("--method", default="", metavar="NAME", help="How; by default the adapter's first way.")
@json_option("Print one line of JSON per step, a LoginResponse.")
@router_option()
def login_command(adapter: str, method: str, as_json: bool, router: str | None) -> int:
    """Log ADAPTER's agent in: open the page that is shown, and enter the code. Ctrl-C ends the login.

    What the agent gets it keeps in its own files. Exit code 1 if the login fails.
    """

    async def work(client: Client) -> int:
        outcome = None
        async for event in client.login(adapter, method=method):
            outcome = event.outcome if event.HasField("outcome") else outcome
            print_list([event], _step(event), as_json=as_json)
        if outcome is None:
            raise CommandError(ErrorReport("the login ended without an outcome"))
        return EXIT_FAILED if outcome.HasField("failure") else EXIT_OK

    return run_connected(router, work, adapter=adapter)


def _step(event: pb.LoginResponse) -> list[list[Segment]]:
    if event.HasField("prompt"):
        prompt = event.prompt
        code = [[Segment(f"code: {one_line(prompt.user_code)}", Style.STRONG)]] if prompt.user_code else []
        end = moment(prompt.expires_at, ", until %H:%M:%S UTC")
        return [[Segment(f"open {one_line(prompt.url, 2000)}{end}")], *code]
    if event.outcome.HasField("failure"):
        return [[Segment(one_line(event.outcome.failure.message, 600), Style.ERROR)]]
    return [[Segment("logged in")]] if event.HasField("outcome") else []


@click.command("adapters")
@click.option("--describe", is_flag=True, help="Start adapters that were never started, to describe them.")
@json_option("Print one line of JSON per adapter, an AdapterEntry.")
@router_option()
def adapters_command(describe: bool, as_json: bool, router: str | None) -> int:
    """List a router's adapters, including rejected ones with the reason."""

    async def work(client: Client) -> None:
        response = await client.list_adapters(describe=describe)
        lines = _adapter_lines(response.adapters, with_capabilities=describe)
        print_list(response.adapters, lines, as_json=as_json)

    return run_connected(router, work)


_BAD_STATES = {router_pb2.ADAPTER_STATE_REFUSED, router_pb2.ADAPTER_STATE_UNAVAILABLE}


def _adapter_lines(entries: Sequence[router_pb2.AdapterEntry], *, with_capabilities: bool) -> list[list[Segment]]:
    """Return a table, with what there is to say of an adapter below its row."""
    head = ("ADAPTER", "STATE", "SINCE (UTC)", "VERSION", "RUNS", "SOURCE", "WHERE")
    lines = table(head, [_adapter_row(entry) for entry in entries], empty="no adapters")
    shown = lines[: len(lines) - len(entries)]
    for entry, row in zip(entries, lines[len(shown) :], strict=True):
        is_bad = entry.state in _BAD_STATES
        shown.append([row[0], *(Segment(one.text, Style.ERROR if is_bad else one.style) for one in row[1:])])
        notes = [entry.reason, *entry.remarks] if entry.reason else entry.remarks
        shown += [[Segment(f"    {one_line(note, 600)}", Style.ERROR)] for note in notes]
        if with_capabilities:
            shown += [[Segment(f"    {line}", Style.FAINT)] for line in _abilities(entry.description.capabilities)]
    return shown


def _adapter_row(entry: router_pb2.AdapterEntry) -> tuple[str, ...]:
    since = moment(entry.since, "%m-%d %H:%M:%S" if sys.stdout.isatty() else "%Y-%m-%dT%H:%M:%SZ")
    where = [entry.origin or entry.address]
    if entry.HasField("pid"):
        where.append(f"pid {entry.pid}")
    if entry.HasField("lease_expires_at"):
        where.append(f"until {entry.lease_expires_at.ToDatetime():%H:%M:%S}")
    return (
        one_line(entry.adapter, 60),
        enum_label(router_pb2.AdapterState.DESCRIPTOR, entry.state, "ADAPTER_STATE_"),
        since,
        one_line(entry.description.version, 40),
        str(entry.live_runs),
        enum_label(router_pb2.AdapterSource.DESCRIPTOR, entry.source, "ADAPTER_SOURCE_"),
        one_line(" ".join(filter(None, where)), 300),
    )


def _abilities(capabilities: event_pb2.Capabilities) -> list[str]:
    """Return an adapter's capabilities, by the origin of that knowledge."""
    by_origin: dict[str, list[str]] = {}
    for item in capabilities.items:
        origin = enum_label(event_pb2.CapabilityOrigin.DESCRIPTOR, item.origin, "CAPABILITY_ORIGIN_")
        name = enum_label(event_pb2.Feature.DESCRIPTOR, item.feature, "FEATURE_")
        by_origin.setdefault(origin, []).append(f"{name} ({one_line(item.note, 120)})" if item.note else name)
    return [f"capabilities ({origin}): {', '.join(names)}" for origin, names in by_origin.items()]


@click.command("describe")
@click.argument("adapter")
@json_option("Print the DescribeResponse as JSON, with the configuration schema.")
@router_option()
def describe_command(adapter: str, as_json: bool, router: str | None) -> int:
    """Show ADAPTER's version, capabilities and configuration."""

    async def work(client: Client) -> None:
        response = await client.describe(adapter)
        print_response(response, _description(response), as_json=as_json)

    return run_connected(router, work)


def _description(described: pb.DescribeResponse) -> list[list[Segment]]:
    names = ", ".join([described.adapter, *described.aliases])
    features = ", ".join(
        enum_label(event_pb2.Feature.DESCRIPTOR, item.feature, "FEATURE_") for item in described.capabilities.items
    )
    models = ", ".join(f"{model.id}{' (default)' if model.is_default else ''}" for model in described.models)
    facts = {
        "names": names,
        "version": f"{described.version} (protocol revision {described.revision})",
        "features": features,
        "models": models,
    }
    lines = [[Segment(one_line(described.label or described.adapter), Style.STRONG)]]
    lines.extend([Segment(f"{key:9} {one_line(value, 2000)}")] for key, value in facts.items() if value)
    lines.extend([Segment(f"setting   {one_line(row, 300)}")] for row in _settings(described.config_schema_json))
    lines.append([])
    lines.extend([Segment(row)] for row in sanitize(described.configuration_doc.rstrip()).split("\n"))
    return lines


_SENTENCE_END: Final = re.compile(r"(?<!\be\.g)\.\s")


def _settings(schema_json: str) -> Iterator[str]:
    """Yield each setting with its type, its default and what it is for: as its description begins, or its title."""
    try:
        schema = json.loads(schema_json)
    except ValueError:
        return
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, about in properties.items() if isinstance(properties, dict) else ():
        rule = about if isinstance(about, dict) else {}
        values = [str(value) for value in rule["enum"] if value != ""] if _is_list(rule, "enum") else []
        kind = "one of " + ", ".join(values) if values else rule.get("type") or "any"
        facts = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
        if "default" in rule:
            facts += f", default {json.dumps(rule['default'], ensure_ascii=False)}"
        if _is_list(schema, "required") and name in schema["required"]:
            facts += ", required"
        # The SDK makes a title of each name, so that a title says less than a description.
        meaning = _SENTENCE_END.split(str(rule.get("description") or ""), 1)[0].removesuffix(".") or rule.get("title")
        yield f"{name} ({facts}){f': {meaning}' if meaning else ''}"


def _is_list(rule: Mapping[str, object], key: str) -> bool:
    return isinstance(rule.get(key), list)


@click.command("test")
@click.argument("adapter")
@click.option("--live", is_flag=True, help="Make one short request to the model. Spends a few tokens.")
@with_options("setup", SetupOptions)
@json_option("Print the TestEnvironmentResponse as JSON.")
@router_option()
def test_command(adapter: str, live: bool, setup: SetupOptions, as_json: bool, router: str | None) -> int:
    """Check whether a run of ADAPTER with these options can work. Exit code 1 if not."""
    setup.config()  # reports a wrong call before anything is started
    env = setup.env()

    async def work(client: Client) -> int:
        schema = (await client.describe(adapter)).config_schema_json
        cwd, config = values.directory(setup.cwd), setup.config(schema)
        request = pb.TestEnvironmentRequest(model=setup.model)
        response = await client.test_environment(adapter, live=live, cwd=cwd, config=config, env=env, request=request)
        print_response(response, _checks(response), as_json=as_json)
        return EXIT_FAILED if response.status == pb.TEST_STATUS_FAIL else EXIT_OK

    return run_connected(router, work, adapter=adapter)


def _checks(response: pb.TestEnvironmentResponse) -> list[list[Segment]]:
    lines: list[list[Segment]] = []
    for check in response.checks:
        mark, style = _LEVELS.get(check.level, ("✓", Style.ASSISTANT))
        duration_s = check.duration.ToNanoseconds() / 1e9
        time = f" ({seconds(duration_s)})" if duration_s >= 0.1 else ""
        lines.append(
            [Segment(f"{mark} ", style), Segment(f"{one_line(check.message, 400)} [{one_line(check.code)}]{time}")]
        )
        lines.extend([Segment(f"    {row}", Style.FAINT)] for row in sanitize(check.detail).split("\n") if row)
        if check.hint:
            lines.append([Segment(f"    {one_line(check.hint, 400)}", style)])
    status = enum_label(pb.TestStatus.DESCRIPTOR, response.status, "TEST_STATUS_")
    lines.append(
        [Segment(f"{one_line(response.adapter)}: {status}", _STATUS_STYLES.get(response.status, Style.TOOL))]
    )
    return lines
