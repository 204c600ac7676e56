"""Tokens with scopes: what is stored of them, who they name, and what their scopes are for."""

import contextlib
import json
import os
import time
from pathlib import Path

import pytest
from dragoman.protocol.caller import RULES, SCOPES, Caller
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.tokens import (
    ScopedTokens,
    TokenFileError,
    create_token,
    revoke_token,
    stored_tokens,
    tokens_path,
)
from dragoman.v1 import adapter_pb2, router_pb2

SERVICES = (
    adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"],
    router_pb2.DESCRIPTOR.services_by_name["RouterService"],
)
METHODS = [f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens.json"


def test_a_token_names_its_caller_until_it_is_revoked(file: Path) -> None:
    tokens, now = ScopedTokens(file), time.time()
    assert tokens.caller("dgm_0_x", now) is None
    text = create_token(file, "ci", ["run", "read"], ["codex"], None)
    other = create_token(file, "other", ["read"], ["*"], None)
    assert tokens.caller(text, now) == Caller("token ci", frozenset({"run", "read"}), ("codex",))
    for wrong in (text[:-1], text + "a", text.replace("dgm_", "dgm-"), other[:12] + text[12:], "", text.upper()):
        assert tokens.caller(wrong, now) is None
    revoke_token(file, "ci")
    assert tokens.caller(text, now) is None
    assert tokens.caller(other, now) is not None
    revoke_token(file, other.split("_")[1])
    assert stored_tokens(file) == []
    with pytest.raises(TokenFileError, match="there is no token 'ci'"):
        revoke_token(file, "ci")


def test_the_file_has_no_token_and_is_private(file: Path) -> None:
    text = create_token(file, "ci", ["run"], ["*"], None)
    assert text.split("_", 2)[2] not in file.read_text()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_directory_with_other_uses_keeps_its_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_TOKENS", "tokens.json")
    tmp_path.chmod(0o755)
    create_token(tokens_path(), "ci", ["run"], ["*"], None)
    with pytest.raises(TokenFileError, match="there is no token 'other'"):
        revoke_token(tokens_path(), "other")
    assert [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "tokens.json")] == [0o755, 0o600]


def test_a_directory_that_others_can_write_is_refused_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    with pytest.raises(TokenFileError, match=f"other users can write to {tmp_path} "):
        create_token(tmp_path / "tokens.json", "ci", ["run"], ["*"], None)
    assert tmp_path.stat().st_mode & 0o777 == 0o775
    assert list(tmp_path.iterdir()) == []


def test_the_default_directory_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_TOKENS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "dragoman"
    folder.mkdir()
    folder.chmod(0o755)
    create_token(tokens_path(), "ci", ["run"], ["*"], None)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_token_expires(file: Path) -> None:
    text, tokens = create_token(file, "ci", ["run"], ["*"], 60), ScopedTokens(file)
    assert tokens.caller(text, time.time() + 59) is not None
    with pytest.raises(TokenFileError, match="'ci' has expired"):
        tokens.caller(text, time.time() + 61)


def test_a_name_belongs_to_one_token_until_that_expires(file: Path) -> None:
    first = create_token(file, "ci", ["run"], ["*"], 0.001)
    while not stored_tokens(file)[0].is_expired(time.time()):
        pass
    second = create_token(file, "ci", ["read"], ["*"], None)
    assert ScopedTokens(file).caller(first, time.time()) is None
    assert ScopedTokens(file).caller(second, time.time()) is not None
    with pytest.raises(TokenFileError, match="there is a token 'ci'; revoke it first"):
        create_token(file, "ci", ["read"], ["*"], None)


@pytest.mark.parametrize(
    ("name", "scopes", "why"),
    [
        ("", ["run"], "must match"),
        ("a b", ["run"], "must match"),
        ("a", [], "none was named"),
        ("a", ["x", "run"], "x"),
    ],
)
def test_a_wrong_token_is_refused(file: Path, name: str, scopes: list[str], why: str) -> None:
    with pytest.raises(TokenFileError, match=why):
        create_token(file, name, scopes, ["*"], None)
    assert stored_tokens(file) == []


@pytest.mark.parametrize("content", ["", "{}", '{"tokens": [{}]}', '{"tokens": 1}', "\xff"])
def test_a_wrong_file_lets_no_token_in(file: Path, content: str) -> None:
    text = create_token(file, "ci", ["run"], ["*"], None)
    tokens = ScopedTokens(file)
    assert tokens.caller(text, time.time()) is not None
    file.write_bytes(content.encode("latin-1"))
    for _ in range(2):
        with pytest.raises(TokenFileError, match="is no file of tokens"):
            tokens.caller(text, time.time())


def test_an_unknown_scope_in_the_file_lets_no_token_in(file: Path) -> None:
    text = create_token(file, "ci", ["run"], ["*"], None)
    content = json.loads(file.read_text())
    content["tokens"][0]["scopes"] = ["everything"]
    file.write_text(json.dumps(content))
    with pytest.raises(TokenFileError):
        ScopedTokens(file).caller(text, time.time())


