"""The adapter for Claude Code: its stream-json output with partial messages, its control channel, its sessions."""

from dragoman.adapters.claude_code.adapter import ClaudeCodeAdapter


def adapter() -> ClaudeCodeAdapter:
    """Return the adapter; the entry point ``claude_code`` names this."""
    return ClaudeCodeAdapter()
