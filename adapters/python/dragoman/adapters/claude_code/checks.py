"""Checks of an environment for Claude Code in particular. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from dragoman.sdk.fields import JsonValue, as_bool, as_string
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_INFO, _WARNING, _ERROR = event_pb2.SEVERITY_INFO, event_pb2.SEVERITY_WARNING, event_pb2.SEVERITY_ERROR

_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}


def set_up_checks(
    config: Mapping[str, JsonValue], env: Mapping[str, str], *, is_root: bool, nesting: Collection[str]
) -> Iterator[pb.EnvironmentCheck]:
    """Yield what is worth knowing about an environment.

    Args:
        config: the checked ``config``.
        env: the adapter's environment with that of the run over it.
        is_root: whether runs are root's.
        nesting: the variables by which Claude Code knows that it runs inside itself.
    """
    yield from _permissions(config, env, is_root=is_root)
    yield from _providers(env)
    if any(env.get(name) for name in nesting):
        yield pb.EnvironmentCheck(
            code="nested_agent",
            level=_INFO,
            message="The adapter runs inside Claude Code; runs do not get the variables that say so.",
        )


def _permissions(
    config: Mapping[str, JsonValue], env: Mapping[str, str], *, is_root: bool
) -> Iterator[pb.EnvironmentCheck]:
    if not as_bool(config.get("dangerouslySkipPermissions"), False):
        return
    if is_root and not env.get("IS_SANDBOX"):
        yield pb.EnvironmentCheck(
            code="skip_permissions_as_root",
            level=_ERROR,
            message="config.dangerouslySkipPermissions: Claude Code refuses to skip permissions as root.",
            hint="Use permissions.auto_approve, which works as any user; or run the adapter as another user.",
        )
        return
    yield pb.EnvironmentCheck(
        code="permissions_skipped",
        level=_WARNING,
        message="config.dangerouslySkipPermissions: Claude Code runs commands and writes files without asking.",
        hint="Use rules in permissions, or permissions.auto_approve, which at least reports what is done.",
    )


def _providers(env: Mapping[str, str]) -> Iterator[pb.EnvironmentCheck]:
    for name, label in _CLOUDS.items():
        if env.get(name):
            yield pb.EnvironmentCheck(
                code="cloud_provider",
                level=_INFO,
                message=f"{name} is set: the model is {label}'s, which knows only its own model ids.",
            )
    url = as_string(env.get("ANTHROPIC_BASE_URL"), "")
    if url:
        yield pb.EnvironmentCheck(
            code="base_url_set",
            level=_INFO,
            message="ANTHROPIC_BASE_URL is set: requests, and the key, go there instead of to Anthropic.",
            detail=url.rpartition("@")[2],
        )
