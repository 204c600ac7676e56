"""The schema of ``config`` as ``Describe`` returns it: with titles and suggestions, for forms. Pure."""

import copy
import re
from typing import Any, Final

from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import event_pb2 as pb

REQUIRED_UNLESS: Final = "x-required-unless"
"""Says of a property that it must be given unless the request has this field."""
OWN_GROUP: Final = "agent"
"""The group of the settings that only one agent has."""
_WORDS: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_SHORT: Final = frozenset({"api", "id", "mcp", "url"})


def described_schema(info: AdapterInfo) -> dict[str, Any]:
    """Return an adapter's schema with what it need not say itself.

    Each property has a ``title``, its place among the others in ``x-order``, as not every reader of JSON keeps it,
    and its group in ``x-group``: those that no group is written for are the agent's own. ``model`` has those known
    as ``examples``, as other names are allowed too; ``cwd`` is marked as required unless ``workspace.cwd`` is given,
    which ``required`` cannot say.
    """
    schema = copy.deepcopy(dict(info.config_schema))
    schema.setdefault("title", info.label)
    properties: dict[str, Any] = schema.get("properties", {})
    for place, (name, about) in enumerate(properties.items(), start=1):
        about.setdefault("title", title_of(name))
        about.setdefault("x-group", OWN_GROUP)
        about.setdefault("x-order", place)
    known = [model.id for model in info.models]
    if "model" in properties and known and "enum" not in properties["model"]:
        properties["model"].setdefault("examples", known)
    if "cwd" in properties and info.has(pb.FEATURE_WORKSPACE) and "cwd" not in schema.get("required", ()):
        properties["cwd"].setdefault(REQUIRED_UNLESS, "workspace.cwd")
    return schema


def title_of(name: str) -> str:
    """Return the title of a setting, e.g. "Prompt template" for ``promptTemplate``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    shown = [word.upper() if word in _SHORT else word for word in words]
    return " ".join([shown[0][:1].upper() + shown[0][1:], *shown[1:]]) if shown else name
