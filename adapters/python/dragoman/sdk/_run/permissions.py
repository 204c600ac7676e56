"""Permission policy: which rule decides about a request. Pure."""

import fnmatch
import posixpath
import re
from collections.abc import Mapping

from dragoman.v1 import event_pb2 as pb

_READING = frozenset({pb.TOOL_KIND_READ, pb.TOOL_KIND_SEARCH})


def may_offer(permissions: pb.Permissions, name: str, kind: pb.ToolKind.ValueType) -> bool:
    """Return whether an agent that never asks may have one of its tools: wholly or not at all.

    A rule that allows a part of what the tool does gives none of it. By default only tools that read are offered.
    """
    decision = permissions.default_decision
    for rule in () if permissions.auto_approve else permissions.rules:
        is_narrow = bool(rule.path_glob or rule.command_prefix or rule.host)
        is_about = rule.tool_kind in {0, kind} and rule.tool_name in {"", name}
        if is_about and not (is_narrow and rule.decision == pb.PERMISSION_DECISION_ALLOW):
            decision = rule.decision
            break
    if permissions.auto_approve or decision == pb.PERMISSION_DECISION_ALLOW:
        return True
    return kind in _READING and decision != pb.PERMISSION_DECISION_DENY


def offered_tools(
    agent: str, kinds: Mapping[str, pb.ToolKind.ValueType], permissions: pb.Permissions
) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the tools that an agent that never asks may have, and the plan's notices of those that it may not.

    Args:
        agent: its name.
        kinds: what its tools do, by name.
        permissions: the run's.
    """
    offered = [name for name, kind in kinds.items() if may_offer(permissions, name, kind)]
    withheld = ", ".join(name for name in kinds if name not in offered)
    message = f"{agent} never asks: these tools are withheld, as not all of their use is allowed: [{withheld}]."
    return offered, (("tools_withheld", message),) if withheld else ()


def decide(
    permissions: pb.Permissions, subject: pb.InputSubject, *, cwd: str = ""
) -> pb.PermissionDecision.ValueType:
    """Return ALLOW, ASK or DENY for what an agent wants to do.

    The first rule that matches decides, then the default. In an unattended run, ASK is DENY.

    Args:
        permissions: the run's.
        subject: what it wants to do.
        cwd: where relative paths are meant from.
    """
    if permissions.auto_approve:
        return pb.PERMISSION_DECISION_ALLOW
    decision = permissions.default_decision
    for rule in permissions.rules:
        if matches(rule, subject, cwd=cwd):
            decision = rule.decision
            break
    if decision == pb.PERMISSION_DECISION_UNSPECIFIED:
        decision = pb.PERMISSION_DECISION_ASK
    if decision == pb.PERMISSION_DECISION_ASK and not permissions.interactive:
        return pb.PERMISSION_DECISION_DENY
    return decision


def matches(rule: pb.PermissionRule, subject: pb.InputSubject, *, cwd: str = "") -> bool:
    """Return whether a rule is about this; all that it sets must match.

    What is unclear matches a rule that denies and none that allows.
    """
    if rule.tool_kind and rule.tool_kind != subject.tool_kind:
        return False
    if rule.tool_name and rule.tool_name != subject.tool_name:
        return False
    if rule.path_glob and not _paths_match(rule, subject, cwd):
        return False
    if rule.command_prefix and not _command_matches(rule, subject):
        return False
    return not rule.host or _host(rule.host) == _host(subject.host)


def _host(name: str) -> str:
    return name.casefold().removesuffix(".")


def _paths_match(rule: pb.PermissionRule, subject: pb.InputSubject, cwd: str) -> bool:
    if rule.decision == pb.PERMISSION_DECISION_DENY:
        return any(
            fnmatch.fnmatchcase(path, rule.path_glob) or fnmatch.fnmatchcase(_real(path, cwd), rule.path_glob)
            for path in subject.paths
        )
    # Allowing one of several paths must not allow the others; `..` could leave what the glob names.
    return bool(subject.paths) and all(_is_allowed(path, rule.path_glob, cwd) for path in subject.paths)


def _is_allowed(path: str, glob: str, cwd: str) -> bool:
    if ".." in path.split("/"):
        return False
    return fnmatch.fnmatchcase(path, glob) or fnmatch.fnmatchcase(_real(path, cwd), glob)


def _real(path: str, cwd: str) -> str:
    """Return the path from / on, without `..`. Links are not followed: their targets may change concurrently."""
    return "/" + posixpath.normpath(posixpath.join(cwd or "/", path)).lstrip("/")


_SHELL_OPERATORS = frozenset(";&|<>`$\n(){}")
_BETWEEN_COMMANDS = re.compile("[" + re.escape("".join(sorted(_SHELL_OPERATORS))) + "]+")


def _command_matches(rule: pb.PermissionRule, subject: pb.InputSubject) -> bool:
    command = subject.command.strip()
    if rule.decision == pb.PERMISSION_DECISION_DENY:
        return any(part.strip().startswith(rule.command_prefix) for part in _BETWEEN_COMMANDS.split(command))
    # "git status" must not allow "git status; rm -rf ~", nor "git statusx".
    if _SHELL_OPERATORS & set(command):
        return False
    import shlex  # noqa: PLC0415 - few runs have such rules

    try:
        words, prefix = shlex.split(command), shlex.split(rule.command_prefix)
    except ValueError:
        return False
    return bool(prefix) and words[: len(prefix)] == prefix
