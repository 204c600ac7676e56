"""Requests that an adapter must reject, and those that it must not."""

import re
import uuid
from collections.abc import Callable

from dragoman.conformance.check import Skip, Violation, check, expect
from dragoman.conformance.kit import Kit, expect_reason, is_duty_refused, need, need_duty, refusal
from dragoman.conformance.streams import first, last, shown
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_MIB = 1024 * 1024
_LATER_FIELD = 15_000
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
    stream = kit.execute(request)
    try:
        await stream.read()
    except DragomanError as error:
        raise Violation(f"a request of 15 MiB is rejected: {shown(error)}") from error
    await stream.rest()


@check("request.unknown-field")
async def unknown_field(kit: Kit) -> None:
    """Send a field of a later revision."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    later = bytes([*_varint(_LATER_FIELD << 3 | 2), 5]) + b"later"
    request.MergeFromString(later)
    stream = kit.execute(request)
    try:
        await stream.read()
    except DragomanError as error:
        raise Violation(f"a request with an unknown field is rejected: {shown(error)}") from error
    await stream.rest()


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@check("request.unknown-feature")
async def unknown_feature(kit: Kit) -> None:
    """Require a feature of a later revision."""
    request = kit.request()
    request.required_capabilities.append(9999)  # type: ignore[arg-type] # a number of a later revision
    if await is_duty_refused(kit, api.DUTY_REFUSALS, request, "required_capabilities"):
        return
    expect_reason(await kit.rejected(request), Reason.CAPABILITY_MISSING)


@check("request.capability-missing")
async def capability_missing(kit: Kit) -> None:
    """Require a feature that is not declared."""
    missing = [value for value in pb.Feature.values() if value and not kit.has(value)]
    if not missing:
        raise Skip("the adapter declares every feature")
    request = kit.request()
    request.required_capabilities.append(missing[0])
    if await is_duty_refused(kit, api.DUTY_REFUSALS, request, "required_capabilities"):
        return
    expect_reason(await kit.rejected(request), Reason.CAPABILITY_MISSING)


@check("request.capability-declared")
async def capability_declared(kit: Kit) -> None:
    """Require every feature that is declared."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.required_capabilities.extend(item.feature for item in kit.described.capabilities.items)
    if await is_duty_refused(kit, api.DUTY_REFUSALS, request, "required_capabilities"):
        return
    stream = kit.execute(request)
    try:
        await stream.read()
    except DragomanError as error:
        raise Violation(f"features that are declared are rejected: {shown(error)}") from error
    await stream.rest()


def _model(request: api.ExecuteRequest) -> None:
    request.model = "conformance-model"


def _system_prompt(request: api.ExecuteRequest) -> None:
    request.system_prompt = "Be brief."


def _instructions(request: api.ExecuteRequest) -> None:
    request.instructions.text = "Be brief."


def _skills(request: api.ExecuteRequest) -> None:
    request.skills.add(name="conformance").files.content["SKILL.md"] = b"# Conformance\n"


def _mcp_servers(request: api.ExecuteRequest) -> None:
    request.mcp_servers.add(name="conformance").stdio.command = "true"


def _handle(request: api.ExecuteRequest) -> None:
    request.session.handle.CopyFrom(pb.SessionHandle(adapter=request.adapter, native_id=str(uuid.uuid4())))


def _fork(request: api.ExecuteRequest) -> None:
    _handle(request)
    request.session.fork = True


def _changes(request: api.ExecuteRequest) -> None:
    request.track_changes = True


def _attachments(request: api.ExecuteRequest) -> None:
    request.attachments.add(name="conformance.txt", content=b"conformance")


def _unsupported(
    rule: str, feature: pb.Feature.ValueType, field: str, change: Callable[[api.ExecuteRequest], None]
) -> None:
    @check(rule)
    async def examine(kit: Kit) -> None:
        if kit.has(feature):
            raise Skip(f"{pb.Feature.Name(feature)} is declared")
        need_duty(kit, api.DUTY_REFUSALS)
        request = kit.request()
        change(request)
        expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path=field)


_unsupported("unsupported.model", pb.FEATURE_MODEL_CHOICE, "model", _model)
_unsupported("unsupported.system-prompt", pb.FEATURE_SYSTEM_PROMPT, "system_prompt", _system_prompt)
_unsupported("unsupported.instructions", pb.FEATURE_INSTRUCTIONS, "instructions", _instructions)
_unsupported("unsupported.skills", pb.FEATURE_SKILLS, "skills", _skills)
_unsupported("unsupported.mcp-servers", pb.FEATURE_MCP_SERVERS, "mcp_servers", _mcp_servers)
_unsupported("unsupported.changes", pb.FEATURE_CHANGES, "track_changes", _changes)
_unsupported("unsupported.attachments", pb.FEATURE_ATTACHMENTS, "attachments", _attachments)
_unsupported("unsupported.session", pb.FEATURE_RESUME, "session", _handle)
_unsupported("unsupported.fork", pb.FEATURE_FORK, "session", _fork)


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


def _key(request: api.ExecuteRequest) -> None:
    request.session.key.task_key = "conformance"


def _resume_run_id(request: api.ExecuteRequest) -> None:
    request.session.resume_run_id = "conformance"


def _fallback(request: api.ExecuteRequest) -> None:
    request.fallback.adapters.append("conformance")


def _admission(request: api.ExecuteRequest) -> None:
    request.admission.longest_wait.seconds = 1


def _agent_name(request: api.ExecuteRequest) -> None:
    request.agent_name = "conformance"


_ROUTERS = {
    "session.key": _key,
    "session.resume_run_id": _resume_run_id,
    "fallback": _fallback,
    "admission": _admission,
    "agent_name": _agent_name,
}


@check("unsupported.router-fields")
async def router_fields(kit: Kit) -> None:
    """Send an adapter what only a router can honour."""
    if kit.is_router:
        raise Skip("a router honours these fields")
    for field, change in _ROUTERS.items():
        request = kit.request()
        change(request)
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
