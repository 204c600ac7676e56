"""Skills go where agents look for them, or into a prompt, and never lead out of where they belong."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from dragoman.sdk._skills.source import (
    FrontMatter,
    Placement,
    SkillError,
    SkillSource,
    is_skill_name,
    lay_out,
    parse_front_matter,
    plan_skill_directory,
    read_skill,
    skill_prompt,
)
from hypothesis import given
from hypothesis import strategies as st

LAYOUT = ".claude/skills/{name}"
DOCUMENT = b"---\nname: review\ndescription: How to review\n---\n# Review\nSee references/style.md and deep.md.\n"


def inline(name: str = "review", files: Mapping[str, bytes] | None = None) -> SkillSource:
    return SkillSource(name, None, {"SKILL.md": DOCUMENT, **(files or {})})


@pytest.fixture
def skill_dir(tmp_path: Path) -> Path:
    root = tmp_path / "review"
    (root / "references").mkdir(parents=True)
    (root / "scripts").mkdir()
    (root / "SKILL.md").write_bytes(DOCUMENT)
    (root / "references" / "style.md").write_text("Be kind.")
    (root / "scripts" / "run.sh").write_text("#!/bin/sh\n")
    return root


@pytest.mark.parametrize("name", ["a", "A9", "code-review", "x.y_z", "a" * 128, "a..b"])
def test_names(name: str) -> None:
    assert is_skill_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-x", "a/b", "a\\b", "a b", "é", "a\n", "a\0", "a" * 129])
def test_no_names(name: str) -> None:
    assert not is_skill_name(name)
    with pytest.raises(SkillError, match=r"at most 128 .* the first a letter or a digit"):
        plan_skill_directory([inline(name)], LAYOUT)


def test_a_skill_in_a_directory_is_linked_and_one_of_files_is_written_out(skill_dir: Path) -> None:
    files = inline("other", {"references/a.md": b"x"})
    assert plan_skill_directory([read_skill(skill_dir), files], LAYOUT) == [
        Placement(".claude/skills/review", symlink_to=skill_dir),
        Placement(".claude/skills/other/SKILL.md", content=DOCUMENT),
        Placement(".claude/skills/other/references/a.md", content=b"x"),
    ]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "a\0b", ".."])
def test_paths_that_lead_elsewhere_are_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(SkillError):
        plan_skill_directory([SkillSource("x", None, {"SKILL.md": b"", path: b""})], LAYOUT)
    with pytest.raises(SkillError):
        plan_skill_directory([inline()], f"{path}" if path else "")
    with pytest.raises(SkillError):
        lay_out(tmp_path, [Placement(path, content=b"")])


def test_two_skills_of_one_name_are_refused_even_if_only_case_differs() -> None:
    with pytest.raises(SkillError, match="two skills"):
        plan_skill_directory([inline("review"), inline("Review")], LAYOUT)


def test_a_skill_without_its_document_is_refused() -> None:
    empty = SkillSource("x", None, {"README.md": b""})
    for use in (lambda: plan_skill_directory([empty], LAYOUT), lambda: skill_prompt(empty)):
        with pytest.raises(SkillError, match=r"no SKILL\.md"):
            use()


def test_laid_out_skills_can_be_read_there_and_only_by_us(skill_dir: Path, tmp_path: Path) -> None:
    root = tmp_path / "out"
    root.mkdir()
    lay_out(root, plan_skill_directory([read_skill(skill_dir), inline("other", {"run": b"#!/bin/sh\n"})], LAYOUT))
    assert (root / ".claude/skills/review/references/style.md").read_text() == "Be kind."
    assert (root / ".claude/skills/other/SKILL.md").read_bytes() == DOCUMENT
    assert (root / ".claude/skills/review").is_symlink()
    for path, mode in (("other/SKILL.md", 0o600), ("other/run", 0o700), ("other", 0o700)):
        assert (root / ".claude/skills" / path).stat().st_mode & 0o777 == mode


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    with pytest.raises(SkillError, match="through a link"):
        lay_out(root, [Placement("a", symlink_to=outside), Placement("a/b", content=b"x")])
    (root / "file").symlink_to(outside / "new")
    with pytest.raises(FileExistsError):
        lay_out(root, [Placement("file", content=b"x")])
    assert list(outside.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    for placement in (Placement("a", content=b"x"), Placement("a", symlink_to=tmp_path)):
        with pytest.raises(FileExistsError):
            lay_out(tmp_path, [placement])
    assert (tmp_path / "a").read_text() == "mine"


def test_reading_takes_the_documents_and_leaves_the_rest_where_it_is(skill_dir: Path) -> None:
    assert read_skill(skill_dir) == SkillSource(
        "review", skill_dir, {"SKILL.md": DOCUMENT, "references/style.md": b"Be kind."}
    )
    assert read_skill(skill_dir, name="other").name == "other"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "..", "/", "references/../../outside"])
@pytest.mark.parametrize("where", ["link", "references/link.md", "scripts/deep"])
def test_a_link_that_leads_out_of_a_skill_is_refused(skill_dir: Path, target: str, where: str) -> None:
    if where != "link" and not target.startswith("/"):
        target = f"../{target}"
    (skill_dir / where).symlink_to(target)
    with pytest.raises(SkillError, match="leads out of it"):
        read_skill(skill_dir)


def test_links_within_a_skill_are_fine(skill_dir: Path) -> None:
    (skill_dir / "references" / "again.md").symlink_to("style.md")
    (skill_dir / "all").symlink_to("references")
    assert read_skill(skill_dir).files["references/again.md"] == b"Be kind."


def test_a_skill_may_itself_be_reached_by_a_link(skill_dir: Path) -> None:
    link = skill_dir.parent / "linked"
    link.symlink_to(skill_dir)
    (skill_dir / "references" / "again.md").symlink_to("style.md")
    assert read_skill(link).directory == link


def test_a_pipe_in_a_skill_is_not_waited_for(skill_dir: Path) -> None:
    os.mkfifo(skill_dir / "references" / "pipe.md")
    assert "references/pipe.md" not in read_skill(skill_dir).files


def test_what_is_no_skill_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SkillError, match=r"no SKILL\.md"):
        read_skill(tmp_path / "empty")
    with pytest.raises(SkillError, match="cannot be read"):
        read_skill(tmp_path / "gone")
    with pytest.raises(SkillError, match="name of a skill"):
        read_skill(tmp_path / "empty", name="../x")


def test_a_skill_too_large_is_refused(skill_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (skill_dir / "references" / "big.md").write_bytes(b"x" * (4 * 1024 * 1024))
    with pytest.raises(SkillError, match="more than"):
        read_skill(skill_dir)
    (skill_dir / "references" / "big.md").unlink()
    monkeypatch.setattr("dragoman.sdk._skills.source._MOST_ENTRIES", 3)
    with pytest.raises(SkillError, match="more than 3 files"):
        read_skill(skill_dir)


def test_a_prompt_has_the_body_and_the_references_it_names() -> None:
    prompt = skill_prompt(
        inline(
            files={
                "style.md": b"Not a reference.",
                "references/style.md": b"---\nx: y\n---\nStyle.",
                "references/sub/deep.md": b"Deep.",
                "references/unused.md": b"Unused.",
                "references/overstyle.md": b"Over.",
                "scripts/run.sh": b"#!/bin/sh",
            },
        )
    )
    assert prompt == (
        "# Skill: review\n\n# Review\nSee references/style.md and deep.md.\n\n"
        "## review: references/style.md\n\nStyle.\n\n"
        "## review: references/sub/deep.md\n\nDeep.\n"
    )


@pytest.mark.parametrize(
    ("body", "is_named"),
    [
        ("see references/a.md", True),
        ("see `./references/a.md`", True),
        ("[x](references/a.md#part)", True),
        ("see a.md.", True),
        ("see data.md", False),
        ("see -a.md", False),
        ("see references/a.mdx", False),
        ("see other/a.md", False),
        ("see a.mdx", False),
        ("see a_md", False),
    ],
)
def test_a_reference_is_named_by_path_or_by_name(body: str, is_named: bool) -> None:
    skill = SkillSource("x", None, {"SKILL.md": body.encode(), "references/a.md": b"REFERENCE"})
    assert ("REFERENCE" in skill_prompt(skill)) == is_named


def test_a_prompt_is_bounded_and_says_what_is_left_out() -> None:
    prompt = skill_prompt(SkillSource("x", None, {"SKILL.md": "é".encode() * 1000}), max_bytes=101)
    first, last = prompt.rsplit("\n[", 1)
    assert len(first.encode()) <= 101
    assert last == "... 1912 bytes of the skill x left out ...]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", FrontMatter(None, "")),
        ("# Body\n---\nx: y\n---\n", FrontMatter(None, "# Body\n---\nx: y\n---\n")),
        ("---\nname: a\ndescription: b: c\n---\nBody", FrontMatter("b: c", "Body")),
        ("\ufeff---\r\nname: a\r\n---\r\nBody", FrontMatter(None, "Body")),
        ("---\nname: \"a b\"\ndescription: 'c'\n---\n", FrontMatter("c", "")),
        ("---\ndescription: >-\n  one\n  two\n\n  three\nname: a\n---\nB", FrontMatter("one two three", "B")),
        ("---\ndescription: |\n  one\nname: a\n---\n", FrontMatter("one", "")),
        ("---\ndescription: one\n  two\n---\n", FrontMatter("one two", "")),
        ("---\nDescription: a\n# comment\n- list\ntags:\n  - x\n---\n", FrontMatter("a", "")),
        ("---\ndescription:\n---\nBody", FrontMatter(None, "Body")),
        ('---\ndescription: "a\n---\n', FrontMatter('"a', "")),
        ("---\ndescription: '\n---\n", FrontMatter("'", "")),
        ("---\n---\nBody", FrontMatter(None, "Body")),
        ("---\nname: a\nno end", FrontMatter(None, "---\nname: a\nno end")),
        ("---\nname: a\n---", FrontMatter(None, "")),
        ("----\nname: a\n----\n", FrontMatter(None, "----\nname: a\n----\n")),
    ],
)
def test_front_matter(text: str, expected: FrontMatter) -> None:
    assert parse_front_matter(text) == expected


@given(
    st.lists(st.sampled_from(["---", "\n", "name: a", "description: >", "  ", ":", "x", "é", '"', "|"])).map("".join)
)
def test_front_matter_never_raises_and_never_loses_the_body(text: str) -> None:
    assert text.endswith(parse_front_matter(text).body)


paths = st.lists(st.sampled_from(["..", ".", "", "a", "b", "a\\b", "~"]), min_size=1, max_size=4).map("/".join)


@given(paths)
def test_a_planned_path_never_leads_out(path: str) -> None:
    skill = SkillSource("x", None, {"SKILL.md": b"", path: b""})
    try:
        placements = plan_skill_directory([skill], LAYOUT)
    except SkillError:
        return
    for placement in placements:
        assert os.path.normpath(placement.relative_path).startswith(".claude/skills/x/")
