"""What can be checked of the README and of docs/ without running it; ``scripts/check-docs`` runs the rest.

Commands of ``dragoman`` must parse, also those that need an agent; Python must pass ``mypy --strict``.
"""

import re
import shlex
import socket
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import click
import pytest
from dragoman.cli.dispatch import cli
from dragoman.v1 import adapter_pb2, router_pb2
from google.protobuf.descriptor import FileDescriptor

from .programs import ROOT, run

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPERATORS = {"|", "&", "&&", "||", ";", "<", ">", ">>", "(", ")"}


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    loader = SourceFileLoader("check_docs", str(ROOT / "scripts/check-docs"))
    spec = spec_from_loader("check_docs", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_links_lead_somewhere_and_its_targets_exist(checker: ModuleType, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [*checker.wrong_links(page, text), *checker.wrong_targets(page, text)] == []


def test_what_is_wrong_is_noticed(checker: ModuleType) -> None:
    path = ROOT / "README.md"
    text = "# A title\n[here](#a-title) [there](#no-title) [file](README.md) [none](none.md)\n`make run` `make fly`\n"
    assert list(checker.wrong_links(path, text)) == [
        "README.md: no heading for #no-title",
        "README.md: no file none.md",
    ]
    assert list(checker.wrong_targets(path, text)) == ["README.md: no target for make fly"]


def test_a_port_that_is_taken_is_not_used(
    checker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages name one port; what runs listens on a free one, and prints the one of the pages."""
    page = tmp_path / "LISTENS.md"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(checker, "PORT", address)
        program = "import socket, sys; h, _, p = sys.argv[1].partition(':'); socket.create_server((h, int(p)))"
        page.write_text(
            f'<!-- run: python -c "{program}" {address} && echo at {address} -->\n'
            f"<!-- prints -->\n```\nat {address}\n```\n",
            encoding="utf-8",
        )
        assert checker.main([str(page)]) == 0


SHOWN = """
<!-- run -->
```sh
export GREETING=hello
echo "$GREETING, world"; echo more
```
<!-- prints -->
```
hello, …
…
more
```
```sh
exit 1  # not marked, not run
```
<!-- run -->
```sh
echo "$GREETING again"
```
<!-- prints -->
```
hello for the first time
```
"""


def test_blocks_run_in_one_shell_and_must_print_what_is_shown(
    checker: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = tmp_path / "SHOWN.md"
    shown.write_text(SHOWN, encoding="utf-8")
    assert checker.main([str(shown)]) == 1
    printed = capsys.readouterr()
    assert "2 blocks run, 1 problems" in printed.out
    assert "not printed, or not in this order: hello for the first time" in printed.err
    shown.write_text(SHOWN.replace("for the first time", "again"), encoding="utf-8")
    assert checker.main([str(shown)]) == 0
    shown.write_text(SHOWN.replace('echo "$GREETING again"', "false"), encoding="utf-8")
    assert checker.main([str(shown)]) == 1


@pytest.mark.parametrize("line", ["until false; do sleep 1; done", "x && while true; do :; done  # for ever"])
def test_a_wait_without_a_bound_is_not_run(
    checker: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    page = tmp_path / "WAITS.md"
    page.write_text(f"<!-- run -->\n```sh\n{line}\n```\n", encoding="utf-8")
    assert checker.main([str(page)]) == 1
    assert "a loop without a bound" in capsys.readouterr().err
    page.write_text("<!-- run: timeout 9 bash -c 'until true; do sleep 1; done' -->\n", encoding="utf-8")
    assert checker.main([str(page)]) == 0
    assert "1 blocks run" in capsys.readouterr().out


def test_what_is_run_out_of_sight_must_work_too(checker: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "HIDDEN.md"
    page.write_text("<!-- run: false -->\n", encoding="utf-8")
    assert checker.main([str(page)]) == 1


def test_the_reference_shows_no_sentinel_as_a_default() -> None:
    """mkdocs-click prints the attribute as it is."""
    hooks = module_from_spec(spec_from_loader("hooks", SourceFileLoader("hooks", str(ROOT / "docs/hooks.py"))))  # type: ignore[arg-type]
    SourceFileLoader("hooks", str(ROOT / "docs/hooks.py")).exec_module(hooks)
    options = list(hooks.options_of(cli, click.Context(cli)))  # and arguments, which other tests need as they are
    before = [option.default for option in options]
    try:
        hooks.on_startup()
        assert len(options) > 100
        assert [option.name for option in options if "UNSET" in str(option.default)] == []
    finally:
        for option, default in zip(options, before, strict=True):
            option.default = default


def test_the_readme_stays_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_the_files_that_pages_show_are_the_files_that_tests_run() -> None:
    shown = [shown for page in PAGES for shown in FILE.findall(page.read_text(encoding="utf-8"))]
    assert len(shown) > 1
    for name, body in shown:
        # An example may have a docstring before what is shown.
        assert (ROOT / name).read_text(encoding="utf-8").endswith(body), name


def test_a_page_includes_no_file_by_name() -> None:
    """Such a line is resolved on the site alone; in a checkout the reader would see nothing."""
    assert [page.name for page in PAGES if "--8<--" in page.read_text(encoding="utf-8")] == []


def shell_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what a reader would type, and whether it is whole: in the text a command may stand without arguments."""
    for _, language, body in BLOCK.findall(text):
        joined = re.sub(r"\\\n\s*", " ", body)
        if language == "console":
            yield from ((line.removeprefix("$ "), True) for line in joined.splitlines() if line.startswith("$ "))
        elif language == "sh":
            yield from ((line, True) for line in joined.splitlines())
    yield from ((line, False) for line in re.findall(r"`(dragoman [^`\n]+)`", BLOCK.sub("", text)))


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line, as lists of words."""
    lexer = shlex.shlex(re.sub(r"\b[0-9]>", ">", line), posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in OPERATORS:
            yield words
            words = []
        elif words or not re.match(r"\w+=", word):
            words.append(word)


def parse(words: list[str]) -> None:
    """Parse a command of ``dragoman`` without running it.

    Raises:
        click.UsageError: there is no such command, option or value.
    """
    group: click.Command = cli
    context = None
    while isinstance(group, click.Group) and words and not words[0].startswith("-"):
        context = group.make_context("dragoman", words, parent=context, ignore_unknown_options=True)
        _, command, words = group.resolve_command(context, words)
        assert command is not None
        group = command
    group.make_context("dragoman", words, parent=context)


def test_commands_are_split_and_wrong_ones_reported() -> None:
    line = """A=1 dragoman run pi "a | b" 2>/dev/null < notes.txt | jq . && dragoman runs  # what ran"""
    assert [words for words in simple_commands(line) if words] == [
        ["dragoman", "run", "pi", "a | b"],
        ["/dev/null"],
        ["notes.txt"],
        ["jq", "."],
        ["dragoman", "runs"],
    ]
    parse(["sessions", "delete", "docs", "--adapter", "pi"])
    parse(["sessions", "--task", "docs"])
    for wrong in (
        ["fly"],
        ["run", "pi", "x", "--fly"],
        ["sessions", "fly"],
        ["sessions", "--fly"],
        ["run", "pi", "x", "--timeout", "soon"],
    ):
        with pytest.raises(click.UsageError):
            parse(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_it_shows_parse(page: Path) -> None:
    for line, is_whole in shell_lines(page.read_text(encoding="utf-8")):
        for command in simple_commands(line):
            words = command[1:] if command[:1] == ["uvx"] else command
            if words[:1] != ["dragoman"] or "…" in words:
                continue
            try:
                parse(words[1:])
            except click.exceptions.Exit:
                pass  # --help, --version
            except click.UsageError as error:
                if error.format_message().endswith("' does not exist."):
                    continue  # a file that the page itself has its reader make
                if is_whole or not isinstance(error, click.MissingParameter):
                    pytest.fail(f"{line}: {error.format_message()}")


@pytest.mark.parametrize("file", [adapter_pb2.DESCRIPTOR, router_pb2.DESCRIPTOR], ids=lambda file: file.name)
def test_the_recipes_make_every_call_with_both_programs(checker: ModuleType, file: FileDescriptor) -> None:
    """``scripts/check-docs`` runs them."""
    commands = "\n".join(body for body, _ in checker.blocks((ROOT / "docs/guides/recipes.md").read_text()))
    service = next(iter(file.services_by_name.values()))
    for method in service.methods:
        name = f"{service.name}/{method.name}"
        assert re.search(rf"^call {name} |^timeout .*grpcurl .*{name} ", commands, re.MULTILINE), name
        assert re.search(rf"^bufcall {name} |^timeout .*buf curl .*\\\n.*{name} ", commands, re.MULTILINE), name


@pytest.mark.timeout(180)
def test_the_python_it_shows_has_types(tmp_path: Path) -> None:
    """And so do the examples, which pages show whole."""
    written = []
    for page in PAGES:
        text = FILE.sub("", page.read_text(encoding="utf-8"))
        for number, (indent, language, body) in enumerate(BLOCK.findall(text)):
            if language == "python":
                file = tmp_path / f"{page.stem.replace('-', '_').lower()}_{number}.py"
                file.write_text(re.sub(f"^{indent}", "", body, flags=re.MULTILINE), encoding="utf-8")
                written.append(str(file))
    assert written
    # The agent of the guide is a program without a suffix, so mypy does not find it by its folder.
    examples = ("adapters/examples", "adapters/examples/scribe/scribe", "clients/examples")
    done = run(sys.executable, "-m", "mypy", "--strict", *examples, *written, timeout_s=170)
    assert done.returncode == 0, done.stdout
