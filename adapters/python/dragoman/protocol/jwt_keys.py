"""Where the public keys of an issuer of tokens are: in a file, at a URL, or where OpenID Connect says."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dragoman.protocol.addresses import AddressError, is_loopback
from dragoman.protocol.private import read_protected
from msgspec import Struct

_WAIT_S: Final = 3.0
_MOST_BYTES: Final = 1 << 20
_WELL_KNOWN: Final = "/.well-known/openid-configuration"


class KeySource(Struct, frozen=True):
    """Where keys are."""

    issuer: str
    place: str
    """A file or a URL; empty to ask the issuer."""
    authorities: str = ""
    """A PEM file of the authorities of the server's certificate; empty for those of the system."""

    @property
    def is_file(self) -> bool:
        """Whether they are in a file, which is looked at with each call."""
        return bool(self.place) and "://" not in self.place


def fetch_keys(source: KeySource) -> dict[str, Any]:
    """Return a JSON Web Key Set. Blocks, for seconds at most.

    Raises:
        AddressError: it cannot be had; the text says why.
    """
    if source.is_file:
        return _object(read_protected(Path(source.place)), source.place)
    place = source.place or _discovered(source)
    return _object(_get(place, source.authorities), place)


def _discovered(source: KeySource) -> str:
    url = source.issuer.rstrip("/") + _WELL_KNOWN
    content = _object(_get(url, source.authorities), url)
    place = content.get("jwks_uri")
    if content.get("issuer") != source.issuer or not isinstance(place, str):
        raise AddressError(f"{url} is another issuer's, or names no jwks_uri")
    return place


def _object(data: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise AddressError(f"{place} is no JSON") from error
    if not isinstance(found, dict):
        raise AddressError(f"{place} is no JSON object")
    return found


def _get(url: str, authorities: str) -> bytes:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise AddressError(f"{url} must be https: who can change what it answers can make tokens")
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        with opener.open(url, timeout=_WAIT_S) as answer:
            data: bytes = answer.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        error.close()  # it is the answer, too
        raise AddressError(f"{url} cannot be read: it answered {error.code}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AddressError(f"{url} cannot be read: {type(error).__name__}") from error
    return data


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could lead to where there is no TLS."""

    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        """Return no request."""
