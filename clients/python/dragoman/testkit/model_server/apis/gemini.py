"""The Gemini API: ``POST /v1beta/models/MODEL:generateContent``, streamed or not, and Google's error bodies."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dragoman.testkit.model_server.api import ErrorAnswer, cut
from dragoman.testkit.model_server.api import sse as raw_sse
from dragoman.testkit.model_server.conversation import Conversation, Part, read_parts
from dragoman.testkit.model_server.http1 import HttpRequest
from dragoman.testkit.model_server.script import Block, Cause, Failure, Reply, Thinking, Tool, Usage
from msgspec import Struct

_PATH: Final = re.compile(r"/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)$")
_WORKSPACE: Final = re.compile(r"\*\*Workspace Directories:\*\*\n\s*- (\S[^\n]*)")
_STOPS: Final = {"refusal": "SAFETY", "max_tokens": "MAX_TOKENS"}
_DETAIL: Final = "type.googleapis.com/google.rpc."
_QUOTA: Final = (
    "You exceeded your current quota, please check your plan and billing details.\n* Quota exceeded for metric: "
    "generativelanguage.googleapis.com/generate_content_requests, limit: 250, model: {model}"
)


class _Wording(Struct, frozen=True):
    status: int
    name: str
    message: str
    quota: str = ""
    """Which quota is exceeded, as the vendor phrases it."""


_WORDINGS: Final[Mapping[Cause, _Wording]] = {
    "unauthorized": _Wording(401, "UNAUTHENTICATED", "Request had invalid authentication credentials."),
    "forbidden": _Wording(403, "PERMISSION_DENIED", "The caller does not have permission"),
    "rate_limited": _Wording(
        429, "RESOURCE_EXHAUSTED", _QUOTA, quota="GenerateRequestsPerMinutePerProjectPerModel-FreeTier"
    ),
    "quota": _Wording(429, "RESOURCE_EXHAUSTED", _QUOTA, quota="GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
    "no_credit": _Wording(
        429,
        "RESOURCE_EXHAUSTED",
        "Your prepayment credits are depleted. Please go to AI Studio to manage your project and billing.",
    ),
    "overflow": _Wording(
        400,
        "INVALID_ARGUMENT",
        "The input token count (1213462) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "no_model": _Wording(
        404,
        "NOT_FOUND",
        "models/{model} is not found for API version v1beta, or is not supported for generateContent. Call "
        "ListModels to see the list of available models and their supported methods.",
    ),
    "malformed": _Wording(400, "INVALID_ARGUMENT", "Request contains an invalid argument."),
    "overloaded": _Wording(503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "server_error": _Wording(500, "INTERNAL", "An internal error has occurred. Please retry."),
}


class Gemini:
    """Speaks Gemini's ``generateContent``; see `dragoman.testkit.model_server.api.ModelApi`."""

    name = "gemini"

    def conversation(self, request: HttpRequest) -> Conversation | None:
        """Read ``generateContent`` and ``streamGenerateContent``; None for anything else, side requests too."""
        asked = _asked(request)
        if asked is None or asked.method == "countTokens" or asked.is_aside:
            return None
        return read_conversation(asked.body, asked.model, stream=asked.method == "streamGenerateContent")

    def aside(self, request: HttpRequest) -> object | None:
        """Answer the agent's side requests, so that they do not count as requests of the script.

        ``countTokens`` gets a quarter of the bytes; a question for JSON gets the simplest value that its schema
        allows; a request without functions, such as for a summary, gets a fixed text.
        """
        asked = _asked(request)
        if asked is None:
            return None
        if asked.method == "countTokens":
            return {"totalTokens": len(request.body) // 4}
        if not asked.is_aside:
            return None
        schema = _settings(asked.body).get("responseJsonSchema")
        content = json.dumps(simplest(schema)) if schema is not None else "A scripted summary."
        usage = _usage(Usage(input=20, output=4, cache_read=0), output=4)
        return _response([{"text": content}], asked.model, 0, usage, finish="STOP")

    def events(
        self, reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
    ) -> Iterator[bytes]:
        """Render the server-sent events of a reply; each has the tokens so far, ``ending`` becomes the last."""
        for index, block in enumerate(reply.blocks):
            for part in _parts(block, _call_id(number, index), block.chunk):
                yield sse(_response([part], conversation.model, number, _usage(reply.usage)))
        if ending is not None:
            yield sse(self.failure(ending, conversation).body)
            return
        usage = _usage(reply.usage, reply.usage.output, _thoughts(reply))
        yield sse(_response([{"text": ""}], conversation.model, number, usage, _finish(reply)))

    def whole(self, reply: Reply, conversation: Conversation, number: int) -> object:
        """Render a reply as one response object."""
        blocks = enumerate(reply.blocks)
        parts = [part for index, block in blocks for part in _parts(block, _call_id(number, index), 0)]
        usage = _usage(reply.usage, reply.usage.output, _thoughts(reply))
        return _response(parts, conversation.model, number, usage, _finish(reply))

    def failure(self, failure: Failure, conversation: Conversation) -> ErrorAnswer:
        """Render an error answer with Google's typed details."""
        wording = _WORDINGS[failure.cause]
        message = failure.message or wording.message.replace("{model}", conversation.model)
        details: list[dict[str, Any]] = []
        if wording.quota:
            violation = {"quotaId": wording.quota, "quotaDimensions": {"model": conversation.model}}
            details.append({"@type": f"{_DETAIL}QuotaFailure", "violations": [violation]})
        if failure.retry_after_s is not None:
            message += f"\nPlease retry in {failure.retry_after_s}s."
            details.append({"@type": f"{_DETAIL}RetryInfo", "retryDelay": f"{failure.retry_after_s}s"})
        error: dict[str, Any] = {"code": wording.status, "message": message, "status": wording.name}
        if details:
            error["details"] = details
        return ErrorAnswer(wording.status, {"error": error})


def sse(data: object) -> bytes:
    """Frame one server-sent event as the vendor does: separators of lines and paragraphs are escaped."""
    return raw_sse(data).replace("\u2028".encode(), b"\\u2028").replace("\u2029".encode(), b"\\u2029")


def simplest(schema: object) -> object:
    """Return the simplest value that a JSON Schema allows: required keys, the first enum value, the least number."""
    if not isinstance(schema, Mapping):
        return "scripted"
    if schema.get("enum"):
        return schema["enum"][0]
    match str(schema.get("type", "string")).lower():
        case "object":
            fields = schema.get("properties") or {}
            return {name: simplest(fields.get(name)) for name in schema.get("required") or ()}
        case "array":
            return []
        case "boolean":
            return False
        case "number" | "integer":
            return schema.get("minimum", 0)
        case _:
            return "scripted"


def read_conversation(body: Mapping[str, Any], model: str, *, stream: bool) -> Conversation:
    """Reduce a request body to what scripts use.

    Args:
        body: The parsed request.
        model: The requested model, from the path.
        stream: Whether the path asks for a stream.

    Returns:
        The conversation; odd or missing parts read as empty. Its system text ends with the working directory,
        which the agent sends among the user's texts.
    """
    parts: list[Part] = []
    for turn, content in enumerate(body.get("contents") or ()):
        if content.get("role", "user") == "user":
            parts += [_user_part(turn, part) for part in content.get("parts") or ()]
    system = [str(part.get("text", "")) for part in (body.get("systemInstruction") or {}).get("parts") or ()]
    directories = [match.group(1) for part in parts if (match := _WORKSPACE.search(part.text))]
    request = Conversation(
        tools=tuple(str(tool.get("name", "")) for tool in _functions(body)),
        model=model,
        system="\n".join([*system, *(f"Working directory: {directory}\n" for directory in directories)]),
        stream=stream,
    )
    return read_parts([part for part in parts if part.text or part.call is not None], request)


class _Asked(Struct, frozen=True):
    model: str
    method: str
    body: Mapping[str, Any]

    @property
    def is_aside(self) -> bool:
        """Whether it is none of the conversation: not streamed, and it wants JSON or offers no function."""
        one_off = "responseJsonSchema" in _settings(self.body) or not _functions(self.body)
        return self.method == "generateContent" and one_off


def _asked(request: HttpRequest) -> _Asked | None:
    match = _PATH.search(request.path)
    body = request.json()
    if request.method != "POST" or match is None or not isinstance(body, dict):
        return None
    return _Asked(match.group(1), match.group(2), body)


def _settings(body: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = body.get("generationConfig")
    return settings if isinstance(settings, Mapping) else {}


def _functions(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [function for tool in body.get("tools") or () for function in tool.get("functionDeclarations") or ()]


def _user_part(turn: int, part: Mapping[str, Any]) -> Part:
    result = part.get("functionResponse")
    if result is None:
        return Part(turn, str(part.get("text", "")))
    content = result.get("response")
    if isinstance(content, Mapping) and len(content) == 1:
        [content] = content.values()  # {"output": …} or {"error": …}
    call = str(result.get("id", "")).rpartition("__")[2]  # the agent puts the tool's name before it
    return Part(turn, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), call)


def _parts(block: Block, call_id: str, chunk: int) -> list[dict[str, Any]]:
    """Return the parts of a block, several if it is streamed; a function call always comes whole."""
    if isinstance(block, Tool):
        return [{"functionCall": {"id": call_id, "name": block.action, "args": block.inputs}}]
    mark = {"thought": True} if isinstance(block, Thinking) else {}
    return [{"text": piece, **mark} for piece in cut(block.text, chunk)]


def _response(
    parts: list[dict[str, Any]], model: str, number: int, usage: Mapping[str, int], finish: str = ""
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    content = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}
    return {**content, "responseId": f"response_{number:06d}"}


def _thoughts(reply: Reply) -> int:
    """Return how many of the output tokens are thoughts: a quarter of their characters, at most half of all."""
    thought = sum(len(block.text) for block in reply.blocks if isinstance(block, Thinking))
    return min(thought // 4, reply.usage.output // 2)


def _usage(usage: Usage, output: int | None = None, thoughts: int = 0) -> dict[str, int]:
    prompt = usage.input + usage.cache_read + usage.cache_write
    counts = {"promptTokenCount": prompt, "totalTokenCount": prompt + (output or 0)}
    if usage.cache_read:
        counts["cachedContentTokenCount"] = usage.cache_read
    if output is not None:
        counts["candidatesTokenCount"] = output - thoughts
    if thoughts:
        counts["thoughtsTokenCount"] = thoughts
    return counts


def _finish(reply: Reply) -> str:
    return _STOPS[reply.stop] if reply.stop is not None else "STOP"


def _call_id(number: int, index: int) -> str:
    return f"call_{number:06d}_{index}"
