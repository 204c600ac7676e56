"""What was detected, in the manner of the first-run output people know."""

import pytest
from dragoman.cli.display import detections
from dragoman.cli.display.style import plain
from dragoman.v1 import adapter_pb2 as pb

OK = pb.Detection(
    adapter="claude_code",
    available=True,
    version="2.1.330",
    auth=pb.AUTH_STATE_OK,
    skills_dir="/u/skills",
    confidence=pb.DETECTION_CONFIDENCE_CONFIDENT,
)
ABSENT = pb.Detection(adapter="codex", confidence=pb.DETECTION_CONFIDENCE_ABSENT)


NOW = 1_800_000_000.0
"""Seconds since the epoch."""


def lines(*found: pb.Detection) -> list[str]:
    return [plain(line) for line in detections.lines(found, NOW)]


def changed(found: pb.Detection, **fields: object) -> pb.Detection:
    copy = pb.Detection()
    copy.CopyFrom(found)
    copy.MergeFrom(pb.Detection(**fields))  # type: ignore[arg-type] # fields are the test's own
    return copy


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (OK, "✓ claude_code v2.1.330 (auth: ok, skills dir /u/skills)"),
        (
            changed(OK, auth_method="api key"),
            "✓ claude_code v2.1.330 (auth: ok, api key, skills dir /u/skills)",
        ),
        (ABSENT, "✗ codex (not installed, or not on PATH)"),
        (
            changed(ABSENT, hint="npm install -g codex"),
            "✗ codex (not installed, or not on PATH; npm install -g codex)",
        ),
        (
            changed(OK, auth=pb.AUTH_STATE_MISSING, hint="run `claude auth login`"),
            "✗ claude_code v2.1.330 (installed but not authenticated; run `claude auth login`)",
        ),
        (changed(OK, auth=pb.AUTH_STATE_EXPIRED), "✗ claude_code v2.1.330 (installed but its login has expired)"),
        (
            changed(OK, auth=pb.AUTH_STATE_UNKNOWN),
            "✓ claude_code v2.1.330 (auth: unknown, skills dir /u/skills)",
        ),
        (
            pb.Detection(adapter="a", confidence=pb.DETECTION_CONFIDENCE_CONFIG_ONLY, config_dir="/home/u/.a"),
            "✗ a (not on PATH, though /home/u/.a exists)",
        ),
        (
            pb.Detection(
                adapter="a",
                available=True,
                auth=pb.AUTH_STATE_UNKNOWN,
                confidence=pb.DETECTION_CONFIDENCE_EXECUTABLE_ONLY,
            ),
            "✓ a (auth: unknown, no config dir yet)",
        ),
        (
            pb.Detection(adapter="process", available=True, auth=pb.AUTH_STATE_NOT_NEEDED),
            "✓ process (no login needed)",
        ),
        (pb.Detection(adapter="a", message="It does not start.", hint="See."), "✗ a (It does not start. See)"),
        (
            pb.Detection(adapter="a", message="It does not start. ", hint="ask again.\n"),
            "✗ a (It does not start; ask again)",
        ),
        (pb.Detection(adapter="a\x1b[2J", available=True, version="\x1b]0;x"), "✓ a␛[2J ␛]0;x (available)"),
    ],
)
def test_one_line_per_agent(found: pb.Detection, line: str) -> None:
    assert lines(found) == [line]


def test_problems_come_below_with_what_to_do() -> None:
    found = changed(OK)
    found.problems.add(code="version_timeout", message="--version is slow", hint="see whether it asks")
    found.problems.add(code="odd", message="two of them on PATH")
    found.problems.add(code="old", message="It is old.", hint="Get a newer one.")
    assert lines(found)[1:] == [
        "    ! --version is slow; see whether it asks",
        "    ! two of them on PATH",
        "    ! It is old. Get a newer one",
    ]


def test_the_count() -> None:
    assert detections.counted([OK, ABSENT, changed(OK, auth=pb.AUTH_STATE_EXPIRED)]) == "1 of 3 agents available"
    assert detections.counted([OK]) == "1 of 1 agent available"
    assert detections.counted([]) == "no adapters"


def cached(found: pb.Detection, age_s: float) -> pb.Detection:
    old = changed(found, cached=True)
    old.detected_at.FromNanoseconds(int((NOW - age_s) * 1e9))
    return old


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [
        (-5, ""),
        (59, ""),
        (60, ", detected 1 min ago"),
        (3599, ", detected 59 min ago"),
        (3600, ", detected 1 h ago"),
        (86_000, ", detected 23 h ago"),
    ],
)
def test_an_answer_of_the_cache_has_its_age_and_how_to_look_again(age_s: float, shown: str) -> None:
    found = cached(OK, age_s)
    assert lines(found) == [f"✓ claude_code v2.1.330 (auth: ok, skills dir /u/skills{shown})"]
    hint = "; --refresh detects again" if shown else ""
    assert plain(detections.summary([ABSENT, found], NOW)) == f"1 of 2 agents available{hint}"


def test_what_has_no_age_is_shown_without_one() -> None:
    generic = pb.Detection(adapter="process", available=True, confidence=pb.DETECTION_CONFIDENCE_NOT_APPLICABLE)
    new = cached(OK, 7200)
    new.cached = False
    for found in (cached(generic, 7200), new, changed(OK, cached=True)):
        assert "ago" not in lines(found)[0]
        assert "--refresh" not in plain(detections.summary([found], NOW))


def test_generic_adapters_come_last_and_are_no_agents() -> None:
    message = "Process runs the command that config.command names."
    not_applicable = pb.DETECTION_CONFIDENCE_NOT_APPLICABLE
    generic = pb.Detection(adapter="process", available=True, confidence=not_applicable, message=message)
    assert lines(generic, OK)[1] == "✓ process (generic: Process runs the command that config.command names)"
    assert detections.counted([generic, OK]) == "1 of 1 agent available, and 1 generic adapter"
    assert detections.counted([generic, generic]) == "2 generic adapters"


def test_what_to_type_next() -> None:
    assert detections.next_command(OK) == 'dragoman run claude_code "Say hello in one sentence."'
    generic = pb.Detection(adapter="process", confidence=pb.DETECTION_CONFIDENCE_NOT_APPLICABLE)
    assert detections.next_command(generic) == "dragoman describe process"


def test_a_hint_is_shown_once() -> None:
    problem = pb.DetectionProblem(message="No credentials.", hint="Log in.")
    found = pb.Detection(adapter="a", available=True, auth=pb.AUTH_STATE_MISSING, hint="Log in.", problems=[problem])
    assert [plain(line) for line in detections.lines([found], NOW)] == [
        "✗ a (installed but not authenticated. Log in)",
        "    ! No credentials",
    ]
