from __future__ import annotations

import pytest
from dragoman.guard.options import DEFAULT_GRACE_S, UsageError, parse

HOUSE = ("--control", "c", "--instance", "i", "--log", "l")


def test_both_spellings_of_a_value() -> None:
    options = parse(["--control-fd", "7", "--linger=0.5", "--", "sh", "--", "-c"])
    assert options.argv == ["sh", "--", "-c"]
    assert options.control_fd == 7
    assert options.linger == 0.5


def test_a_house_has_all_its_paths() -> None:
    options = parse([*HOUSE, "--log-bytes=10", "--log-keep=0", "--orphan-after=3", "--", "x"])
    assert (options.control, options.instance, options.log) == ("c", "i", "l")
    assert (options.log_bytes, options.log_keep, options.orphan_after) == (10, 0, 3.0)
    assert options.grace == DEFAULT_GRACE_S


def test_a_container_waits_for_ever_unless_told() -> None:
    assert parse(["--", "x"]).grace is None
    assert parse(["--", "x"]).is_forwarding
    assert parse(["--grace=2", "--", "x"]).grace == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "usage"),
        (["sh"], "usage"),
        (["--"], "no command"),
        (["--frobnicate", "--", "x"], "unknown option '--frobnicate'"),
        (["--no-subreaper=1", "--", "x"], "unknown option"),
        (["--linger", "--", "x"], "--linger needs a value"),
        (["--linger=", "--", "x"], "--linger needs a value"),
        (["--linger=soon", "--", "x"], "--linger: could not convert"),
        (["--linger=-1", "--", "x"], "--linger: '-1' is not a number of seconds"),
        (["--linger=nan", "--", "x"], "--linger: 'nan' is not a number of seconds"),
        (["--orphan-after=inf", "--", "x"], "not a number of seconds"),
        (["--log-bytes=0", "--", "x"], "--log-bytes: must be at least 1"),
        (["--log-keep=-1", "--", "x"], "--log-keep: '-1' is negative"),
        (["--control=c", "--", "x"], "given together"),
        (["--log=l", "--", "x"], "given together"),
        ([*HOUSE, "--control-fd=3", "--", "x"], "exclude each other"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_the_reason(words: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(words)


def test_a_socket_path_is_measured_in_bytes() -> None:
    longest = "é" * 53 + "x"
    assert parse(["--control", longest, "--instance=i", "--log=l", "--", "x"]).control == longest
    with pytest.raises(UsageError, match="at most 107 bytes, this one has 108"):
        parse(["--control", longest + "x", "--instance=i", "--log=l", "--", "x"])
