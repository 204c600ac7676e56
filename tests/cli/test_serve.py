"""What ``dragoman serve`` and ``dragoman adapter serve`` say of what is wrong."""

import sys
import zlib
from pathlib import Path

import pytest
from dragoman.cli.main import main


def test_without_the_extra_uvloop_serve_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert main(["serve", "--uvloop"]) == 2
    assert "pip install 'dragoman[uvloop]'" in capsys.readouterr().err


TOML = 'type = "acme"\nlabel = "Acme"\nversion = "1"\n'
SCHEMA = '{"type": "object"}'


@pytest.mark.parametrize(
    ("toml", "schema", "message"),
    [
        (TOML + "[capabilities]\nfeatures = ['tool_starts']\n", SCHEMA, "'tool_starts' is no feature"),
        (TOML + "[capabilities]\nresume_style = 'odd'\n", SCHEMA, "'odd' is no resume style"),
        (TOML + "colour = 'red'\n", SCHEMA, "colour is not known"),
        (TOML + "colour = red\n", SCHEMA, "adapter.toml: Invalid value"),
        (TOML, "{", "config.schema.json: Expecting property name"),
        (TOML, '{"properties": {"x": {"$ref": "dragoman:common#/$defs/modell"}}}', "no such common property; known"),
        (
            TOML,
            '{"properties": {"x": {"type": "strng"}}}',
            "config_schema: not a JSON Schema: properties.x.type: ",
        ),
        (
            TOML,
            '{"properties": {"x": {"pattern": "("}}}',
            "JSON Schema: properties.x.pattern: ",
        ),
        (TOML, '{"properties": {"x": 1}}', "config_schema: not a JSON Schema: properties.x: 1 is not of type"),
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
        "from dragoman.sdk.spec import agent_spec\n\n"
        "class Acme:\n    def describe(self):\n        return agent_spec(__name__)\n",
        encoding="utf-8",
    )
    (folder / "adapter.toml").write_text(toml, encoding="utf-8")
    (folder / "config.schema.json").write_text(schema, encoding="utf-8")
    (folder / "configuration.md").write_text("# Acme\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["adapter", "serve", f"{package}:Acme", "--listen", f"unix:{tmp_path}/a.sock"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: adapter '{package}:Acme': ")
    assert message in error
    assert error.count("\n") == 1
