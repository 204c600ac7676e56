"""Write the pages that are made from sources, as mkdocs builds the site: nothing here is written twice by hand.

They replace the pages of these names in docs/, which lead a reader of the checkout to the sources.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import mkdocs_gen_files
from dragoman.cli.dispatch import cli
from dragoman.protocol import duties
from dragoman.protocol.errors import Reason
from dragoman.router.app import RouterConfig
from dragoman.sdk.spec import shipped_documents
from google.protobuf import descriptor_pb2

TOP = Path(__file__).parents[1]
sys.path.insert(0, str(TOP))
from tests.router.runs.diagram import diagram  # noqa: E402 - from the checkout, which mkdocs does not look into

FILES = ("adapter", "event", "router")
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6  # field numbers in FileDescriptorProto, which a location's path begins with


def page(name: str, text: str) -> None:
    """Write a page. Lists get the empty line before them that the site's Markdown asks for."""
    text = re.sub(r"^(?![-|\s#])(.+)\n(?=- )", r"\1\n\n", text, flags=re.MULTILINE)
    with mkdocs_gen_files.open(name, "w") as file:
        file.write(text)


# --- the contract


def described_files() -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the contract's files with their comments."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "contract.binpb"
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={TOP / 'proto'}"),
                *("--include_source_info", f"--descriptor_set_out={image}"),
                *(f"dragoman/v1/{name}.proto" for name in FILES),
            ],
            check=True,
        )
        return list(descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file)


class Comments:
    """The comments of one file, by the path of what they belong to."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._by_path = {tuple(one.path): one.leading_comments for one in file.source_code_info.location}

    def of(self, *path: int) -> str:
        """Return a comment as Markdown."""
        lines = self._by_path.get(path, "").splitlines()
        return "\n".join(line.removeprefix(" ") for line in lines).strip()

    def in_cell(self, *path: int) -> str:
        """Return a comment as one cell of a table."""
        return " ".join(self.of(*path).split()).replace("|", "\\|")


def type_of(field: descriptor_pb2.FieldDescriptorProto) -> str:
    """Return a field's type for people."""
    name = field.type_name.removeprefix(".") or field.Type.Name(field.type).removeprefix("TYPE_").lower()
    repeated = field.label == field.LABEL_REPEATED
    return f"{'repeated ' if repeated else ''}`{name.removeprefix('dragoman.v1.')}`"


def message_lines(
    message: descriptor_pb2.DescriptorProto, comments: Comments, path: tuple[int, ...], prefix: str
) -> Iterator[str]:
    """Yield a message's section, and those of the messages and enums within it."""
    if message.options.map_entry:
        return
    name = f"{prefix}{message.name}"
    yield f"\n### {name}\n\n{comments.of(*path)}\n"
    if message.field:
        yield "| # | field | type | meaning |\n| --- | --- | --- | --- |"
    for number, field in enumerate(message.field):
        yield f"| {field.number} | `{field.name}` | {type_of(field)} | {comments.in_cell(*path, 2, number)} |"
    for number, inner in enumerate(message.nested_type):
        yield from message_lines(inner, comments, (*path, 3, number), f"{name}.")
    for number, kind in enumerate(message.enum_type):
        yield from enum_lines(kind, comments, (*path, 4, number), f"{name}.")


def enum_lines(
    kind: descriptor_pb2.EnumDescriptorProto, comments: Comments, path: tuple[int, ...], prefix: str = ""
) -> Iterator[str]:
    """Yield an enum's section."""
    yield f"\n### {prefix}{kind.name}\n\n{comments.of(*path)}\n\n| # | value | meaning |\n| --- | --- | --- |"
    for number, value in enumerate(kind.value):
        yield f"| {value.number} | `{value.name}` | {comments.in_cell(*path, 2, number)} |"


def contract_lines() -> Iterator[str]:
    """Yield the page of the contract."""
    yield "# Contract\n\nGenerated from the comments of `proto/dragoman/v1`."
    for file in described_files():
        comments = Comments(file)
        yield f"\n## {Path(file.name).name}\n"
        for index, service in enumerate(file.service):
            yield f"\n### {service.name}\n\n{comments.of(_SERVICE, index)}\n"
            for number, method in enumerate(service.method):
                stream = "stream " if method.server_streaming else ""
                asked, answer = (one.rpartition(".")[2] for one in (method.input_type, method.output_type))
                yield f"\n#### {service.name}.{method.name}\n\n`{asked}` → {stream}`{answer}`\n"
                yield comments.of(_SERVICE, index, 2, number)
        for index, message in enumerate(file.message_type):
            yield from message_lines(message, comments, (_MESSAGE, index), "")
        for index, kind in enumerate(file.enum_type):
            yield from enum_lines(kind, comments, (_ENUM, index))