def test_a_file_that_others_can_write_lets_no_token_in(file: Path) -> None:
    text = create_token(file, "ci", ["run"], ["*"], None)
    file.chmod(0o620)
    with pytest.raises(TokenFileError, match="can be written by other users"):
        ScopedTokens(file).caller(text, time.time())


def test_the_file_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKENS", "/mnt/tokens.json")
    assert tokens_path() == Path("/mnt/tokens.json")
    monkeypatch.delenv("DRAGOMAN_TOKENS")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert tokens_path() == Path("/state/dragoman/tokens.json")


ALLOWED = {
    "read": {
        *("Describe", "ListAdapters", "WatchAdapters", "Attach", "GetChanges", "ReadArtifact", "GetRun", "ListRuns"),
        *("GetAgent", "ListAgents", "ListBudgets"),
    },
    "run": {
        *(
            "Describe",
            "ListAdapters",
            "WatchAdapters",
            "Attach",
            "GetChanges",
            "ReadArtifact",
            "GetRun",
            "ListRuns",
            "Execute",
            "Cancel",
            "Respond",
            "Send",
            "UpdateRun",
        ),
        *("Detect", "TestEnvironment", "ListModels", "ListSkills", "GetQuota"),
    },
    "respond": {"Describe", "ListAdapters", "WatchAdapters", "GetRun", "Respond"},
    "adapter": {"Describe", "ListAdapters", "WatchAdapters", "RegisterAdapter", "UnregisterAdapter"},
    "admin": {method.rpartition("/")[2] for method in METHODS},
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", [*METHODS, "/dragoman.v1.AdapterService/OfALaterRevision"])
def test_a_scope_is_for_these_methods(scope: str, method: str) -> None:
    caller = Caller("token t", frozenset({scope}))
    if method.rpartition("/")[2] in ALLOWED[scope] or scope == "admin":
        caller.check_method(method)
        return
    with pytest.raises(
        DragomanError, match=r"^token t is not permitted to do this: \w+ needs a token with"
    ) as caught:
        caller.check_method(method)
    assert caught.value.reason is Reason.NOT_PERMITTED


def test_each_rpc_of_the_contract_has_a_row_in_the_table() -> None:
    assert set(RULES) == set(METHODS)
    assert all(rule.scopes | rule.of_run <= set(SCOPES) - {"admin"} for rule in RULES.values())


@pytest.mark.parametrize("method", METHODS)
def test_a_token_of_a_run_is_for_these_methods(method: str) -> None:
    """Its scopes are not those of other tokens: even all of them open no other RPC."""
    caller = Caller("run r", frozenset(SCOPES), ("*",), "r")
    if method.rpartition("/")[2] in {"GetRun", "Attach", "GetChanges", "ReadArtifact", "Respond"}:
        caller.check_method(method)
    else:
        with pytest.raises(DragomanError, match="the token of a run is not for"):
            caller.check_method(method)
    for run_id, may in (("r", True), ("other", False), ("", False)):
        assert caller.may_read("run r", run_id) is may
        for check in (caller.check_read, caller.check_answer):
            with contextlib.nullcontext() if may else pytest.raises(DragomanError):
                check("run r", run_id)
    with pytest.raises(DragomanError):
        caller.check_control("run r")
    with pytest.raises(DragomanError):
        caller.check_admin()


@pytest.mark.parametrize(
    ("scope", "own", "others"),
    [
        ("read", "read", "read"),
        ("run", "read control answer", ""),
        ("respond", "answer", "answer"),
        ("adapter", "", ""),
        ("admin", "all", "all"),
    ],
)
def test_what_a_caller_may_do_with_runs(scope: str, own: str, others: str) -> None:
    caller = Caller("token t", frozenset({scope}))
    checks = {"read": caller.check_read, "control": caller.check_control, "answer": caller.check_answer}
    for started_by, allowed in (("token t", own), ("token u", others), ("", others), ("uid 0", others)):
        for kind, check in checks.items():
            if kind in allowed or allowed == "all":
                check(started_by)
            else:
                with pytest.raises(DragomanError):
                    check(started_by)


def test_a_token_may_be_for_some_adapters() -> None:
    caller = Caller("token t", frozenset({"run"}), ("claude*", "codex"))
    caller.check_adapter("claude_code")
    caller.check_adapter("codex")
    with pytest.raises(DragomanError, match="not for adapter 'pi', only for claude\\*, codex"):
        caller.check_adapter("pi")
    Caller("token t", frozenset({"admin"}), ("codex",)).check_adapter("pi")


def test_the_file_of_another_user_lets_no_token_in(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    text = create_token(file, "ci", ["run"], ["*"], None)
    os.chown(file, 65534, 65534)
    with pytest.raises(TokenFileError, match="can be written by other users"):
        ScopedTokens(file).caller(text, time.time())
