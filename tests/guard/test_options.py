from __future__ import annotations

import os

import pytest
from dragoman.guard.launch import guard_command, run_guard
from dragoman.guard.options import DEFAULT_GRACE_S, UsageError, parse

HOUSE = ("--control", "c", "--instance", "i", "--log", "l")
CLAIM = "--control-fd=3"


def test_both_spellings_of_a_value() -> None:
    options = parse(["--control-fd", "7", "--linger=0.5", "--", "sh", "--", "-c"])
    assert options.argv == ["sh", "--", "-c"]
    assert options.control_fd == 7
    assert options.linger == 0.5


def test_a_house_has_all_its_paths() -> None:
    options = parse([*HOUSE, CLAIM, "--log-bytes=10", "--log-keep=0", "--orphan-after=3", "--", "x"])
    assert (options.control, options.instance, options.log) == ("c", "i", "l")
    assert (options.log_bytes, options.log_keep, options.orphan_after) == (10, 0, 3.0)
    assert options.grace == DEFAULT_GRACE_S


def test_a_container_waits_for_ever_by_default() -> None:
    assert parse(["--", "x"]).grace is None
    assert parse(["--", "x"]).is_forwarding
    assert parse(["--grace=2", "--", "x"]).grace == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "usage"),
        (["sh"], "usage"),
        (["--"], "missing command"),
        (["--frobnicate", "--", "x"], "unknown option '--frobnicate'"),
        (["--no-subreaper=1", "--", "x"], "unknown option"),
        (["--linger", "--", "x"], "--linger requires a value"),
        (["--linger=", "--", "x"], "--linger requires a value"),
        (["--linger=soon", "--", "x"], "--linger: could not convert"),
        (["--linger=-1", "--", "x"], "--linger: '-1' is not a number of seconds"),
        (["--linger=nan", "--", "x"], "--linger: 'nan' is not a number of seconds"),
        (["--orphan-after=inf", "--", "x"], "not a number of seconds"),
        (["--log-bytes=0", "--", "x"], "--log-bytes: must be at least 1"),
        (["--log-keep=-1", "--", "x"], "--log-keep: '-1' is not an integer"),
        (["--control=c", "--", "x"], "require each other"),
        (["--log=l", "--", "x"], "require each other"),
        ([*HOUSE, "--", "x"], "--control requires --control-fd"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_the_reason(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(arguments)


def test_a_socket_path_is_measured_in_bytes() -> None:
    longest = "é" * 53 + "x"
    assert parse(["--control", longest, CLAIM, "--instance=i", "--log=l", "--", "x"]).control == longest
    with pytest.raises(UsageError, match="has 108 bytes, the system allows 107"):
        parse(["--control", longest + "x", "--instance=i", "--log=l", "--", "x"])


def test_words_that_are_handed_over_arrive_as_they_were() -> None:
    argv = ["sh", "-c", "\xe9\udcff\n", "", "x" * 300_000]
    with guard_command(run_guard(argv, control_fd=7, remove="/secret/place")) as (command, fd):
        assert not any(word in " ".join(command) for word in ("sh -c", "secret", "\xe9", "xxx"))
        options = parse([f"{command[-1].partition('=')[0]}={os.dup(fd)}"])
    assert options.argv == argv
    assert (options.control_fd, options.remove) == (7, "/secret/place")


def test_a_word_that_would_become_two_is_refused() -> None:
    with pytest.raises(ValueError, match="null byte"), guard_command(["--", "a\0b"]):
        pytest.fail("it was accepted")


def test_a_descriptor_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--arguments-fd=99999"):
        parse(["--arguments-fd=99999"])
