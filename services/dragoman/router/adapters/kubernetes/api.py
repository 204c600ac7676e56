"""The API server of a cluster, as a pod reaches it: the list and the watch of EndpointSlices.

An HTTP client suffices: these are two GET requests, and a Kubernetes library's own watch would not do: lightkube's
asks for no bookmarks, and splits lines where JSON does not.
"""

import contextlib
import os
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dragoman.protocol.logs import Logger
from dragoman.router.adapters.kubernetes.slices import (
    EndpointSlice,
    Event,
    EventError,
    Failed,
    Listed,
    read_event,
    read_page,
    read_status,
)
from msgspec import Struct

if TYPE_CHECKING:
    import httpx2

_PAGE: Final = 500
_TIMEOUT_S: Final = 15.0
_SHORTEST_WATCH_S: Final = 120
_LONGEST_WATCH_S: Final = 180
_SILENCE_S: Final = _LONGEST_WATCH_S + 20.0
"""A watch that says nothing for so long has lost its connection: the API server would have ended it."""
_LONGEST_LINE: Final = 8 * 1024 * 1024

_log = Logger("dragoman.router")


class ApiError(Exception):
    """The API server cannot be reached, or refuses; the text says why, and what to do.

    Args:
        message: the text.
        is_expired: whether a new list is needed, as what is missing is no longer to be had.
    """

    def __init__(self, message: str, *, is_expired: bool = False) -> None:
        super().__init__(message)
        self.is_expired = is_expired


class ApiAccess(Struct, frozen=True):
    """Where the API server is, and what is asked of it."""

    selector: str
    """The labels of the slices, which are those of their Services."""
    account: Path
    """The directory with the service account's ``token``, ``ca.crt`` and ``namespace``."""
    url: str = ""
    """The API server's; empty for the one that the pod's environment names."""
    namespace: str = ""
    """Of the slices; empty for the pod's own."""

    def base_url(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the address of the API server.

        Raises:
            ApiError: there is none.
        """
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if self.url or not host:
            if not self.url:
                raise ApiError("KUBERNETES_SERVICE_HOST is not set; Kubernetes sets it in each pod")
            return self.url
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def own_namespace(self) -> str:
        """Return the namespace of the slices.

        Raises:
            ApiError: none was given, and the pod's is not known.
        """
        return self.namespace or _read(self.account / "namespace")


class ApiSession:
    """A connection to the API server."""

    def __init__(self, client: "httpx2.AsyncClient", access: ApiAccess, namespace: str) -> None:
        self._client = client
        self._access = access
        self.namespace = namespace
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"

    async def list(self) -> Listed:
        """Return all slices.

        Raises:
            ApiError: the API server does not answer, or refuses.
        """
        slices: list[EndpointSlice] = []
        token = ""
        while True:
            query = {"limit": str(_PAGE), **({"continue": token} if token else {})}
            async with self._get(query, _TIMEOUT_S) as response:
                data = await response.aread()
            try:
                page = read_page(data)
            except EventError as error:
                raise ApiError(f"the API server sent no list of EndpointSlices: {error}", is_expired=True) from error
            if page.unreadable:
                _log.warning("EndpointSlices not understood", number=page.unreadable, namespace=self.namespace)
            slices += page.slices
            token = page.next
            if not token:
                return Listed(tuple(slices), page.version)

    async def watch(self, version: str) -> AsyncIterator[Event]:
        """Yield what changes after a version, until the API server ends the stream.

        Raises:
            ApiError: it breaks, or the API server refuses.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            # Not all routers at the same time.
            "timeoutSeconds": str(random.randint(_SHORTEST_WATCH_S, _LONGEST_WATCH_S)),  # noqa: S311 - no secret
        }
        async with self._get(query, _SILENCE_S) as response:
            async for line in _lines(response.aiter_bytes()):
                try:
                    event = read_event(line)
                except EventError as error:
                    raise ApiError(f"the API server sent an invalid event: {error}", is_expired=True) from error
                if isinstance(event, Failed):
                    why = f"the API server ended the watch: {event.message[:200]} ({event.code})"
                    raise ApiError(why, is_expired=True)
                if event is not None:
                    yield event

    @contextlib.asynccontextmanager
    async def _get(self, query: dict[str, str], silence_s: float) -> AsyncIterator["httpx2.Response"]:
        import httpx2  # noqa: PLC0415 - slow to import

        timeout = httpx2.Timeout(_TIMEOUT_S, read=silence_s)
        params = {"labelSelector": self._access.selector, **query}
        try:
            # Read for each request: the kubelet replaces the file before the token expires.
            headers = {"Authorization": f"Bearer {_read(self._access.account / 'token')}"}
            async with self._client.stream(
                "GET", self._path, params=params, headers=headers, timeout=timeout
            ) as response:
                if response.status_code != httpx2.codes.OK:
                    raise _refusal(response.status_code, read_status(await response.aread()), self.namespace)
                yield response
        except httpx2.HTTPError as error:
            raise ApiError(f"the connection to the API server failed: {_kind(error)}") from error


@contextlib.asynccontextmanager
async def open_session(access: ApiAccess) -> AsyncIterator[ApiSession]:
    """Open a session with the authorities that the account's directory has now.

    Raises:
        ApiError: the pod has no account, or there is no API server.
    """
    import ssl  # noqa: PLC0415 - as the client

    import httpx2  # noqa: PLC0415 - slow to import

    url, namespace = access.base_url(), access.own_namespace()
    verify: Any = True
    if url.startswith("https:"):
        path = access.account / "ca.crt"
        try:
            verify = ssl.create_default_context(cafile=str(path))
        except OSError as error:  # as is ssl.SSLError
            raise ApiError(f"{path} cannot be used: {error.strerror or type(error).__name__}") from error
    async with httpx2.AsyncClient(base_url=url, verify=verify, trust_env=False) as client:
        yield ApiSession(client, access, namespace)


def _refusal(code: int, message: str, namespace: str) -> ApiError:
    hint = ""
    if code == 403:
        hint = f"; the service account needs get, list and watch of endpointslices in namespace {namespace!r}"
    elif code == 401:
        hint = "; the token of the service account is not valid"
    text = f": {message[:200]}" if message else ""
    return ApiError(f"the API server answered {code}{text}{hint}", is_expired=code == 410)


def _kind(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ApiError(f"{path} cannot be read: {why}; does the pod mount its service account's token?") from error


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    r"""Yield the lines that end with ``\n``. What comes after the last is a line that was cut."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        *lines, last = rest.split(b"\n")
        for line in lines:
            if line.strip():
                yield bytes(line)
        rest = bytearray(last)
        if len(rest) > _LONGEST_LINE:
            raise ApiError(f"the API server sent an event of over {_LONGEST_LINE} bytes", is_expired=True)
