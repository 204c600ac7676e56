"""The HTTP adapter: an agent that is a service."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from dragoman.adapters.http.exchange import Exchange, ExchangeError
from dragoman.adapters.http.failures import failure_of_exchange, refused
from dragoman.adapters.http.listener import Listeners
from dragoman.adapters.http.mapping import PathError, Paths
from dragoman.adapters.http.modes import Conversation
from dragoman.adapters.http.plan import (
    call_of,
    gate_of,
    headers_of,
    secrets_of,
    values_of,
    warnings,
    wrong_config,
)
from dragoman.protocol.egress import Call, RefusedError
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import FailureError, FailureInfo, InProcessAdapter, Job, Plan, Settings, Turn
from dragoman.sdk.fields import Fields, JsonValue, as_bool, as_int, as_number, as_object, as_string
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

CANCEL_LIMIT_S: Final = 5.0
"""Seconds that a request to stop may take."""

DEFAULT_RESPONSE_S: Final = 600.0
DEFAULT_RESPONSE_BYTES: Final = 16 * 1024 * 1024
_HEALTH_LIMIT_S: Final = 5.0


class HttpAdapter(InProcessAdapter):
    """Runs an agent over HTTP."""

    spec = agent_spec(__package__)

    def __init__(self) -> None:
        self._listeners = Listeners()

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield the fields that the request to the service could not have."""
        yield from wrong_config(request, settings.config, settings.model)
        try:
            Paths.compiled(as_object(settings.config.get("paths"), {}))
        except PathError as error:
            yield FieldViolation("config.paths", str(error))

    def plan(self, job: Job) -> Plan:
        """Return a plan that names the address of the request and its secrets."""
        url = as_string(job.config.get("url"), "").partition("?")[0]
        notes = (f"{as_string(job.config.get('method'), 'POST')} {url}",)
        secrets = secrets_of(job)
        return Plan(argv=(), env=secrets, notes=notes, notices=tuple(warnings(url, secrets)))

    async def work(self, turn: Turn) -> None:
        """Send the request, and read the answer as it arrives.

        Raises:
            FailureError: the run failed.
        """
        try:
            async with self._callback(turn) as (url, reports), _exchange(turn.job.config) as exchange:
                await _converse(turn, exchange, url, reports)
        except RefusedError as error:
            raise FailureError(refused(str(error))) from error
        except ExchangeError as error:
            raise FailureError(failure_of_exchange(error)) from error

    @asynccontextmanager
    async def _callback(self, turn: Turn) -> AsyncIterator[tuple[str, "asyncio.Queue[Fields]"]]:
        """Listen for the service in mode callback; yield the URL for it, and its reports."""
        reports: asyncio.Queue[Fields] = asyncio.Queue()
        config = as_object(turn.job.config.get("callback"), {})
        if turn.job.config.get("mode") != "callback":
            yield "", reports
            return
        host, port = as_string(config.get("host"), "127.0.0.1"), as_int(config.get("port"), 0)

        def take(fields: Fields) -> bool:
            reports.put_nowait(fields)
            return True

        try:
            listening = self._listeners.token(host, port, take)
            async with listening as (token, bound):
                base = as_string(config.get("url"), "").rstrip("/").replace("{port}", str(bound))
                yield f"{base}/{token}", reports
        except OSError as error:
            message = f"The adapter cannot listen for callbacks at {host}:{port} ({error.strerror})."
            info = FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="listener_failed", errors=(message,))
            raise FailureError(info) from error

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Detect the service if the config has its ``healthUrl``."""
        del env
        found = adapter_pb2.Detection(
            available=True,
            auth=adapter_pb2.AUTH_STATE_NOT_NEEDED,
            confidence=adapter_pb2.DETECTION_CONFIDENCE_NOT_APPLICABLE,
            capabilities=self.describe().capabilities,
            message="HTTP uses the service that config.url names.",
        )
        if config.get("healthUrl"):
            problem = await _health(config)
            if problem:
                found.problems.add(code="service_unhealthy", message=problem, hint="See config.healthUrl.")
        return found


def _exchange(config: Mapping[str, JsonValue]) -> Exchange:
    return Exchange(
        gate_of(config),
        follows=as_bool(config.get("allowRedirects"), False),
        most_bytes=as_int(config.get("maxResponseBytes"), 0) or DEFAULT_RESPONSE_BYTES,
        limit_s=as_number(config.get("responseTimeoutSec"), 0.0) or DEFAULT_RESPONSE_S,
        ca_file=as_string(config.get("caFile"), ""),
    )


async def _converse(turn: Turn, exchange: Exchange, callback_url: str, reports: "asyncio.Queue[Fields]") -> None:
    job = turn.job
    values = values_of(job, callback_url)
    headers = headers_of(job, turn.env, values)
    conversation = Conversation(turn, exchange, Paths.compiled(as_object(job.config.get("paths"), {})), headers)
    call = call_of(job, headers, values)
    try:
        match as_string(job.config.get("mode"), "sync"):
            case "stream":
                await conversation.stream(call)
            case "poll":
                await conversation.poll(call)
            case "callback":
                await conversation.wait(call, reports)
            case _:
                await conversation.at_once(call)
    except asyncio.CancelledError:
        url = conversation.cancel_url or as_string(job.config.get("cancelUrl"), "")
        if url:
            await _request_stop(turn, exchange, Call(url, "POST", headers))
        raise


async def _request_stop(turn: Turn, exchange: Exchange, call: Call) -> None:
    problem = ""
    try:
        async with asyncio.timeout(CANCEL_LIMIT_S):
            answer = await exchange.whole(call)
        problem = f"it answered with status {answer.status}" if answer.status >= 300 else ""
    except (RefusedError, ExchangeError, TimeoutError) as error:
        problem = str(error) or "it did not answer in time"
    if problem:
        message = f"The request to stop failed: {problem}."
        turn.run.notice(pb.SEVERITY_WARNING, "cancel_not_sent", message)


async def _health(config: Mapping[str, JsonValue]) -> str:
    """Return what is wrong with the service, or an empty text."""
    try:
        async with asyncio.timeout(_HEALTH_LIMIT_S), _exchange(config) as exchange:
            answer = await exchange.whole(Call(as_string(config.get("healthUrl"), "")))
    except (RefusedError, ExchangeError) as error:
        return str(error)
    except TimeoutError:
        return f"The service did not answer within {_HEALTH_LIMIT_S:g} s."
    return f"The service answered with status {answer.status}." if answer.status >= 300 else ""
