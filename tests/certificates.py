"""Certificates of authorities made by the tests, in the files that processes read."""

import contextlib
import ipaddress
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from trustme import CA as Authority  # noqa: N811 - a class

__all__ = ["VARIABLES", "Authority", "Files", "issue"]

VARIABLES = ("DRAGOMAN_TLS_CERT", "DRAGOMAN_TLS_KEY", "DRAGOMAN_TLS_CA")


def issue(authority: Authority, *names: str) -> tuple[bytes, bytes]:
    """Return a certificate and its key.

    Args:
        authority: whose it is.
        names: hosts, addresses and URIs; the library that has the authority knows no URIs.
    """
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issuer.not_valid_before_utc)
        .not_valid_after(issuer.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([_name(text) for text in names]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM), secret


def _name(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


class Files:
    """The files of one process: its certificate, the key, and the authorities it trusts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.paths = [folder / name for name in ("cert.pem", "key.pem", "ca.pem")]

    def fill(self, authority: Authority, *names: str, trusted: Sequence[Authority] | None = None) -> None:
        """Replace all of them, as a rotation does.

        Args:
            authority: whose certificate it is.
            names: what it is for, hosts and URIs; absent, the loopback.
            trusted: the authorities to trust, where they are others.
        """
        chain, key = issue(authority, *(names or ("localhost", "127.0.0.1")))
        trust = b"".join(one.cert_pem.bytes() for one in ([authority] if trusted is None else trusted))
        pems = [chain, key, trust]
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
