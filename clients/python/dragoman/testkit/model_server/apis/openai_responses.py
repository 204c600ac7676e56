"""The OpenAI Responses API: ``POST …/responses``, streamed or not, as the API documents it and Codex uses it.

Codex offers its tools in two ways: directly in ``tools``, or ("code mode") in an ``additional_tools`` item of the
input, where all but a few are functions of the JavaScript that its one tool ``exec`` runs.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.testkit.model_server.api import ErrorAnswer, flat, sse, texts
from dragoman.testkit.model_server.apis.openai_chat import OpenAIChat
from dragoman.testkit.model_server.apis.openai_errors import error_answer
from dragoman.testkit.model_server.apis.openai_items import stream_events, whole_response
from dragoman.testkit.model_server.conversation import Conversation, Part, read_parts
from dragoman.testkit.model_server.http1 import HttpRequest
from dragoman.testkit.model_server.script import Failure, Reply
from msgspec import Struct, field

_CONTEXT = re.compile(r"\s*<environment_context>")  # where Codex sends the working directory
_PLAIN_NAMESPACE = "functions"  # tools in it are called without its name
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


class OpenAIResponses:
    """Speaks OpenAI Responses; see `dragoman.testkit.model_server.api.ModelApi`."""

    name = "openai-responses"

    def conversation(self, request: HttpRequest) -> Conversation | None:
        """Read ``POST …/responses``; None for anything else."""
        if request.method != "POST" or not request.path.endswith("/responses"):
            return None
        body = request.json()
        if not isinstance(body, dict):
            return None
        return read_conversation(body, request.headers.get("thread-id", ""))

    def aside(self, request: HttpRequest) -> object | None:
        """Answer ``GET …/models`` as the Chat Completions API does."""
        return OpenAIChat().aside(request)

    def events(
        self, reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
    ) -> Iterator[bytes]:
        """Render the server-sent events of a reply."""
        for event in stream_events(reply, conversation, number, ending):
            yield sse(event, event["type"])

    def whole(self, reply: Reply, conversation: Conversation, number: int) -> object:
        """Render a reply as one ``response`` object."""
        return whole_response(reply, conversation, number)

    def failure(self, failure: Failure, conversation: Conversation) -> ErrorAnswer:
        """Render an error answer."""
        return error_answer(failure, conversation)


class _Reading(Struct):
    """What the items of an input add up to, in their order."""

    system: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    turn: int = 0
    model_spoke: bool = False

    def add(self, item: Mapping[str, Any]) -> None:
        """Note the next item of the input."""
        kind, role = item.get("type", "message"), item.get("role")
        if kind == "additional_tools":
            self.tools += item.get("tools") or ()
        elif kind in _OUTPUTS:
            self._part(flat(item.get("output")), str(item.get("call_id", "")))
        elif kind == "message" and role in {"developer", "system"}:
            self.system.append(flat(item.get("content")))
        elif kind == "message" and role == "user":
            for text in texts(item.get("content")):
                self._part(text, None)
        else:
            self.model_spoke = True

    def _part(self, text: str, call: str | None) -> None:
        if self.model_spoke:
            self.turn, self.model_spoke = self.turn + 1, False
        self.parts.append(Part(self.turn, text, call))
        if call is None and _CONTEXT.match(text):
            self.system.append(text)


def read_conversation(body: Mapping[str, Any], session: str = "") -> Conversation:
    """Reduce a Responses request body to what scripts use.

    Args:
        body: The parsed request.
        session: What distinguishes agent sessions, if a header does; else the body's ``prompt_cache_key``.

    Returns:
        The conversation; odd or missing parts read as empty.
    """
    user_input = body.get("input")
    items = [{"role": "user", "content": user_input}] if isinstance(user_input, str) else user_input or ()
    seen = _Reading(system=[str(body.get("instructions") or "")], tools=list(body.get("tools") or ()))
    for item in items:
        seen.add(item)
    tools = list(_flattened(seen.tools))
    request = Conversation(
        tools=tuple(str(tool.get("name") or tool.get("type", "")) for tool in tools),
        text_tools=tuple(str(tool.get("name", "")) for tool in tools if tool.get("type") == "custom"),
        model=str(body.get("model", "")),
        system="\n".join(seen.system),
        stream=bool(body.get("stream")),
        session=session or str(body.get("prompt_cache_key") or ""),
    )
    return read_parts(seen.parts, request)


def _flattened(tools: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield tools with those inside namespaces, whose names are put before theirs: ``collaboration.spawn_agent``."""
    for tool in tools:
        if tool.get("type") != "namespace":
            yield tool
            continue
        prefix = "" if tool.get("name") == _PLAIN_NAMESPACE else f"{tool.get('name')}."
        for inner in tool.get("tools") or ():
            yield {**inner, "name": f"{prefix}{inner.get('name', '')}"}
