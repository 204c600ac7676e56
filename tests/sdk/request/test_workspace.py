"""Where an agent can work, and why not elsewhere."""

import os
from pathlib import Path

import pytest
from dragoman.sdk._request.workspace import check_cwd


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "with space é").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "directory")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return tmp_path


@pytest.mark.parametrize("name", ["directory", "directory/", "directory/../directory", "with space é", "link", "."])
def test_directories_will_do(places: Path, name: str) -> None:
    assert check_cwd(f"{places}/{name}") is None


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("gone", "cwd_absent"),
        ("gone/deeper", "cwd_absent"),
        ("dangling", "cwd_absent"),
        ("file", "cwd_no_directory"),
        ("file/below", "cwd_no_directory"),
        ("loop", "cwd_invalid"),
        ("x" * 300, "cwd_invalid"),
        ("zero\0byte", "cwd_invalid"),
    ],
)
def test_other_absolute_paths_will_not(places: Path, name: str, code: str) -> None:
    problem = check_cwd(f"{places}/{name}")
    assert problem is not None
    assert problem.code == code
    assert not problem.message.endswith(".")
    assert problem.hint.endswith(".")


@pytest.mark.parametrize("path", [None, ""])
def test_there_is_no_default(path: str | None) -> None:
    problem = check_cwd(path)
    assert problem is not None
    assert (problem.code, bool(problem.hint)) == ("cwd_missing", True)


@pytest.mark.parametrize("path", [".", "work", "./work", "~/work", "../x"])
def test_relative_paths_are_refused_even_where_they_exist(
    places: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(places)
    problem = check_cwd(path)
    assert problem is not None
    assert problem.code == "cwd_relative"
    assert ("~" in problem.hint) == path.startswith("~")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter any directory")
@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
def test_directories_that_may_not_be_used(places: Path, mode: int) -> None:
    closed = places / "directory"
    (closed / "below").mkdir()
    closed.chmod(mode)
    try:
        problem = check_cwd(str(closed))
        below = check_cwd(str(closed / "below"))
    finally:
        closed.chmod(0o700)
    assert problem is not None
    assert problem.code == "cwd_forbidden"
    assert (below is not None) == (mode & 0o100 == 0)


def test_access_is_asked_for_also_where_root_runs_the_tests(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)
    problem = check_cwd(str(places))
    assert problem is not None
    assert problem.code == "cwd_forbidden"


def test_a_path_that_cannot_be_printed_is_quoted() -> None:
    problem = check_cwd("/no\nsuch\x1bplace")
    assert problem is not None
    assert "\n" not in problem.message
    assert "\x1b" not in problem.message


def test_the_codes_are_stable() -> None:
    codes = ["cwd_missing", "cwd_invalid", "cwd_relative", "cwd_absent", "cwd_no_directory", "cwd_forbidden"]
    words = ["missing", "invalid", "relative", "absent", "no_directory", "forbidden"]
    assert codes == [f"cwd_{word}" for word in words]


def test_a_part_of_a_path_that_may_not_be_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    problem = check_cwd("/closed/inner")
    assert problem is not None
    assert (problem.code, problem.message) == ("cwd_forbidden", "A part of '/closed/inner' may not be entered")
    assert problem.hint == "Give the adapter's user access to it."


@pytest.mark.parametrize(
    ("path", "code", "message", "hint"),
    [
        ("", "cwd_missing", "A working directory is required", "Give the absolute path of an existing directory."),
        ("/a\0", "cwd_invalid", "'/a\\x00' contains a zero byte", "No path does; correct it."),
        ("~/a", "cwd_relative", "'~/a' is not an absolute path", "Nothing expands ~ here; give the path from / on."),
        ("a", "cwd_relative", "'a' is not an absolute path", "Give the path from / on."),
        (
            "%/gone",
            "cwd_absent",
            "'%/gone' does not exist on the adapter's machine",
            "Create it, or correct the path.",
        ),
        ("%/file", "cwd_no_directory", "'%/file' is no directory", "Give the directory that holds it."),
        ("%/file/x", "cwd_no_directory", "A part of '%/file/x' is no directory", "Correct the path."),
    ],
)
def test_what_is_wrong_and_how_to_fix_it(places: Path, path: str, code: str, message: str, hint: str) -> None:
    problem = check_cwd(path.replace("%", str(places)))
    assert problem is not None
    assert (problem.code, problem.message, problem.hint) == (code, message.replace("%", str(places)), hint)


def test_a_directory_that_may_not_be_entered(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.R_OK | os.X_OK)
    problem = check_cwd(f"{places}/directory")
    assert problem is not None
    assert (problem.code, problem.hint) == ("cwd_forbidden", "Give the adapter's user access to it.")
