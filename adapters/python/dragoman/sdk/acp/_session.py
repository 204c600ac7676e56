"""What is asked of an agent: its adapter's options, the conversation, the requests that set up a session. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from dragoman.sdk._encoding.fields import Fields, count, inner, objects, text
from dragoman.sdk._encoding.jsonrpc import RpcError
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk._output.parser import FailureInfo
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

UsageMeaning = Literal["turn", "last_call", "session"]
"""What ``usage`` of a prompt's result counts: this prompt, its last call of the model, or the session so far."""


class ToolState(Struct):
    """A tool call as it stands after all its updates."""

    id: str
    name: str = ""
    kind: pb.ToolKind.ValueType = pb.TOOL_KIND_UNSPECIFIED
    title: str = ""
    status: str = ""
    """As the protocol names it: pending, in_progress, completed or failed."""
    raw_input: Fields = field(default_factory=dict)
    raw_output: Fields = field(default_factory=dict)
    content: list[Fields] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    mcp_server: str = ""
    """The MCP server whose tool it is. Empty: of none, or it is not known of which."""


class TurnEnd(Struct, frozen=True):
    """How a prompt ended, for an adapter that knows better."""

    text: str
    """The agent's last message."""
    result: Fields
    """The prompt's whole result."""


class AcpOptions(Struct, frozen=True):
    """An agent's ways, and what is offered to it. The defaults fit an agent that keeps to the protocol."""

    # What is offered to the agent.
    elicitation: bool = True
    """Offer to put forms to the caller."""
    acknowledged: Collection[str] = ()
    """Methods that are answered with nothing, and nothing is done: some agents report so what they do themselves."""
    reports_offer: bool = False
    """Whether a notice says what the agent offers; for an adapter that does not know its agent."""

    # Setting up.
    authenticate: str = ""
    """The auth method to use before a session begins. Empty: the agent is logged in by itself."""
    mode: str = ""
    """The mode to switch to. Empty: the request's native mode, else the agent's default."""
    sets_model: bool = True
    """Whether the model is chosen over the protocol. False: the command line or environment does it."""
    config_values: Mapping[str, str] = field(default_factory=dict)
    """Values of the session's config options, by option id or category."""
    slash_commands: bool = False
    """Whether a prompt that begins with a slash is meant as the agent's command.

    False: an unseen character goes before it.
    """

    steers: bool = False
    """Whether a prompt that comes during a turn joins it, before the next call of the model. Both are answered at the
    end. The protocol does not say so: many agents end the turn for it, or refuse it."""

    # Reading.
    usage: UsageMeaning = "turn"
    tokens: Callable[[Fields], pb.TokenCounts | None] = lambda _: None
    """Reads tokens from a prompt's result where they are not in ``usage``."""
    call_tokens: Callable[[Fields], pb.TokenCounts | None] = lambda _: None
    """Reads the tokens of one call of the model from an update, for an agent that reports them there. Where the
    prompt's result says nothing, their sum is the run's."""
    tool_name: Callable[[Fields], str] = lambda update: text(update, "name")
    """Reads the tool's own name from a tool call or its update."""
    tool_kinds: Mapping[str, pb.ToolKind.ValueType] = field(default_factory=dict)
    """What sort of tool it is, by its own name, where the protocol has no word for that or the agent uses none."""
    file_changes: Callable[[ToolState], list[pb.FileChange] | None] = lambda _: None
    """What a completed call did to files. None: as diffs and locations show."""
    lost_session: Callable[[RpcError], bool] = lambda _: False
    """Whether an error of load, resume or fork means that the session is not there. Beside the usual signs."""
    turn_failure: Callable[[TurnEnd], FailureInfo | None] = lambda _: None
    """What a turn that ends well means for an agent that reports errors as text."""
    model_name: Callable[[str], str] = str
    """Returns a model's name as its service knows it, from the agent's id of it."""
    provider: str = ""
    """Whose models they are, if that is certain."""


PROTOCOL_VERSION: Final = 1
"""The version that is spoken."""
_UNSEEN: Final = "\u200b"
"""A character that is nothing to people, and no blank to agents: some strip blanks before they look for a slash."""


class Conversation(Struct, frozen=True):
    """What one attempt wants of the agent."""

    cwd: str
    prompt: str
    """All of it: what the agent has no better way for goes before the caller's own prompt."""
    additional_directories: tuple[str, ...] = ()
    asks_for_directories: bool = True
    """Whether the caller named some of them, and is to know if the agent takes none. The others are of this run, and
    hold files that the prompt names by their paths."""
    mcp_servers: Sequence[adapter_pb2.McpServer] = ()
    images: tuple[AttachedFile, ...] = ()
    """Go to the model behind the prompt; the attempt fails if the agent takes none."""
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


class Offer(Struct, frozen=True):
    """What the agent says of itself."""

    version: int | None = None
    agent_name: str = ""
    agent_version: str = ""
    loads: bool = False
    resumes: bool = False
    forks: bool = False
    adds_directories: bool = False
    http_mcp: bool = False
    images: bool = False
    auth_methods: tuple[Fields, ...] = ()


