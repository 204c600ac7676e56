"""Requests that an adapter must reject, and those that it must not."""

import re
import uuid
from typing import Any

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.kit import (
    Kit,
    accepted,
    expect_reason,
    is_duty_refused,
    need,
    need_duty,
    refusal,
)
from dragoman.conformance.streams import first, last, shown
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_MIB = 1024 * 1024
_LATER_FIELD = b"\xc2\xa9\x07\x05later"
"""A text in the field 15,000."""
_ENFORCING = {pb.PERMISSION_MODE_STRICT, pb.PERMISSION_MODE_PERMISSIVE}


@check("request.run-id")
async def run_id(kit: Kit) -> None:
    """Send an ID with a space."""
    request = kit.request()
    request.run_id = "not an id"
    expect_reason(await kit.rejected(request), Reason.INVALID_REQUEST, field_path="run_id")


@check("request.cwd-relative")
async def cwd_relative(kit: Kit) -> None:
    """Send a relative working directory."""
    await _cwd(kit, "relative")


@check("request.cwd-missing")
async def cwd_missing(kit: Kit) -> None:
    """Send a working directory that does not exist."""
    await _cwd(kit, str(kit.setup.folder / "no-such-directory"))


async def _cwd(kit: Kit, cwd: str) -> None:
    need(kit, pb.FEATURE_WORKSPACE)
    request = kit.request()
    request.workspace.cwd = cwd
    expect_reason(await kit.rejected(request), Reason.INVALID_REQUEST, field_path="workspace.cwd")


@check("request.config-key")
async def config_key(kit: Kit) -> None:
    """Send a setting that no schema has."""
    if not re.search(r'"additionalProperties":\s*false', kit.described.config_schema_json):
        raise Skip("config_schema_json allows other keys, or is not declared")
    request = kit.request()
    request.config.update({**kit.setup.config, "conformanceNoSuchKey": 1})
    error = await kit.rejected(request)
    expect_reason(error, Reason.INVALID_REQUEST, field_path="config.conformanceNoSuchKey")


@check("request.bounds")
async def bounds(kit: Kit) -> None:
    """Send 65 labels."""
    request = kit.request()
    for number in range(65):
        request.labels[f"label{number}"] = ""
    expect_reason(await kit.rejected(request), Reason.INVALID_REQUEST, field_path="labels")


@check("request.too-large")
async def too_large(kit: Kit) -> None:
    """Send a request of more than 16 MiB."""
    request = kit.request()
    request.prompt = "x" * (16 * _MIB + 1)
    error = await kit.rejected(request)
    expect(error.code.name == "RESOURCE_EXHAUSTED", f"RESOURCE_EXHAUSTED is due, not {shown(error)}")
    expect_reason(error, Reason.MESSAGE_TOO_LARGE)


@check("request.large")
async def large(kit: Kit) -> None:
    """Send a request of nearly 16 MiB; what rejects it may only be a bound of its own."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.company.update({f"key{number}": "x" * _MIB for number in range(15)})
    await accepted(kit, request, "a request of 15 MiB is")


@check("request.unknown-field")
async def unknown_field(kit: Kit) -> None:
    """Send a field of a later revision."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.MergeFromString(_LATER_FIELD)
    await accepted(kit, request, "a request with an unknown field is")


@check("request.unknown-feature")
async def unknown_feature(kit: Kit) -> None:
    """Require a feature of a later revision."""
    await _not_there(kit, 9999)


@check("request.capability-missing")
async def capability_missing(kit: Kit) -> None:
    """Require a feature that is not declared."""
    missing = [value for value in pb.Feature.values() if value and not kit.has(value)]
    if not missing:
        raise Skip("the adapter declares every feature")
    await _not_there(kit, missing[0])


async def _not_there(kit: Kit, feature: int) -> None:
    request = kit.request()
    request.required_capabilities.append(feature)  # type: ignore[arg-type] # it may be of a later revision
    if not await is_duty_refused(kit, api.DUTY_REFUSALS, request, "required_capabilities"):
        expect_reason(await kit.rejected(request), Reason.CAPABILITY_MISSING)


