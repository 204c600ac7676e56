"""The webhooks of a router: events of its runs are queued, signed and sent, again after a failure."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dragoman.protocol.egress import Call, RefusedError, send_checked
from dragoman.protocol.logs import Logger
from dragoman.router.model.ports import Clock
from dragoman.router.model.tasks import Tasks, first_of
from dragoman.router.policy.webhooks import (
    TEST,
    Webhook,
    WebhookError,
    about_event,
    about_result,
    body_of,
    event_of,
    headers_of,
    key_of,
    message_id,
    parse_webhooks,
)
from dragoman.router.runs.actor import Run
from dragoman.router.runs.state import Superseded
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import timestamp_pb2
from msgspec import Struct

if TYPE_CHECKING:
    import httpx2

_MOST_WAITING: Final = 1000
"""Events that wait for one webhook; further ones are dropped."""
_DELAYS_S: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Before each further attempt, up to half more or less of it."""
_ANSWER_S: Final = 15.0
"""How long one request may take."""
_LAST_S: Final = 3.0
"""How long a router that stops still sends what waits."""
_AGAIN: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which another attempt makes sense."""

_log = Logger("dragoman.router")


class SignedWebhook(Struct, frozen=True):
    """A webhook and its key."""

    hook: Webhook
    key: bytes


class DeliveryError(Exception):
    """A request did not arrive; the message says why, and quotes nothing of the answer."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


def read_webhooks(file: Path) -> tuple[SignedWebhook, ...]:
    """Read a file of webhooks, and their keys.

    Raises:
        WebhookError: one of the files is missing or invalid.
    """
    try:
        hooks = parse_webhooks(file.read_bytes())
    except OSError as error:
        raise WebhookError(str(error.strerror)) from error
    return tuple(SignedWebhook(hook, _key(hook, file.parent)) for hook in hooks)


