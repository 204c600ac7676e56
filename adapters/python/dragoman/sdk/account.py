"""What an agent's account is asked for outside of runs: its rate limits, and a new login."""

from dragoman.sdk._detection.account import (
    AgentProgram,
    LoginReader,
    Steps,
    follow_login,
    log_in_by,
    login_failed,
    quota_by,
    quota_failed,
    quota_refused,
    quota_silent,
)

__all__ = [
    "AgentProgram",
    "LoginReader",
    "Steps",
    "follow_login",
    "log_in_by",
    "login_failed",
    "quota_by",
    "quota_failed",
    "quota_refused",
    "quota_silent",
]
