"""What an agent's account is asked for outside of runs: its rate limits, and a new login."""

from dragoman.sdk._detection.account import (
    AgentProgram,
    LoginBusyError,
    LoginReader,
    Steps,
    account_turn,
    find_program,
    follow_login,
    in_turn,
    log_in_by,
    login_busy,
    login_failed,
    not_installed,
    quota_failed,
)

__all__ = [
    "AgentProgram",
    "LoginBusyError",
    "LoginReader",
    "Steps",
    "account_turn",
    "find_program",
    "follow_login",
    "in_turn",
    "log_in_by",
    "login_busy",
    "login_failed",
    "not_installed",
    "quota_failed",
]