_DUTIES = """# Who does what

Generated from `proto/dragoman/v1/duties.json`, which programs in any language can read. What an adapter declares is
in its `DescribeResponse`: `duties`, the features of `capabilities`, and `capabilities.permission_mode`. What adapters
on each SDK declare is [below](#sdks).

| who | meaning |
| --- | --- |"""
_RULES = "| {what} | who | declared by | rule |\n| --- | --- | --- | --- |"


def duty_lines() -> Iterator[str]:
    """Yield the page of who does what."""
    yield _DUTIES
    for who, meaning in duties.meanings().items():
        yield f"| {who.replace('_', ' ')} | {meaning} |"
    for title, what, rules in (("Fields", "field", duties.fields()), ("Duties", "duty", duties.duties())):
        yield f"\n## {title}\n\n{_RULES.format(what=what)}"
        for rule in rules:
            declared = "<br>".join(f"`{name}`" for name in rule.declared_by)
            yield f"| `{rule.name}` | {rule.who.replace('_', ' ')} | {declared} | {rule.rule} |"
    yield from sdk_lines()


_SDKS = """
## SDKs

Who has each duty of a run of an adapter that is built with an SDK of Dragoman; generated from `docs/sdks.json`, which
tests compare with what the adapters declare. A field whose feature an adapter does not declare is refused on all of
them.
"""


def sdk_lines() -> Iterator[str]:
    """Yield the table of what each SDK does itself."""
    sdks = json.loads((TOP / "docs/sdks.json").read_text(encoding="utf-8"))["sdks"]
    yield _SDKS
    yield f"| duty | {' | '.join(sdks)} |\n| --- |{' --- |' * len(sdks)}"
    for rule in duties.duties():
        yield f"| `{rule.name}` | {' | '.join(_who_does(rule, sdk) for sdk in sdks.values())} |"


def _who_does(rule: duties.Rule, sdk: Mapping[str, Sequence[str]]) -> str:
    match rule.who:
        case "adapter":
            return "SDK"
        case "optional":
            return "SDK" if rule.name in sdk["optional"] else "-"
        case "router":
            return "router"
    return "SDK" if any(name in sdk["declares"] for name in rule.declared_by) else "router"


# --- adapters, errors, states


def settings_of(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of an adapter's settings."""
    yield "\n| setting | type | meaning |\n| --- | --- | --- |"
    for name, one in sorted(schema.get("properties", {}).items()):
        kind = one.get("type") or ("one of several" if "anyOf" in one or "oneOf" in one else "")
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        dangerous = "**Dangerous.** " if one.get("x-dangerous") else ""
        meaning = " ".join(str(one.get("description", "")).split()).replace("|", "\\|")
        yield f"| `{name}` | {kind} | {dangerous}{meaning} |"


def aliases_of() -> dict[str, list[str]]:
    """Return the aliases of each adapter, as they are declared in entry points."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[str]] = {}
    for alias, adapter in project["entry-points"]["dragoman.adapter_aliases"].items():
        found.setdefault(adapter, []).append(f"`{alias}`")
    return found


def adapter_lines() -> Iterator[str]:
    """Yield the page of the adapters."""
    yield "# Adapters\n\nGenerated from their documents and schemas; `dragoman describe NAME` prints the same."
    aliases = aliases_of()
    for folder in sorted((TOP / "adapters/python/dragoman/adapters").iterdir()):
        if not (folder / "configuration.md").exists():
            continue
        documents = shipped_documents(f"dragoman.adapters.{folder.name}")
        title, _, body = documents["configuration_doc"].partition("\n")
        yield f"\n## {title.removeprefix('# ')}\n"
        if others := aliases.get(folder.name):
            yield f"Aliases: {', '.join(others)}.\n"
        yield re.sub(r"^#", "##", body, flags=re.MULTILINE)
        yield "\n### Schema"
        yield from settings_of(documents["config_schema"])


_ROW = re.compile(r"^\s*// \| (?P<when>[^|]+) \| [A-Z_]+ (?P<reason>[A-Z_]+)[^|]*\|(?P<what>[^|]*)\|$", re.MULTILINE)


def conditions() -> dict[str, list[tuple[str, str]]]:
    """Return when a reason is given and what the caller does, as the tables in the contract's comments say."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in FILES:
        for row in _ROW.finditer((TOP / f"proto/dragoman/v1/{file}.proto").read_text(encoding="utf-8")):
            entry = (row["when"].strip(), row["what"].strip())
            if entry not in found.setdefault(row["reason"], []):
                found[row["reason"]].append(entry)
    return found


_ERRORS = """# Errors

A failing agent is data: the run's `result` says why, by a [failure kind](contract.md#failurekind), and the RPC ends
with OK. A wrong call is a status whose `ErrorInfo` has the domain `dragoman` and one of these reasons; `BadRequest`
names the fields, `RetryInfo` says when to try again. No text of an exception leaves a process.

| reason | status | when, and what the caller does |
| --- | --- | --- |"""


def error_lines() -> Iterator[str]:
    """Yield the page of the errors."""
    yield _ERRORS
    known = conditions()
    for reason in Reason:
        rows = (f"{when}: *{what}*" if what else when for when, what in known.get(reason.value, []))
        yield f"| `{reason.value}` | {reason.status.name} | {'<br>'.join(rows)} |"


# --- configuration


def described_attributes(documented: type) -> dict[str, str]:
    """Return what the docstring of a class says of its attributes."""
    _, _, section = (documented.__doc__ or "").partition("Attributes:")
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()).replace("``", "`").replace("|", "\\|") for name, text in entries}


