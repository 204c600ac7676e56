"""Permission policy: which rule decides about a request. Pure."""

import fnmatch
import posixpath
import re
import shlex

from dragoman.v1 import event_pb2 as pb


def decide(
    permissions: pb.Permissions, subject: pb.InputSubject, *, cwd: str = ""
) -> pb.PermissionDecision.ValueType:
    """Return ALLOW, ASK or DENY for what an agent wants to do.

    The first rule that matches decides, then the default. Without somebody to ask, ASK is DENY.

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


def is_refused(permissions: pb.Permissions, subject: pb.InputSubject, *, cwd: str = "") -> bool:
    """Tell whether the permissions refuse it in so many words, not only for want of somebody to ask."""
    if permissions.auto_approve:
        return False
    decisions = (rule.decision for rule in permissions.rules if matches(rule, subject, cwd=cwd))
    return next(decisions, permissions.default_decision) == pb.PERMISSION_DECISION_DENY


def matches(rule: pb.PermissionRule, subject: pb.InputSubject, *, cwd: str = "") -> bool:
    """Tell whether a rule is about this; all that it sets must match.

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
    """Return the path from / on, without `..`. Links are not followed: what they name may change meanwhile."""
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
    try:
        words, prefix = shlex.split(command), shlex.split(rule.command_prefix)
    except ValueError:
        return False
    return bool(prefix) and words[: len(prefix)] == prefix
