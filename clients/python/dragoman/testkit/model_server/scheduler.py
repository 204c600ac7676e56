"""Picks the answer to each request, records the requests, and owns the gates."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dragoman.testkit.model_server.conversation import Conversation
from dragoman.testkit.model_server.http1 import HttpRequest
from dragoman.testkit.model_server.scenarios import DEFAULT, SCENARIOS
from dragoman.testkit.model_server.script import Answer, Scenario, say
from dragoman.testkit.profiles.agent_profile import NativeTool
from msgspec import Struct, field

_KEPT_HEADERS = ("user-agent", "x-api-key", "x-goog-api-key", "authorization", "x-claude-code-session-id")
_KEPT_PREFIXES = ("anthropic-", "x-stainless-retry")


class RecordedRequest(Struct):
    """One request the server saw, in order of arrival.

    Attributes:
        method: HTTP method.
        path: Path without the query.
        headers: User agent, credentials and API headers, by lower-case name.
        body: Parsed JSON body; None if there was none.
        scenario: Name of the script that answered; empty for other requests.
        step: Step of the script, from 0.
        attempt: Which request for this step it was, from 0.
        conversation: The request as scripts see it; None for other requests.
        status: HTTP status answered; 0 until then.
        events: Stream events sent so far.
        outcome: ``open``, ``complete``, ``cut`` (by the script) or ``abandoned`` (by the client).
        number: Position among all requests, from 1; IDs in its answer contain it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: object
    scenario: str = ""
    step: int = 0
    attempt: int = 0
    conversation: Conversation | None = None
    status: int = 0
    events: int = 0
    outcome: str = "open"
    number: int = 0


def record_of(request: HttpRequest) -> RecordedRequest:
    """Return the record of a request that has just arrived."""
    headers = {
        name: value
        for name, value in request.headers.items()
        if name in _KEPT_HEADERS or name.startswith(_KEPT_PREFIXES)
    }
    return RecordedRequest(request.method, request.path, headers, request.json())


class _Gate(Struct):
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0


class Scheduler:
    """The state of one scripted model server, apart from its sockets.

    Attributes:
        requests: All requests so far.
        tools: The agent's own tools for the actions of scripts; None if the agent is not known.
    """

    def __init__(self, scenarios: Iterable[Scenario] = (), tools: Mapping[str, NativeTool] | None = None) -> None:
        self.tools = tools
        self.requests: list[RecordedRequest] = []
        self._scenarios = {script.name: script for script in (DEFAULT, *SCENARIOS, *scenarios)}
        self._attempts: Counter[str] = Counter()
        self._gates: dict[str, _Gate] = {}
        self._changed = asyncio.Condition()

    @property
    def model_requests(self) -> list[RecordedRequest]:
        """The requests that a script answered."""
        return [request for request in self.requests if request.scenario]

    def choose(self, conversation: Conversation, record: RecordedRequest) -> Answer:
        """Pick the answer to a model request and note the choice in its record."""
        word = conversation.word
        script = self._scenarios.get(word or DEFAULT.name)
        if script is None:
            known = ", ".join(sorted(self._scenarios))
            script = Scenario(word, "unknown", (say(f"No scenario {word}; known: {known}"),))
        step = min(conversation.rounds, len(script.steps) - 1)
        record.conversation, record.scenario, record.step = conversation, script.name, step
        record.attempt = self._attempt(conversation, step)
        attempts = script.steps[step].attempts
        return attempts[min(record.attempt, len(attempts) - 1)]

    def _attempt(self, conversation: Conversation, step: int) -> int:
        """Count the requests for one step of one turn of one session, from 0."""
        identity = (conversation.session, conversation.prompt_number, conversation.prompt, step)
        key = hashlib.sha256(repr(identity).encode(errors="replace")).hexdigest()
        self._attempts[key] += 1
        return self._attempts[key] - 1

    async def changed(self) -> None:
        """Wake everything that waits for a change."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition that only changes along with `changed`.

        Raises:
            TimeoutError: It did not come true within ``timeout_s``.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(reached)

    def waiting_at(self, gate: str) -> int:
        """Return how many answers are paused at a gate."""
        return self._gate(gate).waiting

    def release(self, gate: str) -> None:
        """Open a gate for good."""
        self._gate(gate).opened.set()

    def _gate(self, name: str) -> _Gate:
        return self._gates.setdefault(name, _Gate())

    async def hold(self, gate: str, left: asyncio.Future[Any]) -> None:
        """Wait at a gate until it opens.

        Raises:
            ConnectionResetError: The client left first.
        """
        state = self._gate(gate)
        opened: asyncio.Future[Any] = asyncio.create_task(state.opened.wait())
        state.waiting += 1
        try:
            await self.changed()
            await asyncio.wait({opened, left}, return_when=asyncio.FIRST_COMPLETED)
            if not state.opened.is_set():
                raise ConnectionResetError("the client left while its answer was paused")
        finally:
            state.waiting -= 1
            opened.cancel()
