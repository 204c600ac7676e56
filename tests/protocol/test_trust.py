"""The trust file: what it may hold, and whom it names."""

import re
from pathlib import Path

import pytest
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.trust import TrustFile, parse_trust
from hypothesis import given
from hypothesis import strategies as st

_KINDS = re.compile(r"^\[+(identities|issuers|run_tokens)", re.MULTILINE)
CI = '[[identities]]\nuri = "spiffe://example.org/ci"\nscopes = ["run"]\n'
FILES = """
[run_tokens]
key = "run.key"
previous = ["old.key", "/keys/older.key"]

[[issuers]]
name = "a"
issuer = "https://a.test"
audience = "dragoman"
jwks = "cluster.json"
jwks_ca = "ca.crt"

[[issuers]]
name = "b"
issuer = "https://b.test"
audience = "dragoman"
jwks = "/keys/jwks.json"
jwks_ca = "/keys/ca.crt"

[[issuers]]
name = "c"
issuer = "https://c.test"
audience = "dragoman"
jwks = "https://c.test/keys"

[[issuers]]
name = "d"
issuer = "https://d.test"
audience = "dragoman"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("identities = 3", "Expected `array`"),
        ("[[identities]]\nscopes = ['run']", "missing required field `uri`"),
        (CI + "adapter = ['codex']", "unknown field `adapter`"),
        (CI.replace("run", "write"), "no such scope: write"),
        (CI.replace('"run"', ""), "none was named"),
        (CI.replace("spiffe://example.org/ci", "ci"), "must be a URI"),
        (CI.replace("/ci", "/*/ci"), "must be a URI"),
        (CI.replace("/ci", "/c*"), "must be a URI"),
        (CI.replace("example.org/ci", "*"), "must be a URI"),
        ("[[identities", "at the end of"),
        ("\udcff", "decode"),
    ],
)
def test_an_invalid_file_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(AddressError, match=message) as caught:
        parse_trust(Path("/etc/trust.toml"), text.encode("utf-8", "surrogateescape"))
    assert str(caught.value).startswith("/etc/trust.toml: ")


def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "trust.toml"
    with pytest.raises(AddressError, match="cannot be read"):
        TrustFile(file)
    file.write_text(CI)
    assert TrustFile(file).current().identities
    file.chmod(0o666)
    with pytest.raises(AddressError, match="can be written by other users"):
        TrustFile(file)


def test_a_changed_file_counts_at_once_and_an_invalid_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "trust.toml"

    def write(text: str) -> None:
        changed = tmp_path / "changed.toml"
        changed.write_text(text)
        changed.replace(file)

    def trusted() -> list[str]:
        return [identity.uri for identity in trust.current().identities]

    write(CI)
    trust = TrustFile(file)
    assert trusted() == ["spiffe://example.org/ci"]
    write(CI.replace("/ci", "/other"))
    assert trusted() == ["spiffe://example.org/other"]
    write("[[identities")
    assert trusted() == trusted() == ["spiffe://example.org/other"]
    write("")
    assert trusted() == []


@given(st.text("ab/*", max_size=6), st.text("ab/*", max_size=8))
def test_a_pattern_names_what_is_below_its_path_and_nothing_else(end: str, path: str) -> None:
    pattern, uri = f"spiffe://t/x{end}", f"spiffe://t/{path}"
    try:
        trust = parse_trust(Path("f"), CI.replace("spiffe://example.org/ci", pattern).encode())
    except AddressError:
        return
    fits = uri == pattern if not pattern.endswith("/*") else uri.startswith(pattern[:-1]) and uri != pattern[:-1]
    assert (trust.caller_by_uris([uri]) is not None) == fits
    assert trust.caller_by_uris([uri, uri]) is None
    assert trust.caller_by_uris([]) is None


def test_the_files_that_it_names_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through links, as a kubelet makes them: what it puts in their place is another directory."""
    monkeypatch.chdir("/")
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "trust.toml").write_text(FILES)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "trust.toml").symlink_to("..data/trust.toml")
    trust = TrustFile(tmp_path / "trust.toml").current()
    assert trust.run_tokens is not None
    assert trust.run_tokens.key == str(tmp_path / "run.key")
    assert trust.run_tokens.previous == (str(tmp_path / "old.key"), "/keys/older.key")
    places = [(one.jwks, one.jwks_ca) for one in trust.issuers]
    beside = (str(tmp_path / "cluster.json"), str(tmp_path / "ca.crt"))
    assert places == [beside, ("/keys/jwks.json", "/keys/ca.crt"), ("https://c.test/keys", ""), ("", "")]


def test_what_the_documentation_shows_is_valid() -> None:
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    shown = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if _KINDS.search(block)]
    assert len(shown) == 3
    trusts = [parse_trust(Path("docs"), block.encode()) for block in shown]
    assert [bool(one.identities) for one in trusts] == [True, False, False]
    assert [bool(one.issuers) for one in trusts] == [False, True, False]
    assert [one.run_tokens is not None for one in trusts] == [False, False, True]


def test_the_cluster_that_the_chart_s_documentation_names_as_an_issuer_has_its_keys_beside_the_file() -> None:
    text = (Path(__file__).parents[2] / "deploy/README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (issuer,) = parse_trust(Path("/etc/dragoman/trust/trust.toml"), shown.encode()).issuers
    assert issuer.jwks == "/etc/dragoman/trust/cluster.json"
    assert "kubectl get --raw /openid/v1/jwks > cluster.json\n" in text
    assert "--from-file=cluster.json\n" in text