def variables(group: click.Group, path: str = "dragoman") -> Iterator[tuple[str, str, str]]:
    """Yield (variable, option, command) of what the command line reads from the environment."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from variables(command, f"{path} {name}")
        for option in command.params if command else []:
            if isinstance(option.envvar, str):
                yield option.envvar, option.opts[0], f"{path} {name}"


_VARIABLES = """# Configuration

A router needs none. `dragoman serve` takes [options](command-line.md#dragoman-serve); adapters are configured per
request ([adapters](adapters.md)).

## Environment variables

| variable | stands for | of |
| --- | --- | --- |"""
_MANIFESTS = """| `DRAGOMAN_LISTEN` | where an adapter listens, one address | what a router launches |
| `DRAGOMAN_TOKEN` | the token's file | servers and clients over TCP |
| `DRAGOMAN_TLS_CERT`, `DRAGOMAN_TLS_KEY` | PEM files of the certificate and its key | servers and clients over TCP |
| `DRAGOMAN_TLS_CA` | a PEM file of the authorities of peers' certificates | servers and clients over TCP |
| `DRAGOMAN_INSECURE_SECRETS` | 1: send secrets to peers that are not authenticated | clients and routers over TCP |
| `DRAGOMAN_TRUST` | a TOML file: identities, issuers of tokens, and what they may do | servers over TCP |

## Manifests of adapters

TOML or JSON, in `~/.config/dragoman/adapters/` or given with `--manifest`. A manifest that is wrong is reported by
`dragoman adapters`, and harms no other.

| key | meaning |
| --- | --- |
| `type` | the adapter's type, `[a-z][a-z0-9_]*` |
| `command` | program and arguments, a list; paths that begin with `./` are relative to the manifest's folder |
| `aliases` | optional: other names. Those that Describe reports are known only once it was started |
| `env` | optional: variables, over the router's own |

The command finds in `DRAGOMAN_LISTEN` where to listen, serves `AdapterService` and health there, and ends on SIGTERM.

## A router in your program

`dragoman.router.app.run_router(RouterConfig(…))` runs a router until it is stopped; within an event loop
`async with Router(RouterConfig(…))` does. Times are seconds.

| field | default | meaning |
| --- | --- | --- |"""


def configuration_lines() -> Iterator[str]:
    """Yield the page of the configuration."""
    yield _VARIABLES
    by_variable: dict[str, tuple[str, list[str]]] = {}
    for variable, option, command in variables(cli):
        by_variable.setdefault(variable, (option, []))[1].append(f"`{command}`")
    for variable, (option, commands) in sorted(by_variable.items()):
        of = ", ".join(commands) if len(commands) < 4 else "all commands that call a router"
        yield f"| `{variable}` | `{option}` | {of} |"
    yield _MANIFESTS
    texts, plain = described_attributes(RouterConfig), RouterConfig()
    for name in RouterConfig.__struct_fields__:
        yield f"| `{name}` | `{getattr(plain, name)!r}` | {texts[name]} |"


page("reference/contract.md", "\n".join(contract_lines()) + "\n")
page("reference/duties.md", "\n".join(duty_lines()) + "\n")
page("reference/adapters.md", "\n".join(adapter_lines()) + "\n")
page("reference/errors.md", "\n".join(error_lines()) + "\n")
page("reference/configuration.md", "\n".join(configuration_lines()) + "\n")
page(
    "internals/run-states.md",
    "# States of a run\n\nThe router's table of states, `services/dragoman/router/runs/state.py`, as a "
    f"diagram: found by trying every input in every state that can be reached.\n\n```mermaid\n{diagram()}\n```\n",
)
page("security.md", (TOP / "SECURITY.md").read_text(encoding="utf-8"))
