"""Code, comments and messages use the field's terms: banned words do not come back.

``docs/glossary.md`` defines the terms. To ban a word, add it to ``BANNED`` (everywhere) or ``BANNED_NAMES``
(identifiers alone) with what to write instead, and reword what this test finds.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EXEMPT = {
    "tests/tooling/test_vocabulary.py": "it lists the words",
}
"""Directories and files that are not checked, and why."""

TOPS = ["adapters", "clients", "docs", "services", "tests"]

BANNED = {
    "adrift": "lost",
    "anybody": "a caller, a user, another process",
    "everybody": "each client, all callers",
    "mend": "fix, repair",
    "mended": "fixed, repaired",
    "nobody": "no client, no one; better: a subject that acts",
    "somebody": "a client, a user, another process",
    "tell": "report, return, emit, show",
    "telling": "reporting",
    "tells": "reports, shows",
    "told": "reported, emitted, shown",
    "vouches": "trusts",
    "whoever": "the client, the user, the process that",
    "wish": "request, option",
    "wishes": "requests, options",
}
"""Words for identifiers, docstrings, comments and string literals, with what to write instead."""

BANNED_NAMES = {
    "bench": "services",
    "given": "the name of what was given",
    "made": "the name of what was made",
    "said": "message, output",
    "wanted": "the name of what is requested",
}
"""Words that say nothing as the name of a thing; sentences may have them."""

PHRASES = {
    "gone on with": "resumed, continued",
    "all the same": "nevertheless",
    "for want of": "without",
    "goes on with": "resumes, continues",
    "last word": "final message, reported end",
    "the seeds": "the system's name: Paperclip, Open Design",
}

_WORD = re.compile(r"[A-Za-z]+(?:'s)?")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def modules() -> list[Path]:
    """Return the project's own programs: modules that are not generated, and scripts without a suffix."""
    paths = [path for top in TOPS for path in (ROOT / top).rglob("*.py")] + list((ROOT / "scripts").iterdir())
    exempt = [ROOT / name for name in EXEMPT]
    assert all(path.exists() for path in exempt)
    return sorted(
        path
        for path in paths
        if "_pb2" not in path.name
        and not any(path.is_relative_to(other) for other in exempt)
        and path.is_file()
        and (path.suffix == ".py" or "python" in path.read_text(encoding="utf-8").partition("\n")[0])
    )


def words_of(text: str) -> set[str]:
    return {word.lower().removesuffix("'s") for word in _WORD.findall(text)}


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a module defines: of functions, classes, arguments and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments and string literals, docstrings among them."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def problems(source: str) -> Iterator[str]:
    for line, name in names_in(ast.parse(source)):
        for word in _HUMP.sub("_", name).lower().split("_"):
            if better := BANNED.get(word) or BANNED_NAMES.get(word):
                yield f"{line}: {name}: write {better}"
    yield from problems_of(texts_in(source))


def problems_of(texts: Iterator[tuple[int, str]]) -> Iterator[str]:
    for line, text in texts:
        for word in words_of(text) & BANNED.keys():
            yield f"{line}: {word!r}: write {BANNED[word]}"
        flat = " ".join(text.lower().split())
        for phrase, better in PHRASES.items():
            if phrase in flat:
                yield f"{line}: {phrase!r}: write {better}"


def pages() -> list[Path]:
    """Return the pages that users read."""
    documents = ROOT.glob("adapters/python/dragoman/adapters/*/configuration.md")
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *documents])


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_banned_word_is_in_a_page(page: Path) -> None:
    prose = re.sub(r"`[^`\n]+`", "", page.read_text(encoding="utf-8"))
    assert list(problems_of(enumerate(prose.split("\n\n"), 1))) == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_banned_word_is_in_a_program(path: Path) -> None:
    assert list(problems(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "def tell(): ...",
        "toldEvents = 1",
        "def f(given): ...",
        "self.was_told = 1",
        '"""What nobody\'s run needs."""',
        "x = 1  # whoever asks",
        "f'it was told {x}'",
        "'''it is\n   gone on with'''",
    ],
)
def test_each_kind_of_text_is_looked_at(source: str) -> None:
    assert len(list(problems(source))) == 1


@pytest.mark.parametrize("source", ["untold = retell", "# a given name", "x = 'mendable'"])
def test_parts_of_words_and_sentences_are_not(source: str) -> None:
    assert list(problems(source)) == []