def _key(hook: Webhook, folder: Path) -> bytes:
    try:
        text = (folder / hook.secret_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise WebhookError(f"{hook.name}.secret_file: {why}") from error
    return key_of(text, hook.name)


class _Message(Struct, frozen=True):
    """An event for one webhook."""

    id: str
    body: bytes


class _Outbox:
    """What waits for one webhook."""

    def __init__(self, signed: SignedWebhook) -> None:
        self.signed = signed
        self.waiting: asyncio.Queue[_Message] = asyncio.Queue(_MOST_WAITING)

    def put(self, message: _Message) -> None:
        try:
            self.waiting.put_nowait(message)
        except asyncio.QueueFull:
            _log.warning("webhook event dropped", webhook=self.signed.hook.name, why="too many wait")


class Webhooks:
    """Sends events of this router's runs to its webhooks.

    Args:
        hooks: the webhooks.
        clock: the time.
        delays_s: before each further attempt.
    """

    def __init__(
        self, hooks: Sequence[SignedWebhook], clock: Clock, *, delays_s: Sequence[float] = _DELAYS_S
    ) -> None:
        self._clock = clock
        self._tasks = Tasks()
        self._delays_s = delays_s
        self._outboxes = [_Outbox(signed) for signed in hooks]
        self._closing = asyncio.Event()

    def begin(self) -> None:
        """Send from now on."""
        for outbox in self._outboxes:
            self._tasks.start(self._work(outbox), f"webhook {outbox.signed.hook.name}")

    async def close(self) -> None:
        """Send what waits, once and for a short time; the rest is dropped."""
        self._closing.set()
        joined = asyncio.gather(*(outbox.waiting.join() for outbox in self._outboxes))
        try:
            async with asyncio.timeout(_LAST_S):
                await joined
        except TimeoutError:
            _log.warning("webhook events dropped", why="the router stops")
        await self._tasks.end()

    def heard(self, run: Run, event: event_pb2.AgentEvent) -> None:
        """Take note of an event of a run, which is published."""
        kind = event_of(event)
        if kind:
            with _apart_from_runs(run):
                self._put(kind, run.record.summary(0), about_event(event))

    def ended(self, run: Run) -> None:
        """Take note of a run that is over, unless it is another router's."""
        result = run.record.result
        if result is not None and not isinstance(run.state, Superseded):
            with _apart_from_runs(run):
                self._put("result", run.record.summary(0), about_result(result, run.record.last_sequence))

    def _put(self, event: str, run: router_pb2.RunSummary, about: dict[str, Any]) -> None:
        for outbox in self._outboxes:
            hook = outbox.signed.hook
            if hook.wants(event, run):
                body = body_of(event, run, about, _rfc3339(self._clock.time()))
                outbox.put(_Message(message_id(hook.name, event, run.run_id, about), body))

    async def _work(self, outbox: _Outbox) -> None:
        name = outbox.signed.hook.name
        client = await asyncio.to_thread(_client)
        try:
            while True:
                message = await outbox.waiting.get()
                try:
                    await self._deliver(client, outbox.signed, message)
                except Exception as error:  # noqa: BLE001 - one event must not keep the others from being sent
                    _log.error("webhook event dropped", webhook=name, id=message.id, failure=type(error).__name__)
                finally:
                    outbox.waiting.task_done()
        finally:
            await client.aclose()

    async def _deliver(self, client: "httpx2.AsyncClient", signed: SignedWebhook, message: _Message) -> None:
        name = signed.hook.name
        for number, delay_s in enumerate([*self._delays_s, None], 1):
            try:
                await _send(client, signed, message, self._clock.time())
            except DeliveryError as problem:
                is_last = delay_s is None or problem.is_final or self._closing.is_set()
                text = "webhook event dropped" if is_last else "webhook failed"
                _log.warning(text, webhook=name, id=message.id, attempt=number, why=str(problem))
                if is_last or delay_s is None:
                    return
                await first_of(self._closing.wait(), timeout_s=delay_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            else:
                _log.info("webhook sent", webhook=name, id=message.id, attempt=number)
                return


def _client() -> "httpx2.AsyncClient":
    import httpx2  # noqa: PLC0415 - slow to import

    context = ssl.create_default_context()
    return httpx2.AsyncClient(verify=context, trust_env=False, follow_redirects=False, timeout=_ANSWER_S)


async def _send(client: "httpx2.AsyncClient", signed: SignedWebhook, message: _Message, now: float) -> None:
    """Make one attempt.

    Raises:
        DeliveryError: it failed.
    """
    import httpx2  # noqa: PLC0415 - slow to import

    headers = headers_of(message.id, int(now), message.body, signed.key)
    call = Call(signed.hook.url, "POST", headers, message.body)
    try:
        async with asyncio.timeout(_ANSWER_S):
            response = await send_checked(client, signed.hook.gate, call)
            status = response.status_code
            await response.aclose()
    except RefusedError as error:
        raise DeliveryError(str(error), is_final=True) from error
    except (TimeoutError, httpx2.TimeoutException):
        raise DeliveryError(f"no answer within {_ANSWER_S:g} s") from None
    except OSError as error:
        raise DeliveryError(f"the host was not found ({error.strerror})") from error
    except httpx2.HTTPError as error:
        raise DeliveryError(f"the connection broke ({type(error).__name__})") from error
    if not 200 <= status < 300:
        is_final = status < 500 and status not in _AGAIN
        hint = "; redirects are not followed" if 300 <= status < 400 else ""
        raise DeliveryError(f"it answered {status}{hint}", is_final=is_final)


async def send_tests(hooks: Sequence[SignedWebhook], now: float) -> list[tuple[str, str]]:
    """Send an event of type ``test`` to webhooks; return their names, and why it did not arrive, empty if it did."""
    client = await asyncio.to_thread(_client)
    found = []
    for signed in hooks:
        run = router_pb2.RunSummary(run_id="test")
        body = body_of(TEST, run, {"events": list(signed.hook.events)}, _rfc3339(now))
        problem = ""
        try:
            await _send(client, signed, _Message(message_id(signed.hook.name, TEST, "test", {"at": now}), body), now)
        except DeliveryError as error:
            problem = str(error)
        found.append((signed.hook.name, problem))
    await client.aclose()
    return found


@contextlib.contextmanager
def _apart_from_runs(run: Run) -> Iterator[None]:
    """Log what fails here: no webhook ends a run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as the docstring says
        _log.error("webhook event dropped", run_id=run.run_id, failure=type(error).__name__)


def _rfc3339(seconds: float) -> str:
    stamp = timestamp_pb2.Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp.ToJsonString()
