"""What can be checked of the README without running it; ``scripts/check-readme`` runs the rest."""

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from .programs import ROOT


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    loader = SourceFileLoader("check_readme", str(ROOT / "scripts/check-readme"))
    spec = spec_from_loader("check_readme", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_its_links_lead_somewhere_and_its_targets_exist(checker: ModuleType) -> None:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    assert [*checker.wrong_links(path, text), *checker.wrong_targets(path, text)] == []


def test_what_is_wrong_is_noticed(checker: ModuleType) -> None:
    path = ROOT / "README.md"
    text = "# A title\n[here](#a-title) [there](#no-title) [file](README.md) [none](none.md)\n`make run` `make fly`\n"
    assert list(checker.wrong_links(path, text)) == [
        "README.md: no heading for #no-title",
        "README.md: no file none.md",
    ]
    assert list(checker.wrong_targets(path, text)) == ["README.md: no target for make fly"]


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


def test_the_files_it_shows_are_the_files_it_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) >= 3
    for name, body in shown:
        file = (ROOT / name).read_text(encoding="utf-8")
        # The file has a docstring before what is shown.
        assert file.endswith(body), name
