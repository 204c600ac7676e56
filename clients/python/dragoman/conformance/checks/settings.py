"""What a request sets, and an adapter declares that it honours, reaches the agent: a word of its own for each."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.kit import Kit, expect_failure, has_setting, run_in_time
from dragoman.conformance.streams import Stream
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_TURNS = 8317
"""A turn limit that is found again among the agent's arguments."""
_PATIENCE_S = 10.0


def _word() -> str:
    return f"conformance{secrets.token_hex(6)}"


def _request(kit: Kit, word: str) -> api.ExecuteRequest:
    """Return a request for an agent that says whether it received a word."""
    return kit.request(f"received={word.encode().hex()}", model="MOCK_TEXT")


def _has_received(kit: Kit, stream: Stream, word: str) -> bool:
    if kit.setup.agent == "script":
        expect("received: " in stream.text, f"the agent does not say what it received: {stream.text[:200]!r}")
        return "received: yes" in stream.text
    return any(word in text for text in kit.setup.model_requests())


async def _arrives(kit: Kit, request: api.ExecuteRequest, word: str, name: str) -> None:
    stream = await kit.run(request)
    expect(
        stream.result.outcome == pb.OUTCOME_SUCCEEDED, f"with {name}, the run fails: {stream.result.failure.message}"
    )
    expect(_has_received(kit, stream, word), f"{name} does not reach the agent, and nothing says so")


@check("settings.model")
async def model(kit: Kit) -> None:
    """Choose a model."""
    word = _word()
    request = _request(kit, word)
    request.model = word
    stream = kit.execute(request)
    error = await stream.ending()
    if error is not None and error.reason is Reason.INVALID_REQUEST:
        raise Skip("the adapter refuses a model that it does not know, and the kit knows none")
    if error is not None:
        raise error
    if stream.result.outcome == pb.OUTCOME_FAILED:
        raise Skip("a run with an unknown model fails, as it may")
    expect(_has_received(kit, stream, word), "the model does not reach the agent, and the run does not fail")


def _skill(word: str) -> dict[str, Any]:
    # An agent that knows skills gives its model the description alone.
    text = f"---\nname: conformance\ndescription: Remembers {word}.\n---\n\nRemember {word}.\n"
    return {"name": "conformance", "files": {"content": {"SKILL.md": text.encode()}}}


def _reaches(rule: str, name: str, fields: Callable[[str], dict[str, Any]]) -> None:
    @check(rule)
    async def examine(kit: Kit) -> None:
        word = _word()
        request = _request(kit, word)
        request.MergeFrom(api.ExecuteRequest(**fields(word)))
        await _arrives(kit, request, word, name)


_reaches("settings.system-prompt", "system_prompt", lambda word: {"system_prompt": f"Remember {word}."})
_reaches("settings.instructions", "instructions", lambda word: {"instructions": {"text": f"Remember {word}."}})
_reaches("settings.skills", "a skill", lambda word: {"skills": [_skill(word)]})


@check("settings.mcp-servers")
async def mcp_servers(kit: Kit) -> None:
    """Send an MCP server: a real agent starts it, a scripted one says whether it received its name."""
    word, started = _word(), kit.path("started")
    request = _request(kit, word)
    program = request.mcp_servers.add(name=word).stdio
    program.command, program.args[:] = "touch", [str(started)]
    if kit.setup.agent == "script":
        await _arrives(kit, request, word, "an MCP server")
        return
    await kit.run(request)
    expect(started.exists(), "the agent does not start its MCP server, and nothing says so")


@check("settings.workspace")
async def workspace(kit: Kit) -> None:
    """Have the agent create a file with a relative path."""
    name = _word()
    request = kit.request(f"touch={name}", model=f"MOCK_WRITE path={name}")
    if kit.setup.agent == "model":
        request.permissions.auto_approve = True
    await kit.run(request)
    expect((Path(request.workspace.cwd) / name).exists(), "the agent does not work in workspace.cwd")


@check("settings.max-turns")
async def max_turns(kit: Kit) -> None:
    """Set a turn limit: a number that the agent can show, or one that a scripted model exceeds."""
    if not has_setting(kit.described.config_schema_json, "maxTurns"):
        raise Skip("config_schema_json has no maxTurns")
    if kit.setup.agent == "script":
        request = _request(kit, str(_TURNS))
        request.config.update({**kit.setup.config, "maxTurns": _TURNS})
        await _arrives(kit, request, str(_TURNS), "config.maxTurns")
        return
    request = kit.request("hang", model="MOCK_LOOP")
    request.config.update({**kit.setup.config, "maxTurns": 2})
    stream = await run_in_time(kit, request, _PATIENCE_S, "config.maxTurns did not end the run")
    expect_failure(stream.result, pb.FAILURE_KIND_MAX_TURNS)
