"""``dragoman adapter new``: writes an adapter project from the templates of a language."""

import json
import keyword
import re
import shutil
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.display.summary import EXIT_USAGE
from dragoman.cli.error_report import ErrorReport

TEMPLATES = Path(__file__).parents[1] / "templates"
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CHECKOUT_HAS = "proto/dragoman/v1/adapter.proto"
_COPIED: Final = {"go": ("adapters/go", "clients/go")}
"""Folders of a checkout that a project has a copy of, in its folder ``dragoman``, as no module proxy has them."""
_NOT_COPIED: Final = ("*_test.go", "examples", "cmd", "scripted", "buf.gen.yaml")
"""What nothing imports."""
_RESERVED: Final = {"build", "dist", "dragoman", "node_modules", "src", "target", "test", "tests"}
"""Folders of a project, and of what its language's tools build in it."""
_UNQUOTABLE = re.compile(r"[\x00-\x1f\"'`\\$]")

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
@click.option(
    "--sdk",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A checkout of Dragoman, whose SDK the project uses. Default: the one that this program was installed from.",
)
def adapter_new_command(name: str, language: str, directory: Path | None, sdk: Path | None) -> None:
    """Write a small adapter project for the agent NAME, with its test.

    It runs, passes its test and conforms as it is written; its README.md says what to type.
    """
    if problem := _name_problem(name):
        raise CommandError(ErrorReport(problem, exit_code=EXIT_USAGE))
    target = directory or Path(name)
    checkout = _checkout(sdk, language)
    try:
        count = write_project(name, language, target, checkout)
    except FileExistsError as error:
        hint = "name a new one with --directory"
        raise CommandError(ErrorReport(f"{target} exists already", hint=hint, exit_code=EXIT_USAGE)) from error
    click.echo(f"{target}: {count} files of an adapter in {language}; its README.md says how to go on")


def write_project(name: str, language: str, target: Path, checkout: Path) -> int:
    """Write the project; return the number of its files, without those of an SDK that it has a copy of.

    Raises:
        FileExistsError: the directory exists.
    """
    replaced = {
        "file:///path/of/dragoman": checkout.as_uri(),
        "/path/of/dragoman": str(checkout),
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
    for part in _COPIED.get(language, ()):
        own = target / "dragoman"
        shutil.copytree(checkout / part, own / part, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        shutil.copy(checkout / "LICENSE", own)
    return len(files)


def _name_problem(name: str) -> str:
    if not _TYPE.fullmatch(name):
        return f"the name {name!r} does not match [a-z][a-z0-9_]*, at most 64 characters"
    if keyword.iskeyword(name):
        return f"the name {name!r} is a keyword of Python; choose another one"
    if name in _RESERVED:
        return f"the name {name!r} is that of a folder of the project; choose another one"
    groups = ("dragoman.adapters", "dragoman.adapter_aliases")
    if any(point.name == name for group in groups for point in entry_points(group=group)):
        return f"an installed adapter is called {name!r} already; choose another name"
    return ""


def _checkout(sdk: Path | None, language: str) -> Path:
    """Return the checkout with the SDK of a language.

    Raises:
        CommandError: there is none, or it has no such SDK.
    """
    if sdk is None and (sdk := _installed_from()) is None:
        what = "the SDK is not found: this program was not installed from a checkout of Dragoman"
        raise CommandError(ErrorReport(what, hint="name a checkout with --sdk DIR", exit_code=EXIT_USAGE))
    checkout = sdk.resolve()
    for part in (_CHECKOUT_HAS, f"adapters/{language}"):
        if not (checkout / part).exists():
            what = f"{checkout} is no checkout of Dragoman with an SDK for {language}: it has no {part}"
            raise CommandError(ErrorReport(what, hint="name one with --sdk DIR", exit_code=EXIT_USAGE))
    if _UNQUOTABLE.search(str(checkout)):
        what = f"the path {str(checkout)!r} has characters that the project's files would have to escape"
        raise CommandError(ErrorReport(what, hint="move the checkout, or name another one", exit_code=EXIT_USAGE))
    return checkout


def _installed_from() -> Path | None:
    """Return the directory that pip installed this distribution from; None if it was none."""
    try:
        text = distribution("dragoman").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    origin = json.loads(text) if text else {}
    url = urlsplit(str(origin.get("url", "")))
    return Path(unquote(url.path)) if url.scheme == "file" and "dir_info" in origin else None
