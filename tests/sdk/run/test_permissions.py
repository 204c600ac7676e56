"""Which rule decides, and the tricks by which one could be got around."""

import pytest
from dragoman.sdk._run.permissions import decide, matches, may_offer
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

ALLOW, ASK, DENY = pb.PERMISSION_DECISION_ALLOW, pb.PERMISSION_DECISION_ASK, pb.PERMISSION_DECISION_DENY
UNSAID = pb.PERMISSION_DECISION_UNSPECIFIED


def rule(decision: pb.PermissionDecision.ValueType = ALLOW, **fields: str) -> pb.PermissionRule:
    permission_rule = pb.PermissionRule(decision=decision)
    for name, value in fields.items():
        setattr(permission_rule, name, value)
    return permission_rule


def command(text: str) -> pb.InputSubject:
    return pb.InputSubject(tool_name="Bash", tool_kind=pb.TOOL_KIND_EXECUTE, command=text)


def files(*paths: str) -> pb.InputSubject:
    return pb.InputSubject(tool_name="Write", tool_kind=pb.TOOL_KIND_EDIT, paths=paths)


@pytest.mark.parametrize(
    ("permissions", "decision"),
    [
        (pb.Permissions(), DENY),  # unattended, nothing is allowed
        (pb.Permissions(interactive=True), ASK),
        (pb.Permissions(default_decision=ALLOW), ALLOW),
        (pb.Permissions(default_decision=DENY, interactive=True), DENY),
        (pb.Permissions(default_decision=ASK), DENY),
        (pb.Permissions(auto_approve=True), ALLOW),
        (pb.Permissions(auto_approve=True, default_decision=DENY), ALLOW),
        (pb.Permissions(rules=[rule(DENY), rule(ALLOW)], default_decision=ALLOW), DENY),
        (pb.Permissions(rules=[rule(ALLOW), rule(DENY)]), ALLOW),
        (pb.Permissions(rules=[rule(UNSAID)], interactive=True, default_decision=ALLOW), ASK),
        (pb.Permissions(rules=[rule(ASK)], default_decision=ALLOW), DENY),
        (pb.Permissions(rules=[rule(ALLOW, tool_name="Other")], default_decision=DENY), DENY),
    ],
)
def test_the_first_rule_that_matches_decides(
    permissions: pb.Permissions, decision: pb.PermissionDecision.ValueType
) -> None:
    assert decide(permissions, command("ls")) == decision


@pytest.mark.parametrize(
    ("fields", "matched"),
    [
        ({}, True),
        ({"tool_name": "Bash"}, True),
        ({"tool_name": "bash"}, False),
        ({"command_prefix": "git status"}, True),
        ({"tool_name": "Bash", "command_prefix": "rm"}, False),
        ({"path_glob": "*"}, False),  # it is about no path
        ({"host": "example.com"}, False),
    ],
)
def test_all_that_a_rule_sets_must_match(fields: dict[str, str], matched: bool) -> None:
    assert matches(rule(ALLOW, **fields), command("git status -s")) == matched


def test_kinds_of_tools() -> None:
    assert matches(pb.PermissionRule(tool_kind=pb.TOOL_KIND_EXECUTE), command("ls"))
    assert not matches(pb.PermissionRule(tool_kind=pb.TOOL_KIND_READ), command("ls"))


@pytest.mark.parametrize(
    "text",
    [
        "git status; rm -rf ~",
        "git status && rm -rf ~",
        "git status || rm -rf ~",
        "git status | sh",
        "git status & rm -rf ~",
        "git status\nrm -rf ~",
        "git status $(rm -rf ~)",
        "git status `rm -rf ~`",
        "git status > /etc/passwd",
        "git status < /etc/shadow",
        "git status $HOME",
        "git status <(rm -rf ~)",
        "git status {a,b}",
        "git statusx",
        "git  'statu",
        "sudo git status",
        "GIT_PAGER=evil git status",
        "git",
        "",
    ],
)
def test_an_allowed_command_allows_no_other(text: str) -> None:
    assert not matches(rule(ALLOW, command_prefix="git status"), command(text))
    permissions = pb.Permissions(rules=[rule(ALLOW, command_prefix="git status")], interactive=True)
    assert decide(permissions, command(text)) == ASK


@pytest.mark.parametrize("text", ["git status", " git status ", "git status -s", "git 'status' -s", 'git  "status"'])
def test_an_allowed_command_allows_itself(text: str) -> None:
    assert matches(rule(ALLOW, command_prefix="git status"), command(text))


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf /",
        " rm x",
        "rmdir x",
        "ls; rm x",
        "ls && rm x",
        "ls\nrm x",
        "a | rm",
        "(rm x)",
        "$(rm x)",
        "`rm x`",
        "true;rm",
    ],
)
def test_a_denied_command_is_found_behind_others(text: str) -> None:
    assert matches(rule(DENY, command_prefix="rm"), command(text))
    permissions = pb.Permissions(rules=[rule(DENY, command_prefix="rm"), rule(ALLOW)])
    assert decide(permissions, command(text)) == DENY


