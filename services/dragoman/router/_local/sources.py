"""Where adapters are found: entry points, manifests, configured addresses.

An **entry point** of group ``dragoman.adapters`` is launched as ``dragoman adapter serve NAME``. It is never
imported here.

A **manifest** names any command, in any language. TOML or JSON::

    type = "my_agent"                      # [a-z][a-z0-9_]*, what callers ask for
    command = ["./bin/my-agent", "serve"]  # paths like ./x are meant from the manifest's folder
    aliases = ["my-agent"]                 # optional; Describe may add more
    env = { MY_AGENT_MODE = "quiet" }      # optional; over the router's own

The command finds in ``DRAGOMAN_LISTEN`` where to listen (``unix:/path``), serves ``AdapterService`` and health
there, and ends on SIGTERM. What is wrong with a manifest is told by ``ListAdapters``; it harms no other.
"""

import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from dragoman.protocol.addresses import AddressError, parse_address
from dragoman.protocol.identity import is_adapter_type
from dragoman.router._domain.directory import AdapterSpec, LaunchSpec
from dragoman.v1 import router_pb2

GROUP = "dragoman.adapters"
"""The group of entry points that name adapters."""

_KEYS = {"type", "command", "env", "aliases"}
_SUFFIXES = {".toml", ".json"}


class _ManifestError(ValueError):
    """The manifest cannot be used; the text says why."""


def entry_point_specs(names: Iterable[str] | None = None) -> list[AdapterSpec]:
    """Return the adapters that are installed as entry points.

    Args:
        names: instead of those that are installed.
    """
    found = {entry.name for entry in entry_points(group=GROUP)} if names is None else set(names)
    return [_entry_point_spec(name) for name in sorted(found)]


def _entry_point_spec(name: str) -> AdapterSpec:
    # -P: a file of the same name in the working directory must not stand in for one of our modules.
    serve = (sys.executable, "-P", "-m", "dragoman.cli.main", "adapter", "serve", name)
    problem = "" if is_adapter_type(name) else "an entry point's name must be a type: [a-z][a-z0-9_]*"
    return AdapterSpec(name, router_pb2.ADAPTER_SOURCE_ENTRY_POINT, launch=LaunchSpec(serve), problem=problem)


def manifest_specs(paths: Iterable[Path]) -> list[AdapterSpec]:
    """Return the adapters that manifests name; one that cannot be read is returned with its problem.

    Args:
        paths: files, or folders of which all ``.toml`` and ``.json`` files are taken, by name.
    """
    return [_manifest_spec(file) for path in paths for file in _files(path)]


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and not file.name.startswith("."))


def _manifest_spec(path: Path) -> AdapterSpec:
    source = router_pb2.ADAPTER_SOURCE_MANIFEST
    try:
        content = _read(path)
        name = _checked_type(content)
        launch = LaunchSpec(_command(content, path.parent), _env(content))
        return AdapterSpec(name, source, _strings(content, "aliases"), launch, origin=path.name)
    except _ManifestError as error:
        return AdapterSpec(path.stem, source, origin=path.name, problem=f"manifest {path.name}: {error}")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        content = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except OSError as error:
        raise _ManifestError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise _ManifestError(f"is not {kind}") from error
    if not isinstance(content, dict):
        raise _ManifestError("must be an object")
    unknown = sorted(set(content) - _KEYS)
    if unknown:
        raise _ManifestError(f"{unknown[0]!r} is no key of a manifest; there are {', '.join(sorted(_KEYS))}")
    return content


def _checked_type(content: dict[str, Any]) -> str:
    name = content.get("type")
    if not isinstance(name, str) or not is_adapter_type(name):
        raise _ManifestError("type must be a string like my_agent: [a-z][a-z0-9_]*, at most 64 characters")
    return name


def _strings(content: dict[str, Any], key: str) -> tuple[str, ...]:
    value = content.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise _ManifestError(f"{key} must be a list of strings")
    return tuple(value)


def _command(content: dict[str, Any], folder: Path) -> tuple[str, ...]:
    command = _strings(content, "command")
    if not command:
        raise _ManifestError('command must be a list of strings, e.g. ["my-agent", "serve"]')
    # A bare program is looked up in PATH; a path is absolute once it is joined to the folder.
    return tuple(
        str(folder.absolute() / word) if word.startswith(("./", "../")) or (number == 0 and "/" in word) else word
        for number, word in enumerate(command)
    )


def _env(content: dict[str, Any]) -> dict[str, str]:
    env = content.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise _ManifestError("env must map names to strings")
    return dict(env)


def address_specs(addresses: Iterable[str]) -> list[AdapterSpec]:
    """Return the adapters at configured addresses."""
    return [_address_spec(text) for text in addresses]


def _address_spec(text: str) -> AdapterSpec:
    source = router_pb2.ADAPTER_SOURCE_ADDRESS
    try:
        address = parse_address(text)
    except AddressError as error:
        return AdapterSpec(text, source, problem=str(error))
    if not address.is_local:
        problem = (
            f"{address} is on another machine, and prompts and secrets would travel there in the clear; "
            "bring it here through something that encrypts, e.g. ssh -L"
        )
        return AdapterSpec(text, source, address=str(address), problem=problem)
    return AdapterSpec(str(address), source, address=str(address))
