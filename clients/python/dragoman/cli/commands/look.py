"""``dragoman detect``, ``adapters``, ``describe`` and ``test``: looking without running anything."""

import json
from collections.abc import Sequence

import click
from dragoman.cli import _detected, _values
from dragoman.cli._connect import run_connected
from dragoman.cli._patience import patience
from dragoman.cli._show import print_json, print_json_lines, print_lines
from dragoman.cli._style import Segment, Style
from dragoman.cli._summary import EXIT_FAILED, EXIT_OK
from dragoman.cli._text import neutral, one_line, seconds, word
from dragoman.cli.commands._options import config_option, cwd_option, env_option, json_option, router_option
from dragoman.client import Client
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

_LEVELS = {
    event_pb2.SEVERITY_WARNING: ("!", Style.TOOL),
    event_pb2.SEVERITY_ERROR: ("✗", Style.ERROR),
}
_LOOKING_S = 2.0
"""How long looking for agents may take without a word."""
_STATUS_STYLES = {pb.TEST_STATUS_PASS: Style.ASSISTANT, pb.TEST_STATUS_FAIL: Style.ERROR}


@click.command("detect")
@click.argument("adapter", required=False, default="")
@click.option("--refresh", is_flag=True, help="Look now; do not answer from the cache.")
@json_option("Print one line of JSON per agent, a Detection.")
@router_option()
def detect_command(adapter: str, refresh: bool, as_json: bool, router: str | None) -> int:
    """Look which agents are installed and logged in. Spends nothing.

    With ADAPTER the exit code is 0 only if that agent can be used.
    """

    async def work(client: Client) -> int:
        async with patience("still looking for agents; one of them takes its time…", after_s=_LOOKING_S):
            found = await client.detect(adapter, refresh=refresh)
        if as_json:
            print_json_lines(found)
        else:
            print_lines([*_detected.lines(found), [Segment(_detected.counted(found))]])
        return EXIT_FAILED if adapter and not all(map(_detected.is_ready, found)) else EXIT_OK

    return run_connected(router, work)


@click.command("adapters")
@click.option("--describe", is_flag=True, help="Start those that never ran, to ask what they are.")
@json_option("Print one line of JSON per adapter, an AdapterEntry.")
@router_option()
def adapters_command(describe: bool, as_json: bool, router: str | None) -> int:
    """List a router's adapters; refused ones with the reason."""

    async def work(client: Client) -> None:
        response = await client.list_adapters(describe=describe)
        if as_json:
            print_json_lines(response.adapters)
        else:
            print_lines([line for entry in response.adapters for line in _entry_lines(entry)])

    return run_connected(router, work)


def _entry_lines(entry: router_pb2.AdapterEntry) -> list[list[Segment]]:
    state = word(router_pb2.AdapterState.DESCRIPTOR, entry.state, "ADAPTER_STATE_")
    source = word(router_pb2.AdapterSource.DESCRIPTOR, entry.source, "ADAPTER_SOURCE_")
    described = entry.description
    facts = [state, source]
    if described.version:
        facts.insert(0, f"{one_line(described.label)} {one_line(described.version, 40)}")
    facts.extend(f"also {one_line(alias, 60)}" for alias in described.aliases)
    if entry.HasField("pid"):
        facts.append(f"pid {entry.pid}")
    if entry.live_runs:
        facts.append(f"{entry.live_runs} live run{'s' if entry.live_runs > 1 else ''}")
    refused = entry.state in {router_pb2.ADAPTER_STATE_REFUSED, router_pb2.ADAPTER_STATE_UNAVAILABLE}
    style = Style.ERROR if refused else Style.PLAIN
    lines = [[Segment(one_line(entry.adapter, 60), Style.STRONG), Segment(f"  {', '.join(facts)}", style)]]
    if entry.reason:
        lines.append([Segment(f"    {one_line(entry.reason, 600)}", Style.ERROR)])
    lines.extend([Segment(f"    {one_line(remark, 600)}", Style.ERROR)] for remark in entry.remarks)
    lines.extend([Segment(f"    {line}", Style.FAINT)] for line in _abilities(described.capabilities))
    return lines