@check("request.capability-declared")
async def capability_declared(kit: Kit) -> None:
    """Require every feature that is declared."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.required_capabilities.extend(item.feature for item in kit.described.capabilities.items)
    if not await is_duty_refused(kit, api.DUTY_REFUSALS, request, "required_capabilities"):
        await accepted(kit, request, "features that are declared are")


def _unsupported(rule: str, feature: pb.Feature.ValueType, field: str, value: Any) -> None:
    """Register the check that an adapter without a feature refuses the field of a request that needs it."""

    @check(f"unsupported.{rule}")
    async def examine(kit: Kit) -> None:
        if kit.has(feature):
            raise Skip(f"{pb.Feature.Name(feature)} is declared")
        need_duty(kit, api.DUTY_REFUSALS)
        request = kit.request()
        request.MergeFrom(api.ExecuteRequest(**{field: value}))
        if request.session.HasField("handle"):
            request.session.handle.adapter = request.adapter
        expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path=field)


_SKILL = {"name": "conformance", "files": {"content": {"SKILL.md": b"# Conformance\n"}}}
_HANDLE = {"native_id": str(uuid.uuid4())}
_unsupported("model", pb.FEATURE_MODEL_CHOICE, "model", "conformance-model")
_unsupported("system-prompt", pb.FEATURE_SYSTEM_PROMPT, "system_prompt", "Be brief.")
_unsupported("instructions", pb.FEATURE_INSTRUCTIONS, "instructions", {"text": "Be brief."})
_unsupported("skills", pb.FEATURE_SKILLS, "skills", [_SKILL])
_unsupported(
    "mcp-servers", pb.FEATURE_MCP_SERVERS, "mcp_servers", [{"name": "conformance", "stdio": {"command": "true"}}]
)
_unsupported("changes", pb.FEATURE_CHANGES, "track_changes", True)
_unsupported(
    "attachments", pb.FEATURE_ATTACHMENTS, "attachments", [{"name": "conformance.txt", "content": b"conformance"}]
)
_unsupported("session", pb.FEATURE_RESUME, "session", {"handle": _HANDLE})
_unsupported("fork", pb.FEATURE_FORK, "session", {"handle": _HANDLE, "fork": True})


@check("unsupported.permissions")
async def permissions(kit: Kit) -> None:
    """Send a rule to an adapter that neither asks nor enforces rules."""
    if kit.has(pb.FEATURE_PERMISSION_REQUESTS) or kit.described.capabilities.permission_mode in _ENFORCING:
        raise Skip("the adapter declares that it keeps rules")
    need_duty(kit, api.DUTY_REFUSALS)
    request = kit.request()
    request.permissions.rules.add(decision=pb.PERMISSION_DECISION_DENY)
    expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path="permissions")


@check("unsupported.quota")
async def undeclared_quota(kit: Kit) -> None:
    """Ask an adapter for its account's rate limits that does not report them."""
    if kit.has(pb.FEATURE_QUOTA):
        raise Skip("FEATURE_QUOTA is declared")
    error = await refusal(kit.call("GetQuota", api.GetQuotaRequest(adapter=kit.adapter)))
    expect_reason(error, Reason.NOT_IMPLEMENTED)


@check("unsupported.login")
async def undeclared_login(kit: Kit) -> None:
    """Log an agent in whose adapter cannot."""
    if kit.has(pb.FEATURE_LOGIN):
        raise Skip("FEATURE_LOGIN is declared")
    call = kit.stub.Login(api.LoginRequest(adapter=kit.adapter))
    error = await refusal(kit.answer("Login", anext(aiter(call))))
    expect_reason(error, Reason.NOT_IMPLEMENTED)


_ROUTERS: dict[str, dict[str, Any]] = {
    "session.key": {"session": {"key": {"task_key": "conformance"}}},
    "session.resume_run_id": {"session": {"resume_run_id": "conformance"}},
    "fallback": {"fallback": {"adapters": ["conformance"]}},
    "admission": {"admission": {"longest_wait": {"seconds": 1}}},
    "agent_name": {"agent_name": "conformance"},
}


@check("unsupported.router-fields")
async def router_fields(kit: Kit) -> None:
    """Send an adapter what only a router can honour."""
    if kit.is_router:
        raise Skip("a router honours these fields")
    for field, fields in _ROUTERS.items():
        request = kit.request()
        request.MergeFrom(api.ExecuteRequest(**fields))
        expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path=field)


@check("request.relay")
async def relay(kit: Kit) -> None:
    """Send what only a router may send."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.relay.first_sequence = 100
    request.relay.first_attempt = 3
    if kit.is_router:
        expect_reason(await kit.rejected(request), Reason.INVALID_REQUEST, Reason.NOT_SUPPORTED, field_path="relay")
        return
    stream = kit.execute(request)
    kit.seen.streams.remove(stream)  # its numbers do not start at 1
    await stream.rest()
    found = first(stream)
    expect(found.sequence == 100, f"the first sequence is {found.sequence}, where relay says 100")
    expect(found.attempt == 3, f"the first attempt is {found.attempt}, where relay says 3")


@check("request.next-attempt")
async def next_attempt(kit: Kit) -> None:
    """Send the request again as a router does for a further attempt."""
    if kit.is_router:
        raise Skip("a router begins attempts itself")
    request = kit.request("say=hello", model="MOCK_TEXT")
    end = last(await kit.run(request))
    request.relay.first_sequence = end.sequence + 1
    request.relay.first_attempt = end.attempt + 1
    stream = kit.execute(request)
    kit.seen.streams.remove(stream)  # its numbers do not start at 1
    await stream.rest()
    found = [(event.sequence, event.attempt) for event in stream.durable[:1]]
    due = (request.relay.first_sequence, request.relay.first_attempt)
    expect(found == [due], f"sequence and attempt of the first event are {found}, where relay says {due}")
    expect(stream.of("started"), "the next attempt has no started")


@check("request.template")
async def template(kit: Kit) -> None:
    """Send a template, and read what the agent gets."""
    need(kit, pb.FEATURE_PROMPT)
    request = kit.request("echo")
    text = request.prompt.replace("Hello.", "run={{runId}} name={{agent.name}}")
    request.prompt_template = text
    request.agent.name = "Conformance"
    if await is_duty_refused(kit, api.DUTY_TEMPLATES, request, "prompt_template"):
        return
    stream = await kit.run(request)
    due = f"run={request.run_id} name=Conformance"
    expect(due in stream.text, f"the agent got {stream.text[:200]!r}, not {due!r}")
