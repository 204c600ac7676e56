"""Errors as shown to people and for programs."""

import json

import grpc
import pytest
from dragoman.cli.errors import as_json, as_text, error_report
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid_fields

WRONG = invalid_fields(
    [FieldViolation("config.maxTurns", "must be a number"), FieldViolation("workspace.cwd", "is relative")]
)


def test_what_where_and_what_to_do() -> None:
    assert as_text(error_report(WRONG)) == (
        "error: config.maxTurns: must be a number\n  workspace.cwd: is relative\n"
        "  'dragoman describe ADAPTER' documents the settings\n"
    )


def test_near_names() -> None:
    error = DragomanError(Reason.ADAPTER_NOT_FOUND, "no adapter 'claud'", {"did_you_mean": "claude_code, process"})
    assert as_text(error_report(error)) == (
        "error: no adapter 'claud'\n  did you mean claude_code or process?\n"
        "  'dragoman adapters' lists the adapters\n"
    )


@pytest.mark.parametrize(
    ("is_embedded", "hint"),
    [
        (False, "the server at unix:/r.sock answered; 'dragoman adapters' lists its adapters"),
        (True, "no router listens at unix:/r.sock, so this command's own answered; what 'dragoman serve' is given, "
        "e.g. by --manifest, is known only there"),
    ],
)  # fmt: skip
def test_an_unknown_adapter_says_which_router_answered(is_embedded: bool, hint: str) -> None:
    error = DragomanError(Reason.ADAPTER_NOT_FOUND, "Adapter 'otter' not found")
    report = error_report(error, address="unix:/r.sock", is_embedded=is_embedded)
    assert as_text(report) == f"error: Adapter 'otter' not found\n  {hint}\n"


def test_near_names_that_the_message_has_are_not_repeated() -> None:
    error = DragomanError(
        Reason.ADAPTER_NOT_FOUND, "no adapter 'claud'; did you mean claude_code?", {"did_you_mean": "claude_code"}
    )
    assert as_text(error_report(error)).count("claude_code") == 1
    assert json.loads(as_json(error_report(error)))["error"]["near"] == ["claude_code"]


def test_no_server_is_there() -> None:
    error = DragomanError(None, "failed to connect to all addresses; …", status=grpc.StatusCode.UNAVAILABLE)
    text = as_text(error_report(error, address="127.0.0.1:9"))
    assert text.startswith("error: no server is reachable at 127.0.0.1:9\n  start a router")


def test_a_run_whose_server_is_gone_is_named() -> None:
    error = DragomanError(None, "the stream of r1 broke and …", {"run_id": "r1"}, status=grpc.StatusCode.UNAVAILABLE)
    assert as_text(error_report(error, address="127.0.0.1:9")) == (
        "error: the stream of r1 broke and …\n"
        "  when the router is back, 'dragoman attach r1' follows the run, if it was started\n"
    )


def test_when_to_try_again() -> None:
    error = DragomanError(Reason.DRAINING, "going down", retry_after_s=2)
    assert "  try again in 2.0 s\n" in as_text(error_report(error))


def test_an_open_breaker_names_the_login_and_the_fallback_candidates() -> None:
    more = {"failure_message": "Invalid\nkey \x1b", "login_url": "https://a", "candidates": "two,three"}
    error = DragomanError(Reason.BREAKER_OPEN, "failed just now", more)
    assert as_text(error_report(error)).splitlines()[1:-1] == [
        "  last failure: Invalid key ␛",
        "  log in at https://a",
        "  available for fallback: two, three",
    ]
    document = json.loads(as_json(error_report(error)))["error"]
    assert (document["failure"], document["loginUrl"]) == (more["failure_message"], "https://a")
    assert document["candidates"] == ["two", "three"]


def test_hostile_texts_are_neutral() -> None:
    error = DragomanError(
        Reason.INVALID_REQUEST, "\x1b[2J", {"did_you_mean": "\x1b]0;x\x07"}, [FieldViolation("\x1b", "\x9b")]
    )
    assert not set(as_text(error_report(error))) & {"\x1b", "\x9b", "\x07"}
    assert "\x1b" not in as_json(error_report(error))


def test_for_programs() -> None:
    error = DragomanError(Reason.INVALID_REQUEST, "bad", {"did_you_mean": "a"}, WRONG.violations, 1.5)
    assert json.loads(as_json(error_report(error))) == {
        "error": {
            "message": "bad",
            "reason": "INVALID_REQUEST",
            "status": "INVALID_ARGUMENT",
            "near": ["a"],
            "hint": "'dragoman describe ADAPTER' documents the settings",
            "fields": [
                {"path": "config.maxTurns", "description": "must be a number"},
                {"path": "workspace.cwd", "description": "is relative"},
            ],
            "retryAfterS": 1.5,
        }
    }


@pytest.mark.parametrize("reason", list(Reason))
def test_exit_codes(reason: Reason) -> None:
    """Who calls wrongly gets 2; whatever else goes wrong is 1."""
    wrong_call = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "OUT_OF_RANGE"}
    expected = 2 if reason.status.name in wrong_call else 1
    assert error_report(DragomanError(reason, "x")).exit_code == expected
