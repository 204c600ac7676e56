"""Which MCP server a tool belongs to, by the name that an agent gives the tool. Pure.

Agents join the names of server and tool in several ways: ``mcp__server__tool``, ``mcp_server_tool``, ``server_tool``,
``server__tool``, ``server-tool``, ``server.tool``. Some replace characters of either on the way.
"""

import re
from collections.abc import Iterable
from typing import Final

_PREFIXED: Final = re.compile(r"mcp[_.:/-]", re.IGNORECASE)
_SEPARATORS: Final = re.compile(r"[^0-9a-z]+")


def mcp_server_of(name: str, servers: Iterable[str], *, unprefixed: bool = True) -> str | None:
    """Return the server whose tool a name means; None if it is no tool of an MCP server.

    Empty means that it is one of a server which the request does not name, such as one of the user's own
    configuration, or one whose name the agent has shortened. Where several servers fit, the longest name wins.

    Args:
        name: the tool's name, as the agent reports it.
        servers: the names of the request's servers.
        unprefixed: whether a name without ``mcp`` before it may be meant. Not for an agent's own tools: with a server
            called "read", ``read_file`` would be one of its tools.
    """
    is_prefixed = _PREFIXED.match(name) is not None
    if not is_prefixed and not unprefixed:
        return None
    name_of_call = _plain(name)
    forms = [name_of_call, name_of_call.removeprefix("mcp_")] if is_prefixed else [name_of_call]
    found = [one for one in servers if any(_begins(form, _plain(one)) for form in forms)]
    if found:
        return max(found, key=lambda one: (len(_plain(one)), len(one)))
    return "" if is_prefixed else None


def _begins(name_of_call: str, server: str) -> bool:
    return bool(server) and name_of_call.startswith(f"{server}_") and len(name_of_call) > len(server) + 1


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name.casefold()).strip("_")
