"""Permission policy: which rule decides about a request. Pure."""

import fnmatch
import shlex

from dragoman.v1 import event_pb2 as pb


def decide(permissions: pb.Permissions, subject: pb.InputSubject) -> pb.PermissionDecision.ValueType:
    """Return ALLOW, ASK or DENY for what an agent wants to do.

    The first rule that matches decides, then the default. Without somebody to ask, ASK is DENY.
    """
    if permissions.auto_approve:
        return pb.PERMISSION_DECISION_ALLOW
    decision = permissions.default_decision
    for rule in permissions.rules:
        if matches(rule, subject):
            decision = rule.decision
            break
    if decision == pb.PERMISSION_DECISION_UNSPECIFIED:
        decision = pb.PERMISSION_DECISION_ASK
    if decision == pb.PERMISSION_DECISION_ASK and not permissions.interactive:
        return pb.PERMISSION_DECISION_DENY
    return decision


def matches(rule: pb.PermissionRule, subject: pb.InputSubject) -> bool:
    """Tell whether a rule is about this; all that it sets must match."""
    if rule.tool_kind and rule.tool_kind != subject.tool_kind:
        return False
    if rule.tool_name and rule.tool_name != subject.tool_name:
        return False
    if rule.path_glob and not _paths_match(rule, subject):
        return False
    if rule.command_prefix and not _command_matches(rule, subject):
        return False
    return not rule.host or rule.host == subject.host


def _paths_match(rule: pb.PermissionRule, subject: pb.InputSubject) -> bool:
    matched = [fnmatch.fnmatchcase(path, rule.path_glob) for path in subject.paths]
    if rule.decision == pb.PERMISSION_DECISION_DENY:
        return any(matched)
    # Allowing one of several paths must not allow the others; `..` could leave what the glob names.
    return bool(matched) and all(matched) and not any(".." in path.split("/") for path in subject.paths)


_SHELL_OPERATORS = frozenset(";&|<>`$\n(){}")


def _command_matches(rule: pb.PermissionRule, subject: pb.InputSubject) -> bool:
    command = subject.command.strip()
    if rule.decision == pb.PERMISSION_DECISION_DENY:
        return command.startswith(rule.command_prefix)
    # "git status" must not allow "git status; rm -rf ~", nor "git statusx".
    if _SHELL_OPERATORS & set(command):
        return False
    try:
        words, prefix = shlex.split(command), shlex.split(rule.command_prefix)
    except ValueError:
        return False
    return bool(prefix) and words[: len(prefix)] == prefix
