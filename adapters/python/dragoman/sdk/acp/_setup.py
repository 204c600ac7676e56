"""The beginning of a conversation: what is sent, and what the agent offers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dragoman.sdk._encoding.fields import Fields, count, inner, objects, text
from dragoman.sdk.acp._options import AcpOptions
from dragoman.v1 import adapter_pb2

PROTOCOL_VERSION: Final = 1
"""The version that is spoken."""
_UNSEEN: Final = "\u200b"
"""A character that is nothing to people, and no blank to agents: some strip blanks before they look for a slash."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one attempt wants of the agent."""

    cwd: str
    prompt: str
    """All of it: what the agent has no better way for goes before the caller's own prompt."""
    additional_directories: tuple[str, ...] = ()
    mcp_servers: Sequence[adapter_pb2.McpServer] = ()
    session_id: str = ""
    """The session to resume or fork. Empty: a new one."""
    forks: bool = False
    mode: str = ""
    model: str = ""
    cost_before: str | None = None
    """What the session had cost before this run, as was kept. None: unknown."""
    tag: str = "acp"
    """Sets questions of one attempt apart from those of another."""
    names_frames: bool = False

    @property
    def server_names(self) -> tuple[str, ...]:
        """The names of the MCP servers."""
        return tuple(server.name for server in self.mcp_servers)


@dataclass(frozen=True, slots=True)
class Offer:
    """What the agent says of itself."""

    version: int | None = None
    agent_name: str = ""
    agent_version: str = ""
    loads: bool = False
    resumes: bool = False
    forks: bool = False
    adds_directories: bool = False
    http_mcp: bool = False
    auth_methods: tuple[Fields, ...] = ()


def read_offer(result: Fields) -> Offer:
    """Read the result of ``initialize``."""
    able = inner(result, "agentCapabilities") or inner(result, "capabilities")
    sessions = inner(able, "sessionCapabilities") or inner(able, "session")
    info = inner(result, "agentInfo") or inner(result, "info")
    return Offer(
        version=count(result, "protocolVersion"),
        agent_name=text(info, "title") or text(info, "name"),
        agent_version=text(info, "version"),
        loads=able.get("loadSession") is True,
        resumes=isinstance(sessions.get("resume"), dict),
        forks=isinstance(sessions.get("fork"), dict),
        adds_directories=isinstance(sessions.get("additionalDirectories"), dict),
        http_mcp=inner(able, "mcpCapabilities").get("http") is True,
        auth_methods=tuple(objects(result, "authMethods")),
    )


def described(offer: Offer) -> str:
    """Return in a sentence what the agent is and offers."""
    offers = {
        "session/load": offer.loads,
        "session/resume": offer.resumes,
        "session/fork": offer.forks,
        "further directories": offer.adds_directories,
        "MCP servers over HTTP": offer.http_mcp,
    }
    name = " ".join(part for part in (offer.agent_name or "The agent", offer.agent_version) if part)
    return f"{name} offers {', '.join(item for item, has in offers.items() if has) or 'only what every agent does'}."


def initialize_params(options: AcpOptions, version: str) -> dict[str, object]:
    """Return what ``initialize`` says of us.

    Args:
        options: what the agent is offered.
        version: the adapter's.
    """
    able: dict[str, object] = {
        "fs": {"readTextFile": options.reads_files, "writeTextFile": options.writes_files},
        "terminal": options.terminals,
    }
    if options.elicitation:
        able["elicitation"] = {"form": {}}
    if options.client_meta:
        able["_meta"] = dict(options.client_meta)
    info = {"name": "dragoman", "title": "Dragoman", "version": version}
    return {"protocolVersion": PROTOCOL_VERSION, "clientInfo": info, "clientCapabilities": able}


def session_params(conversation: Conversation, offer: Offer, options: AcpOptions) -> dict[str, object]:
    """Return what session/new, load, resume and fork have in common."""
    params: dict[str, object] = {
        "cwd": conversation.cwd,
        "mcpServers": [_mcp_server(item) for item in conversation.mcp_servers],
    }
    if conversation.additional_directories and offer.adds_directories:
        params["additionalDirectories"] = list(conversation.additional_directories)
    if options.session_meta:
        params["_meta"] = dict(options.session_meta)
    return params


def _mcp_server(server: adapter_pb2.McpServer) -> dict[str, object]:
    if server.WhichOneof("transport") == "http":
        return {"type": "http", "name": server.name, "url": server.http.url, "headers": _pairs(server.http.headers)}
    return {
        "name": server.name,
        "command": server.stdio.command,
        "args": list(server.stdio.args),
        "env": _pairs(server.stdio.env),
    }


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def unsupported(conversation: Conversation, offer: Offer) -> Iterator[tuple[str, str]]:
    """Yield, as code and message, what was requested and this agent does not support."""
    if conversation.additional_directories and not offer.adds_directories:
        yield "acp_no_additional_directories", "The agent takes no further directories; it was given only the first."
    if any(server.WhichOneof("transport") == "http" for server in conversation.mcp_servers) and not offer.http_mcp:
        yield (
            "acp_no_http_mcp",
            "The agent does not say that it can reach MCP servers over HTTP; it may leave them out.",
        )


@dataclass(slots=True)
class Choices:
    """What can be chosen in a session, and what is."""

    options: dict[str, Fields] = field(default_factory=dict)
    """Config options by id, in the agent's order."""
    modes: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    mode: str = ""
    model: str = ""

    def read_session(self, result: Fields) -> None:
        """Read the result of session/new and its like."""
        modes, models = inner(result, "modes"), inner(result, "models")
        self.modes = [text(item, "id") for item in objects(modes, "availableModes")]
        self.models = [text(item, "modelId") for item in objects(models, "availableModels")]
        self.mode = text(modes, "currentModeId") or self.mode
        self.model = text(models, "currentModelId") or self.model
        self.read_options(result)

    def read_options(self, fields: Fields) -> None:
        """Read ``configOptions`` wherever they are reported; each list is complete."""
        if not isinstance(fields.get("configOptions"), list):
            return
        self.options = {text(item, "id"): item for item in objects(fields, "configOptions")}
        self.mode = self._current("mode") or self.mode
        self.model = self._current("model") or self.model

    def find(self, name: str) -> Fields | None:
        """Return the option with this id, else the first of this category."""
        if name in self.options:
            return self.options[name]
        return next((item for item in self.options.values() if text(item, "category") == name), None)

    def _current(self, name: str) -> str:
        option = self.find(name)
        return text(option, "currentValue") if option is not None else ""


def option_values(option: Fields) -> list[str]:
    """Return the values that a config option can have, groups flattened."""
    values: list[str] = []
    for item in objects(option, "options"):
        values += (
            [text(item, "value")] if "value" in item else [text(one, "value") for one in objects(item, "options")]
        )
    return values


def full_prompt(
    prompt: str,
    *,
    system_prompt: str = "",
    instructions: str = "",
    slash_commands: bool = False,
) -> str:
    """Return the prompt with what the agent has no better way for in front of it."""
    front = [part for part in (system_prompt, instructions) if part]
    if not front and prompt.lstrip().startswith("/") and not slash_commands:
        return _UNSEEN + prompt  # else it would run as a command of the agent's own
    return "\n\n".join([*front, prompt])
