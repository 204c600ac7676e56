"""What an adapter says about its agent's ways with the Agent Client Protocol. Plain data."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dragoman.sdk._encoding.fields import Fields, text
from dragoman.sdk._encoding.jsonrpc import RpcError
from dragoman.sdk._output.parser import FailureInfo
from dragoman.v1 import event_pb2 as pb

UsageMeaning = Literal["turn", "last_call", "session"]
"""What ``usage`` of a prompt's result counts: this prompt, its last call of the model, or the session so far."""


@dataclass(slots=True)
class ToolState:
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


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a prompt ended, for an adapter that knows better."""

    stop_reason: str
    text: str
    """The agent's last message."""
    result: Fields
    """The prompt's whole result."""


def _declared_name(update: Fields) -> str:
    return text(update, "name")


def _nothing_lost(error: RpcError) -> bool:
    del error
    return False


def _no_failure(end: TurnEnd) -> FailureInfo | None:
    del end
    return None


def _no_changes(call: ToolState) -> list[pb.FileChange] | None:
    del call
    return None


def _standard_usage(result: Fields) -> pb.TokenCounts | None:
    del result
    return None


@dataclass(frozen=True, slots=True)
class AcpOptions:
    """An agent's ways, and what is offered to it. The defaults fit an agent that keeps to the protocol."""

    # What is offered to the agent.
    reads_files: bool = False
    """Offer ``fs/read_text_file``."""
    writes_files: bool = False
    """Offer ``fs/write_text_file``."""
    terminals: bool = False
    """Offer ``terminal/*``."""
    elicitation: bool = True
    """Offer to put forms to the caller."""
    acknowledged: Collection[str] = ()
    """Methods that are answered with nothing, and nothing is done: some agents report so what they do themselves."""
    client_meta: Mapping[str, object] = field(default_factory=dict)
    """``_meta`` of the client's capabilities, e.g. for an agent's own extensions."""

    reports_offer: bool = False
    """Whether a notice says what the agent offers; for an adapter that does not know its agent."""

    # Setting up.
    authenticate: str = ""
    """The auth method to use before a session begins. Empty: the agent is logged in by itself."""
    prefers_load: bool = False
    """Resume with ``session/load`` although the agent offers ``session/resume``."""
    session_meta: Mapping[str, object] = field(default_factory=dict)
    """``_meta`` of session/new, load, resume and fork."""
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

    # Reading.
    usage: UsageMeaning = "turn"
    tokens: Callable[[Fields], pb.TokenCounts | None] = _standard_usage
    """Reads tokens from a prompt's result where they are not in ``usage``."""
    call_tokens: Callable[[Fields], pb.TokenCounts | None] = _standard_usage
    """Reads the tokens of one call of the model from an update, for an agent that reports them there. Where the
    prompt's result says nothing, their sum is the run's."""
    tool_name: Callable[[Fields], str] = _declared_name
    """Reads the tool's own name from a tool call or its update."""
    tool_kinds: Mapping[str, pb.ToolKind.ValueType] = field(default_factory=dict)
    """What sort of tool it is, by its own name, where the protocol has no word for that or the agent uses none."""
    file_changes: Callable[[ToolState], list[pb.FileChange] | None] = _no_changes
    """What a completed call did to files. None: as diffs and locations show."""
    empty_turn_fails: bool = True
    """Whether a turn that ends well without a word or a tool call is no result."""
    lost_session: Callable[[RpcError], bool] = _nothing_lost
    """Whether an error of load, resume or fork means that the session is not there. Beside the usual signs."""
    turn_failure: Callable[[TurnEnd], FailureInfo | None] = _no_failure
    """What a turn that ends well means for an agent that reports errors as text."""
    model_name: Callable[[str], str] = str
    """Returns a model's name as its service knows it, from the agent's id of it."""
    provider: str = ""
    """Whose models they are, if that is certain."""
