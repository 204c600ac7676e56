"""Where ``dragoman serve`` listens, and what ``dragoman adapter serve`` says of an adapter that is wrong."""

import socket
import zlib
from pathlib import Path

import pytest
from dragoman.cli.commands.serve import _with_own_socket
from dragoman.cli.main import main
from dragoman.protocol.private import default_address

TCP = "127.0.0.1:7777"
TOML = 'type = "acme"\nlabel = "Acme"\nversion = "1"\n'
SCHEMA = '{"type": "object"}'


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))


def test_a_router_on_tcp_is_found_at_the_users_socket_too() -> None:
    assert _with_own_socket((TCP,)) == (TCP, default_address())


@pytest.mark.parametrize("addresses", [(), ("unix:/run/other.sock",), (TCP, "unix:/run/other.sock")])
def test_a_socket_that_is_named_is_the_only_one(addresses: tuple[str, ...]) -> None:
    assert _with_own_socket(addresses) == addresses


def test_a_second_router_leaves_the_users_socket_to_the_first() -> None:
    path = Path(default_address().removeprefix("unix:"))
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(str(path))
        first.listen()
        assert _with_own_socket((TCP,)) == (TCP,)


def test_a_socket_that_cannot_be_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "r" / "dragoman").touch()
    assert _with_own_socket((TCP,)) == (TCP,)


@pytest.mark.parametrize(
    ("toml", "schema", "message"),
    [
        (TOML + "[capabilities]\nfeatures = ['tool_starts']\n", SCHEMA, "'tool_starts' is no feature"),
        (TOML + "[capabilities]\nresume_style = 'odd'\n", SCHEMA, "'odd' is no resume style"),
        (TOML + "colour = 'red'\n", SCHEMA, "colour is not known"),
        (TOML + "colour = red\n", SCHEMA, "adapter.toml: Invalid value"),
        (TOML, "{", "config.schema.json: Expecting property name"),
        (TOML, '{"properties": {"x": {"$ref": "dragoman:common#/$defs/modell"}}}', "no such common property; known"),
    ],
)
def test_a_file_of_an_adapter_that_is_wrong_is_named_in_one_line(
    *,
    toml: str,
    schema: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = f"acme_{zlib.crc32((toml + schema).encode())}"  # imported once per process
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from dragoman.sdk.spec import agent_spec\nspec = agent_spec(__name__)\n", encoding="utf-8"
    )
    (folder / "adapter.toml").write_text(toml, encoding="utf-8")
    (folder / "config.schema.json").write_text(schema, encoding="utf-8")
    (folder / "configuration.md").write_text("# Acme\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["adapter", "serve", f"{package}:spec", "--listen", f"unix:{tmp_path}/a.sock"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: adapter '{package}:spec': ")
    assert message in error
    assert error.count("\n") == 1
