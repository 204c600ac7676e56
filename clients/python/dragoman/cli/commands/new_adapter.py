"""``dragoman adapter new``: writes an adapter project from the templates of a language."""

import keyword
import re
import shutil
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_USAGE
from dragoman.protocol.identity import is_adapter_type

TEMPLATES = Path(__file__).parents[1] / "templates"
_SDKS: Final = {
    "go": ("LICENSE", "adapters/go", "clients/go"),
    "python": (),
    "rust": (
        "LICENSE",
        *(f"adapters/rust/{part}" for part in ("Cargo.toml", "build.rs", "src")),
        "proto/dragoman/v1",
    ),
    "typescript": (
        "LICENSE",
        *(f"clients/typescript/{part}" for part in ("package.json", "tsconfig.json", "src")),
        *(f"adapters/typescript/{part}" for part in ("package.json", "tsconfig.json", "src")),
    ),
}
"""What a project has a copy of, in its folder ``dragoman``: no package registry has these SDKs. That of Python is
installed with this program. pyproject.toml puts the same into the wheel."""
_NOT_COPIED: Final = ("*_test.go", "examples", "cmd", "scripted", "buf.gen.yaml", "*.json")
"""What nothing uses in a folder that is copied."""
_RESERVED: Final = {"build", "dist", "dragoman", "node_modules", "src", "target", "test", "tests"}
"""Folders of a project, and of what its language's tools build in it."""

_EXAMPLE = "\b\nExample:\n  dragoman adapter new my_agent --language go"


def languages() -> list[str]:
    """Return the languages that have a template."""
    return sorted(path.name for path in TEMPLATES.iterdir() if path.is_dir() and path.name != "__pycache__")


@click.command("new", epilog=_EXAMPLE)
@click.argument("name")
@click.option("--language", required=True, type=click.Choice(languages()), help="Language of the project.")
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The new directory; it must not exist. Default: NAME, in the current directory.",
)
def adapter_new_command(name: str, language: str, directory: Path | None) -> None:
    """Write a small adapter project for the agent NAME, with its test.

    It runs, passes its test and conforms as it is written; its README.md says what to type. In another language than
    Python it has a copy of the SDK, so that it needs no checkout of Dragoman; in Python it needs Dragoman installed.
    """
    if problem := _name_problem(name):
        raise CommandError(ErrorReport(problem, exit_code=EXIT_USAGE))
    target = directory or Path(name)
    try:
        count = write_project(name, language, target)
    except FileExistsError as error:
        hint = "name a new one with --directory"
        raise CommandError(ErrorReport(f"{target} exists already", hint=hint, exit_code=EXIT_USAGE)) from error
    copy = " and a copy of the SDK in dragoman/" if _SDKS[language] else ""
    click.echo(f"{target}: {count} files of an adapter in {language}{copy}; its README.md says how to go on")


def write_project(name: str, language: str, target: Path) -> int:
    """Write the project; return the number of its files, without those of an SDK that it has a copy of.

    Raises:
        FileExistsError: the directory exists.
    """
    replaced = {
        "Newagent": "".join(part.capitalize() for part in name.split("_")),
        "newagent": name,
    }

    def filled(text: str) -> str:
        return re.sub("|".join(replaced), lambda found: replaced[found[0]], text)

    template = TEMPLATES / language
    files = sorted(path for path in template.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    target.mkdir(parents=True)
    for path in files:
        written = target / filled(str(path.relative_to(template)))
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        shutil.copymode(path, written)
    for part in _SDKS[language]:
        source, copied = sdk_sources() / part, target / "dragoman" / part
        if source.is_dir():
            shutil.copytree(source, copied, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        else:
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copied)
    return len(files)


def sdk_sources() -> Path:
    """Return the folder with the sources of the SDKs: of this wheel, or of the checkout that this file is in."""
    packed = Path(__file__).parents[1] / "sdks"
    return packed if packed.exists() else Path(__file__).parents[5]


def _name_problem(name: str) -> str:
    if not is_adapter_type(name):
        return f"the name {name!r} does not match [a-z][a-z0-9_]*, at most 64 characters"
    if keyword.iskeyword(name):
        return f"the name {name!r} is a keyword of Python; choose another one"
    if name in _RESERVED:
        return f"the name {name!r} is that of a folder of the project; choose another one"
    groups = ("dragoman.adapters", "dragoman.adapter_aliases")
    if any(point.name == name for group in groups for point in entry_points(group=group)):
        return f"an installed adapter is called {name!r} already; choose another name"
    return ""
