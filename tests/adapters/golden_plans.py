"""What each adapter makes of requests, as text: command line, variables, files and first messages, or a refusal.

Every key of an adapter's settings is tried once, and the fields that most agents have an own way for.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from dragoman.adapters.acp import adapter as acp
from dragoman.adapters.claude_code import adapter as claude_code
from dragoman.adapters.codex import adapter as codex
from dragoman.adapters.copilot import adapter as copilot
from dragoman.adapters.cursor import adapter as cursor
from dragoman.adapters.gemini_cli import adapter as gemini_cli
from dragoman.adapters.http import adapter as http
from dragoman.adapters.model_api import adapter as model_api
from dragoman.adapters.openclaw import adapter as openclaw
from dragoman.adapters.opencode import adapter as opencode
from dragoman.adapters.pi import adapter as pi
from dragoman.adapters.process import adapter as process
from dragoman.adapters.qwen import adapter as qwen
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import AgentAdapter, CommandLineAdapter, Line, Parser, SessionPlan, Write
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.golden_streams import compact, decoded
from tests.adapters.jobs import OLD_ID, job_of, request_of

TOP = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden_plans"
ADAPTERS: dict[str, AgentAdapter] = {
    found.spec.type: found
    for found in (
        *(acp(), claude_code(), codex(), copilot(), cursor(), gemini_cli(), http(), model_api(), openclaw()),
        *(opencode(), pi(), process(), qwen()),
    )
}

#: Files of an adapter's folder, which are data.
DOCUMENTS = {"configuration_doc", "config_schema"}
#: What an adapter cannot do without.
NEEDED: dict[str, dict[str, Any]] = {
    "acp": {"command": "/opt/agent"},
    "http": {"url": "http://127.0.0.1:9/run"},
    "process": {"command": "/opt/program"},
}
#: Values of settings whose schema does not say what is possible.
VALUES: dict[str, Any] = {
    "agent": "ops",
    "callback": {},
    "configOptions": {"mode": "fast"},
    "cwd": "/",
    "env": {"COLOUR": "red"},
    "headers": {"x-team": "blue"},
    "instructionsFilePath": "{golden}/instructions.md",
    "model": "vendor/model-1",
    "opencodeConfig": {"username": "gopher"},
    "outputSchema": {"type": "object"},
    "paths": {"text": "$.text"},
    "poll": {},
    "promptTemplate": "Go on, {{runId}}.",
}
#: What an agent says first, if it does; and what it answers to any request that opens a session.
HELLO = b'{"type": "hello", "protocol": 3}'
AGREED: dict[str, Any] = {
    "protocolVersion": 1,
    "agentCapabilities": {
        "loadSession": True,
        "mcpCapabilities": {"http": True, "sse": True},
        "promptCapabilities": {"embeddedContext": True},
        "sessionCapabilities": {"fork": {}, "resume": {}},
    },
    "authMethods": [{"id": "gemini-api-key", "name": "Key"}],
    "modes": {"currentModeId": "default", "availableModes": [{"id": "default"}, {"id": "plan"}, {"id": "yolo"}]},
    "models": {"currentModelId": "m", "availableModels": [{"modelId": "m"}, {"modelId": "vendor/model-1"}]},
    "sessionId": "session-1",
    "thread": {"id": OLD_ID},
    "version": "1.2.3",
}
RESUME = SessionPlan(pb.SESSION_DISPOSITION_RESUME, native_id=OLD_ID)
FORK = SessionPlan(pb.SESSION_DISPOSITION_FORK, native_id=OLD_ID)
_ALLOW, _ASK, _DENY = pb.PERMISSION_DECISION_ALLOW, pb.PERMISSION_DECISION_ASK, pb.PERMISSION_DECISION_DENY

RULES: dict[str, dict[str, Any]] = {
    **{pb.ToolKind.Name(kind): {"tool_kind": kind} for kind in pb.ToolKind.values() if kind},
    "a tool": {"tool_name": "Special"},
    "a path": {"path_glob": "/srv/**", "tool_kind": pb.TOOL_KIND_EDIT},
    "a command": {"command_prefix": "git status", "tool_kind": pb.TOOL_KIND_EXECUTE},
    "a host": {"host": "example.org", "tool_kind": pb.TOOL_KIND_FETCH},
}
FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "model": {"model": "vendor/model-1"},
    "a prompt like an option": {"prompt": "--help"},
    "a prompt like a command": {"prompt": "/compact now"},
    "a prompt with a file": {"prompt": "See @notes.txt"},
    "system prompt": {"system_prompt": "Be brief."},
    "instructions": {"instructions": api.Instructions(text="Write tests.")},
    "directories": {"workspace": api.Workspace(cwd="/", additional_directories=["/tmp"])},
    "variables": {"env": {"COLOUR": "blue"}},
    "address and token": {"api_url": "http://127.0.0.1:9", "auth_token": "token-of-the-run"},
    "a tool server, stdio": {
        "mcp_servers": [
            api.McpServer(name="files", stdio=api.McpStdio(command="/bin/files", args=["-v"], env={"KEY": "value"}))
        ]
    },
    "a tool server, http": {
        "mcp_servers": [
            api.McpServer(name="web", http=api.McpHttp(url="http://127.0.0.1:9/mcp", headers={"authorization": "me"}))
        ]
    },
    "everything allowed": {"permissions": pb.Permissions(auto_approve=True)},
    "interactive": {"permissions": pb.Permissions(interactive=True)},
    **{
        f"by default {name}": {"permissions": pb.Permissions(default_decision=decision, interactive=decision == _ASK)}
        for name, decision in (("allowed", _ALLOW), ("asked", _ASK), ("denied", _DENY))
    },
    **{
        f"{name} is {what}": {"permissions": pb.Permissions(rules=[pb.PermissionRule(decision=decision, **rule)])}
        for what, decision in (("allowed", _ALLOW), ("asked", _ASK), ("denied", _DENY))
        for name, rule in RULES.items()
    },
    **{f"native mode {mode}": {"permissions": pb.Permissions(native_mode=mode)} for mode in ("plan", "no such mode")},
}


def cases(adapter: AgentAdapter) -> Iterator[tuple[str, api.ExecuteRequest, SessionPlan]]:
    """Yield a name, a request and what is intended with the session."""
    needed = NEEDED.get(adapter.spec.type, {})
    new = SessionPlan(pb.SESSION_DISPOSITION_NEW)
    for name, fields in FIELDS.items():
        yield name, request_of("/", needed, **fields), new
    yield "resumed", request_of("/", needed), RESUME
    yield "copied", request_of("/", needed), FORK
    for key, about in adapter.describe().config_schema["properties"].items():
        for value in _values(key, about):
            yield f"config {compact({key: value})}", request_of("/", {**needed, key: _here(value)}), new


def _values(key: str, about: dict[str, Any]) -> list[Any]:
    if key in VALUES:
        return [VALUES[key]]
    if "enum" in about:
        return [value for value in about["enum"] if value != ""]
    example: dict[str, list[Any]] = {
        "": ["words"],
        "boolean": [True, False],
        "integer": [3],
        "number": [2.5],
        "string": ["http://127.0.0.1:9/x" if "http" in about.get("pattern", "") else "/words"],
        "array": [_values("", about["items"])[:1] if "items" in about else []],
        "object": [{"name": "value"}],
    }
    return example[about.get("type", "")]


def _here(value: Any) -> Any:
    return value.replace("{golden}", str(GOLDEN)) if isinstance(value, str) else value


def shown(name: str) -> str:
    """Return what an adapter makes of all requests, as text: of the plain one all lines, of others what differs."""
    plain: dict[str, str] = {}
    named: dict[str, list[str]] = {}
    declared = msgspec.structs.asdict(ADAPTERS[name].spec)
    lines = [line for key, value in declared.items() if key not in DOCUMENTS for line in _declared(key, value)]
    for case, request, session in cases(ADAPTERS[name]):
        planned = _plan_of(ADAPTERS[name], request, session)
        differing = [f"{key}: {value}" for key, value in planned.items() if plain.get(key) != value]
        if "refused" not in planned:
            differing += [f"{key} is absent" for key in plain if key not in planned]
        plain = plain or planned
        named.setdefault("\n".join(differing or ["as plain"]), []).append(case)
    sections = [f"## {', '.join(names)}\n{what}" for what, names in {"\n".join(lines): ["declared"], **named}.items()]
    text = "\n\n".join(sections) + "\n"
    return text.replace(str(GOLDEN), "{golden}").replace(sys.executable, "{python}").replace(str(TOP), "{top}")


def _declared(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, pb.Capabilities):
        for item in value.items:
            yield f"capability {' '.join(str(item).split())}"
        value = {field.name: number for field, number in value.ListFields() if field.name != "items"}
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield f"{key} {name}: {item}"
    elif value:
        yield f"{key}: {value}"


def _plan_of(adapter: AgentAdapter, request: api.ExecuteRequest, session: SessionPlan) -> dict[str, str]:
    try:
        job = job_of(adapter, request, session, executable="/opt/agent", version=adapter.spec.tested_version)
        plan = adapter.plan(job)
    except DragomanError as error:
        return {"refused": "; ".join(f"{wrong.path}: {wrong.description}" for wrong in error.violations)}
    planned = dict(_flat("", msgspec.structs.asdict(plan), depth=4))
    if isinstance(adapter, CommandLineAdapter) and plan.keep_stdin_open:
        for number, data in enumerate(_first_messages(adapter.parser(job), plan.stdin), 1):
            planned |= _flat(f"message {number}", data, depth=3)
    return planned


def _flat(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a value and their names, so that one that differs stands alone."""
    if isinstance(value, bytes):
        value = decoded(value)
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            yield from _flat(f"{name} {key}".strip(), item, depth - 1)
    elif value or name.startswith("message"):
        yield name, compact(value) if isinstance(value, dict | list | str) else str(value)


def _first_messages(parser: Parser, first: bytes) -> Iterator[bytes]:
    """Yield what is written to an agent that agrees to everything, until its turn is over."""
    answers = [HELLO, *map(_answer_to, _ids(first))]
    for _ in range(6):
        outputs = [output for answer in answers for output in parser.line("stdout", Line(answer, 0, True))]
        written = [output.data for output in outputs if isinstance(output, Write)]
        yield from written
        answers = [_answer_to(request_id) for data in written for request_id in _ids(data)]
        if not answers:
            break


def _ids(data: bytes) -> list[Any]:
    frames = [json.loads(line) for line in data.splitlines() if line.startswith(b"{")]
    return [frame["id"] for frame in frames if "id" in frame]


def _answer_to(request_id: Any) -> bytes:
    answer = {"jsonrpc": "2.0", "type": "res", "id": request_id, "ok": True, "result": AGREED, "payload": AGREED}
    return compact(answer).encode()