def _abilities(capabilities: event_pb2.Capabilities) -> list[str]:
    """Return what an adapter can do, by how that is known."""
    by_origin: dict[str, list[str]] = {}
    for item in capabilities.items:
        origin = word(event_pb2.CapabilityOrigin.DESCRIPTOR, item.origin, "CAPABILITY_ORIGIN_")
        name = word(event_pb2.Feature.DESCRIPTOR, item.feature, "FEATURE_")
        by_origin.setdefault(origin, []).append(f"{name} ({one_line(item.note, 120)})" if item.note else name)
    return [f"can ({origin}): {', '.join(names)}" for origin, names in by_origin.items()]


@click.command("describe")
@click.argument("adapter")
@json_option("Print the DescribeResponse as JSON, with the JSON Schema of the settings.")
@router_option()
def describe_command(adapter: str, as_json: bool, router: str | None) -> int:
    """Show what ADAPTER is, what it can do, and how it is configured."""

    async def work(client: Client) -> None:
        response = await client.describe(adapter)
        if as_json:
            print_json(response)
        else:
            print_lines(_description(response))

    return run_connected(router, work)


def _description(described: pb.DescribeResponse) -> list[list[Segment]]:
    names = ", ".join([described.adapter, *described.aliases])
    features = ", ".join(
        word(event_pb2.Feature.DESCRIPTOR, item.feature, "FEATURE_") for item in described.capabilities.items
    )
    models = ", ".join(f"{model.id}{' (default)' if model.is_default else ''}" for model in described.models)
    facts = {
        "names": names,
        "version": f"{described.version} (protocol revision {described.revision})",
        "can": features,
        "models": models,
        "settings": ", ".join(_setting_names(described.config_schema_json)),
    }
    lines = [[Segment(one_line(described.label or described.adapter), Style.STRONG)]]
    lines.extend([Segment(f"{key:9} {one_line(value, 2000)}")] for key, value in facts.items() if value)
    lines.append([])
    lines.extend([Segment(row)] for row in neutral(described.configuration_doc.rstrip()).split("\n"))
    return lines


def _setting_names(schema_json: str) -> Sequence[str]:
    try:
        schema = json.loads(schema_json)
    except ValueError:
        return []
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return list(properties) if isinstance(properties, dict) else []


@click.command("test")
@click.argument("adapter")
@click.option("--live", is_flag=True, help="Make one tiny real turn. Spends a few tokens.")
@click.option("--model", default="", metavar="NAME", help="The model to test with.")
@cwd_option()
@config_option()
@env_option()
@json_option("Print the TestEnvironmentResponse as JSON.")
@router_option()
def test_command(
    adapter: str,
    live: bool,
    model: str,
    cwd: str | None,
    config_pairs: tuple[str, ...],
    env_pairs: tuple[str, ...],
    as_json: bool,
    router: str | None,
) -> int:
    """Check whether a run of ADAPTER with this set-up can work. Exit code 1 if not."""
    _values.config(config_pairs)  # a wrong call is told before anything is started
    env = _values.variables(env_pairs)

    async def work(client: Client) -> int:
        schema = (await client.describe(adapter)).config_schema_json
        config = _values.config(config_pairs, schema)
        where = _values.directory(cwd)
        response = await client.test_environment(adapter, live=live, cwd=where, config=config, env=env, model=model)
        if as_json:
            print_json(response)
        else:
            print_lines(_checks(response))
        return EXIT_FAILED if response.status == pb.TEST_STATUS_FAIL else EXIT_OK

    return run_connected(router, work)


def _checks(response: pb.TestEnvironmentResponse) -> list[list[Segment]]:
    lines: list[list[Segment]] = []
    for check in response.checks:
        mark, style = _LEVELS.get(check.level, ("✓", Style.ASSISTANT))
        took = check.duration.ToNanoseconds() / 1e9
        time = f" ({seconds(took)})" if took >= 0.1 else ""
        lines.append(
            [Segment(f"{mark} ", style), Segment(f"{one_line(check.message, 400)} [{one_line(check.code)}]{time}")]
        )
        lines.extend([Segment(f"    {row}", Style.FAINT)] for row in neutral(check.detail).split("\n") if row)
        if check.hint:
            lines.append([Segment(f"    {one_line(check.hint, 400)}", style)])
    status = word(pb.TestStatus.DESCRIPTOR, response.status, "TEST_STATUS_")
    lines.append(
        [Segment(f"{one_line(response.adapter)}: {status}", _STATUS_STYLES.get(response.status, Style.TOOL))]
    )
    return lines
