"""Checks of an environment for Claude Code in particular. Pure."""

from collections.abc import Mapping
from typing import Final

from dragoman.sdk.detection import Checks
from dragoman.sdk.fields import JsonValue, as_bool
from dragoman.v1 import event_pb2

_INFO, _WARNING, _ERROR = event_pb2.SEVERITY_INFO, event_pb2.SEVERITY_WARNING, event_pb2.SEVERITY_ERROR

_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}


def set_up_checks(
    config: Mapping[str, JsonValue],
    env: Mapping[str, str],
    checks: Checks,
    *,
    is_root: bool,
) -> None:
    """Add what is worth knowing about an environment.

    Args:
        config: the checked ``config``.
        env: the adapter's environment with that of the run over it.
        checks: gets it.
        is_root: whether runs are root's.
    """
    if as_bool(config.get("dangerouslySkipPermissions"), False):
        _check_skipping(checks, is_refused=is_root and not env.get("IS_SANDBOX"))
    for name, label in _CLOUDS.items():
        if env.get(name):
            message = f"{name} is set: the model is {label}'s, which knows only its own model ids."
            checks.add(_INFO, "cloud_provider", message)
    url = env.get("ANTHROPIC_BASE_URL", "")
    if url:
        message = "ANTHROPIC_BASE_URL is set: requests, and the key, go there instead of to Anthropic."
        checks.add(_INFO, "base_url_set", message, detail=url.rpartition("@")[2])


def _check_skipping(checks: Checks, *, is_refused: bool) -> None:
    if is_refused:
        message = "config.dangerouslySkipPermissions: Claude Code refuses to skip permissions as root."
        hint = "Use permissions.auto_approve, which works as any user; or run the adapter as another user."
        checks.add(_ERROR, "skip_permissions_as_root", message, hint=hint)
    else:
        message = "config.dangerouslySkipPermissions: Claude Code runs commands and writes files without asking."
        hint = "Use rules in permissions, or permissions.auto_approve, which at least reports what is done."
        checks.add(_WARNING, "permissions_skipped", message, hint=hint)