def read_offer(result: Fields) -> Offer:
    """Read the result of ``initialize``."""
    able = inner(result, "agentCapabilities")
    sessions = inner(able, "sessionCapabilities")
    info = inner(result, "agentInfo")
    return Offer(
        version=count(result, "protocolVersion"),
        agent_name=text(info, "title") or text(info, "name"),
        agent_version=text(info, "version"),
        loads=able.get("loadSession") is True,
        resumes=isinstance(sessions.get("resume"), dict),
        forks=isinstance(sessions.get("fork"), dict),
        adds_directories=isinstance(sessions.get("additionalDirectories"), dict),
        http_mcp=inner(able, "mcpCapabilities").get("http") is True,
        images=inner(able, "promptCapabilities").get("image") is True,
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
        "images": offer.images,
    }
    name = " ".join(part for part in (offer.agent_name or "The agent", offer.agent_version) if part)
    return f"{name} offers {', '.join(item for item, has in offers.items() if has) or 'only what every agent does'}."


def initialize_params(options: AcpOptions, version: str) -> dict[str, object]:
    """Return what ``initialize`` says of us."""
    able: dict[str, object] = {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }
    if options.elicitation:
        able["elicitation"] = {"form": {}}
    info = {"name": "dragoman", "title": "Dragoman", "version": version}
    return {"protocolVersion": PROTOCOL_VERSION, "clientInfo": info, "clientCapabilities": able}


def session_params(conversation: Conversation, offer: Offer) -> dict[str, object]:
    """Return what session/new, load, resume and fork have in common."""
    params: dict[str, object] = {
        "cwd": conversation.cwd,
        "mcpServers": [_mcp_server(item) for item in conversation.mcp_servers],
    }
    if conversation.additional_directories and offer.adds_directories:
        params["additionalDirectories"] = list(conversation.additional_directories)
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


def prompt_blocks(prompt: str, images: Iterable[AttachedFile]) -> list[dict[str, str]]:
    """Return the content of session/prompt."""
    blocks = [{"type": "image", "mimeType": image.media_type, "data": image.base64} for image in images]
    return [{"type": "text", "text": prompt}, *blocks]


def unsupported(conversation: Conversation, offer: Offer) -> Iterator[tuple[str, str]]:
    """Yield, as code and message, what was requested and this agent does not support."""
    named = conversation.additional_directories and conversation.asks_for_directories
    if named and not offer.adds_directories:
        yield "acp_no_additional_directories", "The agent takes no further directories; it was given only the first."
    if any(server.WhichOneof("transport") == "http" for server in conversation.mcp_servers) and not offer.http_mcp:
        yield (
            "acp_no_http_mcp",
            "The agent does not say that it can reach MCP servers over HTTP; it may leave them out.",
        )


class Choices(Struct):
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


Adjustment: TypeAlias = tuple[str, dict[str, object]]
"""A method and its parameters, without the session's id."""


def adjustments(conversation: Conversation, options: AcpOptions, choices: Choices) -> list[Adjustment] | FailureInfo:
    """Return what to ask for before the prompt; a failure if the agent does not offer what is requested.

    A mode or model that cannot be had ends the run: it may be the one that keeps the agent from doing harm.
    """
    asked: list[Adjustment] = []
    mode = conversation.mode or options.mode
    if mode and mode != choices.mode:
        found = chosen_mode(mode, choices)
        if isinstance(found, FailureInfo):
            return found
        asked.append(found)
    if conversation.model and options.sets_model and conversation.model != choices.model:
        found = chosen_model(conversation.model, options, choices)
        if isinstance(found, FailureInfo):
            return found
        asked.append(found)
    for name, value in options.config_values.items():
        option = choices.find(name)
        if option is None:
            return _not_offered(f"the option {name}", choices.options)
        if value not in option_values(option):
            return _not_offered(f"{value} for the option {name}", option_values(option))
        asked.append(_set_option(option, value))
    return asked


def chosen_mode(mode: str, choices: Choices) -> Adjustment | FailureInfo:
    """Return what asks for a mode; a failure if the agent does not offer it."""
    option = choices.find("mode")
    if option is not None and mode in option_values(option):
        return _set_option(option, mode)
    if mode in choices.modes:
        return "session/set_mode", {"modeId": mode}
    return _not_offered(f"the mode {mode}", [*choices.modes, *(option_values(option) if option is not None else ())])


def chosen_model(model: str, options: AcpOptions, choices: Choices) -> Adjustment | FailureInfo:
    """Return what asks for a model, by its ID or name; a failure if the agent does not offer it.

    An option is of the session alone. The older request is that, or also changes what its user has chosen.
    """
    option = choices.find("model")
    values = option_values(option) if option is not None else []
    offered = [*values, *choices.models]
    if model not in offered:
        model = next((one for one in offered if options.model_name(one) == model), model)
    if option is not None and model in values:
        return _set_option(option, model)
    if model in choices.models:
        return "session/set_model", {"modelId": model}
    if not offered:
        message = "This agent does not let its model be chosen over the protocol. Leave the model out."
        return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="acp_no_model_choice")
    message = f"The agent does not offer the model {model}. It offers {_listed(offered)}."
    return FailureInfo(pb.FAILURE_KIND_MODEL_NOT_FOUND, message, code="acp_model_not_offered")


def adjusted(choices: Choices, adjustment: Adjustment, result: Fields) -> None:
    """Note in the choices that the agent has done what was asked of it."""
    _, params = adjustment
    choices.mode = str(params.get("modeId", choices.mode))
    choices.model = str(params.get("modelId", choices.model))
    choices.read_options(result)


def _set_option(option: Fields, value: str) -> Adjustment:
    return "session/set_config_option", {"configId": text(option, "id"), "value": value}


def _not_offered(what: str, offered: Iterable[str]) -> FailureInfo:
    message = f"The agent does not offer {what}. It offers {_listed(offered)}."
    return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="acp_not_offered")


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values)) or "none"
