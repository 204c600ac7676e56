"""Requests and their answers: only to addresses that were checked, and within bounds."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

from dragoman.protocol.egress import Call, EgressGate, RefusedError, send_checked, target_of
from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:  # imported when first needed
    import httpx2

CONNECT_LIMIT_S: Final = 15.0
SILENCE_LIMIT_S: Final = 600.0
"""Seconds without a byte after which a request fails, if the run has no idle limit of its own."""

_MOST_REDIRECTS: Final = 5
_REPEATED: Final = frozenset({307, 308})
_MOVED: Final = frozenset({301, 302, 303})
_HARMLESS: Final = frozenset({"accept", "content-type"})
"""Headers for any host; the others may hold secrets, which only the host of ``config.url`` gets."""


class ExchangeError(Exception):
    """The answer is missing or incomplete."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Answer(Struct, frozen=True):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    url: str = ""
    """Where it came from."""

    @property
    def media_type(self) -> str:
        """E.g. ``application/json``; empty if the answer has none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Exchange:
    """Makes requests. Use as an asynchronous context manager.

    Args:
        gate: where they may go.
        follows: whether redirects are followed, to where the gate allows.
        most_bytes: of one answer.
        limit_s: seconds until an answer has begun; of an answer that is read as a whole, until its end.
        ca_file: certificates of further authorities; empty for the usual ones only.
    """

    def __init__(
        self, gate: EgressGate, *, follows: bool = False, most_bytes: int, limit_s: float, ca_file: str = ""
    ) -> None:
        self._gate = gate
        self._follows = follows
        self._most_bytes = most_bytes
        self._limit_s = limit_s
        self._ca_file = ca_file
        self._client: Any = None

    async def __aenter__(self) -> "Exchange":  # noqa: PYI034 - not made to be subclassed
        self._client = await asyncio.to_thread(self._make_client)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    def _make_client(self) -> "httpx2.AsyncClient":
        import httpx2  # noqa: PLC0415 - slow to import

        context = ssl.create_default_context()
        if self._ca_file:
            context.load_verify_locations(cafile=self._ca_file)
        timeout = httpx2.Timeout(SILENCE_LIMIT_S, connect=CONNECT_LIMIT_S)
        # No proxies or other settings of the adapter's environment: it connects to the addresses that were checked.
        return httpx2.AsyncClient(verify=context, trust_env=False, follow_redirects=False, timeout=timeout)

    async def whole(self, call: Call) -> Answer:
        """Make a request, and return its whole answer.

        Raises:
            RefusedError: its address is not allowed.
            ExchangeError: there was no whole answer.
        """
        try:
            async with asyncio.timeout(self._limit_s), self.begun(call) as (begun, chunks):
                body = b"".join([chunk async for chunk in chunks])
                return Answer(begun.status, begun.headers, body, begun.url)
        except TimeoutError:
            raise ExchangeError(
                f"There was no whole answer within {self._limit_s:g} s.", "response_timeout"
            ) from None

    @asynccontextmanager
    async def begun(self, call: Call) -> AsyncIterator[tuple[Answer, AsyncIterator[bytes]]]:
        """Make a request, and yield its answer as it arrives: its head, and the pieces of its body.

        Raises:
            RefusedError: its address is not allowed.
            ExchangeError: there was no answer, or it was cut.
        """
        import httpx2  # noqa: PLC0415 - slow to import

        response, chunks = None, None
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                response = await self._send(call)
                limit.reschedule(None)  # from here on, the reader has the limits
            head = Answer(response.status_code, _lower(response.headers), b"", str(response.extensions["requested"]))
            chunks = self._chunks(response)
            yield head, chunks
        except httpx2.TimeoutException:
            raise ExchangeError("The service took too long to answer.", "response_timeout") from None
        except httpx2.TransportError as error:
            raise ExchangeError(f"The connection broke ({_reason(error)}).", "connection_failed") from error
        except TimeoutError:
            if response is not None:
                raise
            raise ExchangeError(f"There was no answer within {self._limit_s:g} s.", "response_timeout") from None
        finally:
            if chunks is not None:
                await chunks.aclose()
            if response is not None:
                await response.aclose()

    async def _send(self, call: Call) -> Any:
        for _ in range(_MOST_REDIRECTS + 1):
            response = await self._send_once(call)
            location = response.headers.get("location", "")
            status = response.status_code
            if not location or status not in _REPEATED | _MOVED:
                return response
            await response.aclose()
            call = self._redirected(call, location, status)
        raise ExchangeError(f"There were more than {_MOST_REDIRECTS} redirects.", "redirect_loop")

    def _redirected(self, call: Call, location: str, status: int) -> Call:
        there = urljoin(call.url, location)
        if not self._follows:
            raise RefusedError(f"it redirects to {_without_query(there)}; redirects are not followed")
        if status in _MOVED and call.method != "GET":
            raise RefusedError(f"it answers a {call.method} with a redirect of status {status}, which would lose it")
        return replace(call, url=there)  # the gate checks it when the request is made

    async def _send_once(self, call: Call) -> Any:
        target = target_of(call.url)
        is_own = target == self._gate.own
        headers = {name: value for name, value in call.headers.items() if is_own or name.lower() in _HARMLESS}
        try:
            response = await send_checked(self._client, self._gate, replace(call, headers=headers))
        except OSError as error:
            reason = error.strerror or "not known"
            raise ExchangeError(f"The host {target.host} was not found ({reason}).", "host_not_found") from error
        response.extensions["requested"] = call.url
        return response

    async def _chunks(self, response: Any) -> AsyncGenerator[bytes, None]:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ExchangeError("The answer is compressed, though that was not requested.", "answer_compressed")
        left = self._most_bytes
        async for chunk in response.aiter_raw():
            left -= len(chunk)
            if left < 0:
                message = f"The answer has more than config.maxResponseBytes ({self._most_bytes}) bytes."
                raise ExchangeError(message, "answer_too_large")
            yield chunk


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _without_query(url: str) -> str:
    return url.partition("?")[0][:300]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
