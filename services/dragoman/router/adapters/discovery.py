"""Discovery of adapters: entry points, manifests, configured addresses.

An **entry point** of group ``dragoman.adapters`` is launched by ``python -m dragoman.sdk``, never imported by the
router. Entry points of group ``dragoman.adapter_aliases`` (``alias = "type"``) declare its aliases, so that they are
known before the adapter is started.

A **manifest** names any command, in any language. TOML or JSON::

    type = "my_agent"                      # [a-z][a-z0-9_]*, the name that callers use
    command = ["./bin/my-agent", "serve"]  # paths like ./x are relative to the manifest's folder
    aliases = ["my-agent"]                 # optional; further aliases in Describe take effect once it has started
    env = { MY_AGENT_MODE = "quiet" }      # optional; overrides the router's own variables

The command reads its address (``unix:/path``) from ``DRAGOMAN_LISTEN``, serves ``AdapterService`` and health there,
and ends on SIGTERM. ``ListAdapters`` reports what is wrong with a manifest; other adapters are not affected.
"""

import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

from dragoman.protocol.addresses import AddressError, check_local
from dragoman.protocol.identity import is_adapter_type
from dragoman.router.adapters.descriptions import Packages, installed_identity, manifest_identity
from dragoman.router.adapters.registry import AdapterSpec, LaunchSpec
from dragoman.v1 import router_pb2

GROUP = "dragoman.adapters"
"""The group of entry points that name adapters."""
ALIASES = "dragoman.adapter_aliases"
"""The group of entry points whose names are aliases and whose values are types."""

ADAPTER_VARIABLE = "DRAGOMAN_ADAPTER"
"""The environment variable that says where the adapter is, ``module:attribute``, to ``python -m dragoman.sdk``."""

DETECT_VARIABLE = "DRAGOMAN_DETECT_ADAPTERS"
"""The same for several adapters, ``type=module:attribute``, of which only Describe and Detect are served."""

_OURS = "dragoman.adapters."
"""How the modules of the adapters that come with Dragoman begin."""

# -P: a file in the working directory must not shadow one of our modules.
# The command line does not name the adapter, as its name is often the agent's: an agent that kills processes by its
# own name would kill its adapter.
_SERVE = (sys.executable, "-P", "-m", "dragoman.sdk")

_KEYS = {"type", "command", "env", "aliases"}
_SUFFIXES = {".toml", ".json"}


class _ManifestError(ValueError):
    """The manifest is invalid; the message says why."""


def entry_point_specs(
    adapters: Iterable[EntryPoint] | None = None, aliases: Iterable[EntryPoint] | None = None
) -> list[AdapterSpec]:
    """Return the adapters that are installed as entry points.

    Args:
        adapters: entry points to use instead of the installed ones.
        aliases: entry points to use instead of the installed ones.
    """
    found = entry_points() if adapters is None or aliases is None else EntryPoints()
    installed = found.select(group=GROUP) if adapters is None else adapters
    declared = found.select(group=ALIASES) if aliases is None else aliases
    by_type: dict[str, set[str]] = {}
    for alias in declared:
        by_type.setdefault(alias.value, set()).add(alias.name)
    packages: Packages = {}
    return [
        _entry_point_spec(entry, tuple(sorted(by_type.get(entry.name, ()))), installed_identity(entry, packages))
        for entry in sorted(installed, key=lambda one: one.name)
    ]


def _entry_point_spec(entry: EntryPoint, aliases: tuple[str, ...], identity: str) -> AdapterSpec:
    name = entry.name
    problem = (
        "" if is_adapter_type(name) else "the name of its entry point is not a valid adapter type: [a-z][a-z0-9_]*"
    )
    reference = f"{entry.module}:{entry.attr}"
    return AdapterSpec(
        name,
        router_pb2.ADAPTER_SOURCE_ENTRY_POINT,
        aliases,
        LaunchSpec(_SERVE, {ADAPTER_VARIABLE: reference}),
        problem=problem,
        # Others must not be able to disturb each other, or these.
        reference=reference if reference.startswith(_OURS) and not problem else "",
        identity=identity,
    )


def detection_launch(specs: Iterable[AdapterSpec]) -> LaunchSpec:
    """Return how to start one process that detects the agents of all adapters with a ``reference``."""
    references = " ".join(f"{spec.name}={spec.reference}" for spec in specs if spec.reference)
    return LaunchSpec(_SERVE, {DETECT_VARIABLE: references})


def manifest_specs(paths: Iterable[Path]) -> list[AdapterSpec]:
    """Return the adapters that manifests name; an invalid manifest becomes a spec with a problem.

    Args:
        paths: files, or folders whose ``.toml`` and ``.json`` files are read in order of their names.
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
        identity = manifest_identity(json.dumps(content), launch.command, launch.env)
        return AdapterSpec(name, source, _strings(content, "aliases"), launch, origin=path.name, identity=identity)
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
        raise _ManifestError(f"is not valid {kind}") from error
    if not isinstance(content, dict):
        raise _ManifestError("must be an object")
    unknown = sorted(set(content) - _KEYS)
    if unknown:
        raise _ManifestError(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    return content


def _checked_type(content: dict[str, Any]) -> str:
    name = content.get("type")
    if not isinstance(name, str) or not is_adapter_type(name):
        raise _ManifestError("type must be a string such as my_agent: [a-z][a-z0-9_]*, at most 64 characters")
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
    # PATH resolves a bare program name; joining keeps a path that is already absolute.
    return tuple(
        str(folder.absolute() / part) if part.startswith(("./", "../")) or (number == 0 and "/" in part) else part
        for number, part in enumerate(command)
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
        address = str(check_local(text))
    except AddressError as error:
        return AdapterSpec(text, source, problem=str(error))
    return AdapterSpec(address, source, address=address)
