"""Certificates of authorities made by the tests, in the files that processes read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from trustme import CA as Authority  # noqa: N811 - a class

__all__ = ["VARIABLES", "Authority", "Files"]

VARIABLES = ("DRAGOMAN_TLS_CERT", "DRAGOMAN_TLS_KEY", "DRAGOMAN_TLS_CA")


class Files:
    """The files of one process: its certificate, the key, and the authorities it trusts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.paths = [folder / name for name in ("cert.pem", "key.pem", "ca.pem")]

    def fill(self, authority: Authority, *names: str, trusted: Authority | None = None) -> None:
        """Replace all of them, as a rotation does.

        Args:
            authority: whose certificate it is.
            names: what it is for; absent, the loopback.
            trusted: the authority to trust, where it is another.
        """
        issued = authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        pems = [chain, issued.private_key_pem.bytes(), (trusted or authority).cert_pem.bytes()]
        for path, pem in zip(self.paths, pems, strict=True):
            new = path.with_suffix(".new")
            new.write_bytes(pem)
            new.replace(path)

    @contextlib.contextmanager
    def used(self, monkeypatch: pytest.MonkeyPatch, *, count: int = 3, only_ca: bool = False) -> Iterator[None]:
        """Have what starts in the block use the first ``count`` of them, or the authorities alone."""
        with monkeypatch.context() as patch:
            for place, (variable, path) in enumerate(zip(VARIABLES, self.paths, strict=True)):
                if place == 2 if only_ca else place < count:
                    patch.setenv(variable, str(path))
            yield
