"""TLS on TCP, from files that environment variables name and that a rotation of certificates replaces."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from dragoman.protocol.addresses import TLS_CA, TLS_CERT, AddressError
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import file_stamp
from msgspec import Struct

TLS_KEY: Final = "DRAGOMAN_TLS_KEY"
"""The variable with the path of the certificate's key."""

_log = Logger("dragoman.tls")


def server_credentials() -> grpc.ServerCredentials | None:
    """Return the credentials of a server's TCP ports; ``None`` without a certificate.

    Each new connection gets the certificate that is in the files by then; while they hold none that can be used, the
    last one. With authorities, a client has to show a certificate of theirs.

    Raises:
        AddressError: the files cannot be used.
    """
    files = TlsFiles.named()
    if not files.certificate:
        return None
    # types-grpcio does not know that gRPC takes None for what has not changed.
    fetch: Any = _reloader(files)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.read()), fetch, require_client_authentication=bool(files.authorities)
    )


def client_files() -> "TlsFiles | None":
    """Return the files of a client's TCP channels; ``None`` without authorities.

    Raises:
        AddressError: a certificate without a key, or the reverse.
    """
    files = TlsFiles.named()
    return files if files.authorities else None


class _Pem(Struct, frozen=True):
    """What the files hold; empty where there is none."""

    certificate: bytes
    key: bytes
    authorities: bytes


class TlsFiles(Struct, frozen=True):
    """Paths, in the order of ``_Pem``; empty for none."""

    certificate: str
    key: str
    authorities: str

    @classmethod
    def named(cls) -> "TlsFiles":
        """Return what the environment names.

        Raises:
            AddressError: a certificate without a key, or the reverse.
        """
        files = cls(*(os.environ.get(variable, "") for variable in (TLS_CERT, TLS_KEY, TLS_CA)))
        if bool(files.certificate) != bool(files.key):
            raise AddressError(f"{TLS_CERT} and {TLS_KEY} belong together: set both or neither")
        return files

    def stamp(self) -> list[tuple[int, int, int] | None]:
        """Return what differs once a file was replaced or written."""
        return [file_stamp(Path(path)) for path in self._paths() if path]

    def read(self) -> _Pem:
        """Return what the files hold.

        Raises:
            AddressError: a file cannot be read or used; the text quotes nothing of it.
        """
        import ssl  # noqa: PLC0415 - most processes have no certificate

        before = self.stamp()
        try:
            pem = _Pem(*(Path(path).read_bytes() if path else b"" for path in self._paths()))
            # gRPC does not say what is wrong with a certificate.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            if self.certificate:
                # Without a password OpenSSL would ask for one at the terminal.
                context.load_cert_chain(self.certificate, self.key, password="")
            if pem.authorities:
                context.load_verify_locations(cadata=pem.authorities.decode("ascii", "replace"))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            names = ", ".join(path for path in self._paths() if path)
            raise AddressError(
                f"TLS: {names}: {why}; each is a PEM file, and the key is the certificate's"
            ) from error
        if self.stamp() != before:
            # What was checked may not be what was read.
            raise AddressError(f"TLS: {self.certificate or self.authorities} is being replaced; try again")
        if self.authorities and not pem.authorities.strip():
            # gRPC would take nothing for "trust every public authority".
            raise AddressError(
                f"TLS: {self.authorities} is empty; {TLS_CA} names a PEM file with at least one certificate"
            )
        return pem

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel, from the files as they are now.

        Raises:
            AddressError: the files cannot be used.
        """
        pem = self.read()
        return grpc.ssl_channel_credentials(pem.authorities, pem.key or None, pem.certificate or None)

    def _paths(self) -> list[str]:
        return [self.certificate, self.key, self.authorities]


def _configuration(pem: _Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.authorities or None)


def _reloader(files: TlsFiles) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """Return what gRPC calls before each handshake: a configuration if it is new, else ``None``."""
    last = files.stamp()

    def reload() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        try:
            # Taken before the files are read: what is written meanwhile is read at the next handshake.
            stamp = files.stamp()
            if stamp == last:
                return None
            configuration = _configuration(files.read())
        except AddressError as error:
            _log.warning("certificate not reloaded; the last one stays", error=str(error))
            return None
        last = stamp
        _log.info("certificate reloaded", certificate=files.certificate)
        return configuration

    return reload
