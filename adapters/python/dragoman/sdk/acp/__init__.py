"""Agents that speak the Agent Client Protocol (agentclientprotocol.com): JSON-RPC over standard input and output.

Subclass ``AcpAdapter``; an agent's own ways go into ``AcpOptions``::

    from dragoman.sdk.acp import AcpAdapter, AcpOptions

    class MyAdapter(AcpAdapter):
        spec = AgentSpec(type="my_agent", executables=("my-agent",), native_protocol="acp", ...)
        acp = AcpOptions(usage="last_call")

        def acp_args(self, job):
            return ["acp"]
"""

from dragoman.sdk._encoding.fields import Fields
from dragoman.sdk._encoding.jsonrpc import RpcError
from dragoman.sdk._output.diffs import unified_diff
from dragoman.sdk.acp._adapter import AcpAdapter, conversation
from dragoman.sdk.acp._ending import error_text
from dragoman.sdk.acp._parser import AcpParser, opening
from dragoman.sdk.acp._session import (
    AcpOptions,
    Conversation,
    Offer,
    ToolState,
    TurnEnd,
    UsageMeaning,
    full_prompt,
    read_offer,
)
from dragoman.sdk.acp._tools import file_changes
from dragoman.sdk.acp._updates import read_tokens

__all__ = [
    "AcpAdapter",
    "AcpOptions",
    "AcpParser",
    "Conversation",
    "Fields",
    "Offer",
    "RpcError",
    "ToolState",
    "TurnEnd",
    "UsageMeaning",
    "conversation",
    "error_text",
    "file_changes",
    "full_prompt",
    "opening",
    "read_offer",
    "read_tokens",
    "unified_diff",
]
