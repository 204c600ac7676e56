"""Checks of a request that many adapters share, for adapter authors: ``from dragoman.sdk import rules``. Pure.

An adapter's ``wrong_fields`` yields from those that hold for its agent, and adds what only it knows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from dragoman.protocol.errors import FieldViolation
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

__all__ = ["blank_prompt", "native_mode", "read_as_options", "wrong_mcp_servers"]


def blank_prompt(request: adapter_pb2.ExecuteRequest) -> Iterator[FieldViolation]:
    """Yield what is wrong with a prompt of blanks, for an agent that can make nothing of it.

    A prompt that is absent is none: then a template is meant.
    """
    if request.WhichOneof("task") == "prompt" and not request.prompt.strip():
        yield FieldViolation("prompt", "must not be blank")


def read_as_options(values: Mapping[str, str]) -> Iterator[FieldViolation]:
    """Yield what an agent would read as an option of its command line.

    Args:
        values: values that reach the agent as arguments, by the field that they come from; empty if absent.
    """
    for path, value in values.items():
        if value.startswith("-"):
            yield FieldViolation(path, "must not begin with '-': it would be taken for an option")


def native_mode(permissions: pb.Permissions, modes: Collection[str]) -> Iterator[FieldViolation]:
    """Yield what is wrong with ``permissions.native_mode``.

    Args:
        permissions: those of the run.
        modes: the modes that the agent has for a run, in the order in which messages list them; none if empty.
    """
    mode = permissions.native_mode
    if mode and mode not in modes:
        message = f"must be {'one of ' if len(modes) > 1 else ''}{', '.join(modes)}, or absent"
        yield FieldViolation("permissions.native_mode", message if modes else "there is none to choose; leave it out")


def wrong_mcp_servers(servers: Sequence[adapter_pb2.McpServer]) -> Iterator[FieldViolation]:
    """Yield what is wrong with MCP servers, whatever the agent. The SDK itself refuses it; no adapter need to."""
    names = [server.name for server in servers]
    for index, server in enumerate(servers):
        path = f"mcp_servers[{index}]"
        if not server.name or names.index(server.name) != index:
            yield FieldViolation(f"{path}.name", "is missing, or the same as another's")
        if not (server.stdio.command or server.http.url):
            yield FieldViolation(path, "give stdio.command or http.url")
