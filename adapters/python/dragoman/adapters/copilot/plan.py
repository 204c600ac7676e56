"""From a job to Copilot's command line and its first request. Pure.

``copilot --headless --stdio`` serves the protocol that Copilot's own SDKs speak: JSON-RPC with lengths before the
messages. No other of its modes without a terminal does all of this: it asks for permissions, reports errors and
retries as such, counts every call of the model, and can be interrupted. With ``--output-format json`` it asks no
questions; with ``--acp`` an error is a text like any other, and a refusal ends the run.

Source: github/copilot-sdk (session options), api.schema.json of Copilot CLI 1.0.102 (methods), and runs of it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk import Job, Plan, jsonrpc
from dragoman.sdk.fields import JsonValue, as_string, as_string_list
from dragoman.sdk.run import INTERRUPT, AttachedFile
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2

BASE: Final = ("--headless", "--stdio", "--no-auto-update")
SKILL_LAYOUT: Final = agent_spec(__package__).skill_layout
_PROVIDER: Final = {
    "COPILOT_PROVIDER_TYPE": "type",
    "COPILOT_PROVIDER_BASE_URL": "baseUrl",
    "COPILOT_PROVIDER_API_KEY": "apiKey",
    "COPILOT_PROVIDER_API_KEY_COMMAND": "apiKeyCommand",
    "COPILOT_PROVIDER_BEARER_TOKEN": "bearerToken",
    "COPILOT_PROVIDER_WIRE_API": "wireApi",
    "COPILOT_PROVIDER_TRANSPORT": "transport",
    "COPILOT_PROVIDER_MODEL_ID": "modelId",
    "COPILOT_PROVIDER_WIRE_MODEL": "wireModel",
}
_PROVIDER_LIMITS: Final = {
    "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "maxPromptTokens",
    "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "maxOutputTokens",
}
PROVIDER_VARIABLES: Final = (
    *_PROVIDER,
    *_PROVIDER_LIMITS,
    *("COPILOT_PROVIDER_AZURE_API_VERSION", "COPILOT_PROVIDER_HEADERS", "COPILOT_MODEL"),
)
"""Variables with a model of the user's own. As a server Copilot does not read them; the adapter does."""


def begin() -> tuple[jsonrpc.Peer[str], bytes]:
    """Return the client's side of a new connection, and its first message."""
    peer: jsonrpc.Peer[str] = jsonrpc.Peer()
    return peer, jsonrpc.with_length(peer.request("connect", {}, "connect"))


def plan_run(job: Job) -> Plan:
    """Return how to run Copilot for a job."""
    return Plan(
        argv=(job.executable, *BASE, *job.settings.extra_args),
        stdin=begin()[1],
        keep_stdin_open=True,
        framing="content-length",
        env={"COPILOT_AUTO_UPDATE": "false"},  # a program must not change while runs use it
        notes=job.session.notes,
        cancel=INTERRUPT,
    )


def session_options(job: Job, environment: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return what a session is created or resumed with, but for its id.

    Args:
        job: the attempt.
        environment: the variables that may have a model of the user's own.
    """
    options: dict[str, JsonValue] = {
        "clientName": "dragoman",
        "workingDirectory": job.settings.cwd,
        "streaming": True,
        "includeSubAgentStreamingEvents": True,
        "requestPermission": True,
        # Without it the model is not offered the tool: no one could answer.
        "requestUserInput": job.interactive,
        # The skills of its user and of the workspace. The workspace's MCP servers and hooks stay unused: untrusted.
        "enableConfigDiscovery": True,
        "envValueMode": "direct",
        "mcpServers": {server.name: _mcp_server(server) for server in job.request.mcp_servers},
        "additionalDirectories": [
            *job.settings.additional_directories,
            *as_string_list(job.config.get("addDirs")),
        ],
        "skillDirectories": [str(path) for path in skill_roots(job)[:1]],
        "excludedTools": [*as_string_list(job.config.get("excludedTools"))],
    }
    optional: dict[str, JsonValue] = {
        "model": job.settings.model or environment.get("COPILOT_MODEL", ""),
        "reasoningEffort": as_string(job.config.get("effort"), ""),
        "agent": as_string(job.config.get("agent"), ""),
        "provider": _provider(environment),
    }
    options |= {key: value for key, value in optional.items() if value}
    if job.standing_text:
        options["systemMessage"] = {"mode": "append", "content": job.standing_text}
    return options


def attached(files: Iterable[AttachedFile]) -> dict[str, JsonValue]:
    """Return the images that go with a prompt or an input, as a member of its request; empty without any."""
    images: list[JsonValue] = [
        {"type": "blob", "data": image.base64, "mimeType": image.media_type, "displayName": image.name}
        for image in files
    ]
    return {"attachments": images} if images else {}


def skill_roots(job: Job) -> list[Path]:
    """Return the directory of the run's skills, and the directories that it links to; empty without skills."""
    if job.skills_dir is None:
        return []
    linked = [skill.directory for skill in job.skills if skill.directory is not None]
    return [job.skills_dir / SKILL_LAYOUT.removesuffix("/{name}"), *linked]


def _provider(environment: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return the model of the environment; empty if it has none."""
    if not environment.get("COPILOT_PROVIDER_BASE_URL"):
        return {}
    provider: dict[str, JsonValue] = {
        key: environment[name] for name, key in _PROVIDER.items() if environment.get(name)
    }
    for name, key in _PROVIDER_LIMITS.items():
        if environment.get(name, "").isdecimal():
            provider[key] = int(environment[name])
    if environment.get("COPILOT_PROVIDER_AZURE_API_VERSION"):
        provider["azure"] = {"apiVersion": environment["COPILOT_PROVIDER_AZURE_API_VERSION"]}
    lines = environment.get("COPILOT_PROVIDER_HEADERS", "").replace("\\n", "\n").split("\n")
    headers = {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
    if headers:
        provider["headers"] = dict(headers)
    return provider


def _mcp_server(server: adapter_pb2.McpServer) -> JsonValue:
    if server.WhichOneof("transport") == "http":
        return {"type": "http", "url": server.http.url, "headers": dict(server.http.headers), "tools": ["*"]}
    return {
        "type": "local",
        "command": server.stdio.command,
        "args": list(server.stdio.args),
        "env": dict(server.stdio.env),
        "tools": ["*"],
    }