@pytest.mark.parametrize("text", ["ls", "echo rm", "git rm"])
def test_a_denied_command_denies_no_other(text: str) -> None:
    assert not matches(rule(DENY, command_prefix="rm"), command(text))


@pytest.mark.parametrize(
    ("paths", "matched"),
    [
        (["/w/src/a.py"], True),
        (["/w/src/deep/a.py"], True),
        (["src/a.py"], True),  # from the working directory
        (["./src/a.py"], True),
        (["/w/src/a.py", "/w/src/b.py"], True),
        (["/w/src/a.py", "/etc/passwd"], False),  # one allowed path does not allow the other
        (["/w/src/../../etc/passwd"], False),
        (["/w/src/../src/a.py"], False),  # src may be a link: only the kernel knows where this leads
        (["src/../../etc/passwd"], False),
        (["/etc/passwd"], False),
        (["/w/srcx/a.py"], False),
        (["/W/SRC/a.py"], False),
        ([""], False),
        ([], False),
    ],
)
def test_allowed_paths(paths: list[str], matched: bool) -> None:
    assert matches(rule(ALLOW, path_glob="/w/src/*"), files(*paths), cwd="/w") == matched


@pytest.mark.parametrize(
    ("paths", "matched"),
    [
        (["/etc/passwd"], True),
        (["/w/../etc/passwd"], True),
        (["../etc/passwd"], True),
        (["./../etc/./passwd"], True),
        (["//etc/passwd"], True),
        (["/etc//passwd"], True),
        (["/w/a", "/etc/passwd"], True),  # one denied path denies the whole
        (["/w/etc/passwd"], False),
        (["etc/passwd"], False),
        ([], False),
    ],
)
def test_denied_paths(paths: list[str], matched: bool) -> None:
    assert matches(rule(DENY, path_glob="/etc/*"), files(*paths), cwd="/w") == matched


def test_relative_globs_match_relative_paths() -> None:
    assert matches(rule(ALLOW, path_glob="src/*"), files("src/a"), cwd="/w")
    assert matches(rule(DENY, path_glob="*.pem"), files("certs/x.pem"), cwd="/w")
    assert not matches(rule(ALLOW, path_glob="src/*"), files("/elsewhere/src/a"), cwd="/w")


@pytest.mark.parametrize(
    ("host", "matched"), [("example.com", True), ("EXAMPLE.com.", True), ("evil.example.com", False)]
)
def test_hosts(host: str, matched: bool) -> None:
    assert matches(rule(DENY, host="Example.com"), pb.InputSubject(host=host)) == matched


paths_in_allowed = st.lists(st.sampled_from(["a", "b", "..", ".", "", "src"]), max_size=6).map("/".join)


@given(paths_in_allowed, st.sampled_from(["", "/", "/w/", "/w/src/"]))
def test_no_path_gets_out_of_what_is_allowed(path: str, start: str) -> None:
    """Whatever is written, what the kernel would open without links is within the allowed directory."""
    import posixpath

    subject = files(start + path)
    if matches(rule(ALLOW, path_glob="/w/src/*"), subject, cwd="/w"):
        opened = posixpath.normpath(posixpath.join("/w", start + path))
        assert opened.startswith("/w/src")


@given(st.text(alphabet="abgitsu ;&|$`\n<>(){}'\"\\", max_size=12))
def test_no_tail_makes_an_allowed_command_two(tail: str) -> None:
    if matches(rule(ALLOW, command_prefix="git status"), command("git status" + tail)):
        assert not set(tail.strip()) & set(";&|$`\n<>(){}")


EDIT, READ = pb.TOOL_KIND_EDIT, pb.TOOL_KIND_READ


@pytest.mark.parametrize(
    ("permissions", "kind", "offered"),
    [
        (pb.Permissions(), READ, True),
        (pb.Permissions(), EDIT, False),
        (pb.Permissions(auto_approve=True, rules=[rule(DENY)]), EDIT, True),
        (pb.Permissions(default_decision=ALLOW), EDIT, True),
        (pb.Permissions(default_decision=DENY), READ, False),
        (pb.Permissions(rules=[rule(tool_name="tool")]), EDIT, True),
        (pb.Permissions(rules=[rule(tool_name="other")]), EDIT, False),
        (pb.Permissions(rules=[rule(tool_name="tool", path_glob="src/**")]), EDIT, False),
        (pb.Permissions(default_decision=ALLOW, rules=[rule(DENY, command_prefix="rm")]), EDIT, False),
        (pb.Permissions(rules=[rule(DENY, tool_name="tool"), rule(ALLOW)]), READ, False),
    ],
)
def test_a_tool_of_an_agent_that_never_asks_is_offered_wholly_or_not_at_all(
    permissions: pb.Permissions, kind: pb.ToolKind.ValueType, offered: bool
) -> None:
    assert may_offer(permissions, "tool", kind) is offered
