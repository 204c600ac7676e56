"""Health, reflection, and what an adapter says of itself and of its agent."""

import json
import re
from pathlib import Path
from typing import Any

import grpc
from dragoman.conformance.check import Skip, Violation, check, expect
from dragoman.conformance.kit import Kit, directory, expect_reason, finding, need, refusal
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

_SERVICE = "dragoman.v1.AdapterService"
_TYPE = re.compile(r"[a-z][a-z0-9_]*")
_MIB_QUARTER = 256 * 1024


async def _health(kit: Kit, service: str) -> health_pb2.HealthCheckResponse:
    stub: Any = health_pb2_grpc.HealthStub(kit.channel)
    call = stub.Check(health_pb2.HealthCheckRequest(service=service))
    answer: health_pb2.HealthCheckResponse = await kit.answer("Health.Check", call)
    return answer


@check("server.health")
async def health(kit: Kit) -> None:
    """Ask for the server and for the service."""
    for service in ("", _SERVICE):
        try:
            answer = await _health(kit, service)
        except DragomanError as error:
            raise Violation(f"Health.Check({service!r}) failed: {error.code.name}") from error
        expect(
            answer.status == health_pb2.HealthCheckResponse.SERVING,
            f"Health.Check({service!r}) answers {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}",
        )


@check("server.health-unknown")
async def health_unknown(kit: Kit) -> None:
    """Ask for a service that cannot exist."""
    error = await refusal(_health(kit, "conformance.NoSuchService"))
    expect_reason(error, Reason.SERVICE_UNKNOWN)


@check("server.reflection")
async def reflection(kit: Kit) -> None:
    """List services by reflection, in the version that most tools use."""
    for version in ("v1", "v1alpha"):
        call = kit.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        try:
            answer: Any = await call.read()
        except grpc.aio.AioRpcError:
            continue  # not recorded: a stream of an RPC that is not served may end with INTERNAL (grpc/grpc#36066)
        if answer is grpc.aio.EOF:
            continue
        listed = {service.name for service in answer.list_services_response.service}
        expect(_SERVICE in listed, f"reflection lists {sorted(listed)}")
        return
    raise Violation("neither grpc.reflection.v1 nor v1alpha is served")


@check("server.unknown-adapter")
async def unknown_adapter(kit: Kit) -> None:
    """Name an adapter that cannot exist."""
    call = kit.call("Describe", api.DescribeRequest(adapter="conformance_no_such_adapter"))
    expect_reason(await refusal(call), Reason.ADAPTER_NOT_FOUND)


@check("describe.type")
async def adapter_type(kit: Kit) -> None:
    """Look at the type."""
    found = kit.described.adapter
    expect(_TYPE.fullmatch(found), f"the type {found!r} does not match [a-z][a-z0-9_]*")


@check("describe.revision")
async def revision(kit: Kit) -> None:
    """Look at the revision."""
    expect(kit.described.revision >= 1, "revision is 0 or absent")


@check("describe.aliases")
async def aliases(kit: Kit) -> None:
    """Call with the first alias."""
    if not kit.described.aliases:
        raise Skip("the adapter has no alias")
    for alias in kit.described.aliases[:3]:
        try:
            answer = await kit.call("Describe", api.DescribeRequest(adapter=alias))
        except DragomanError as error:
            raise Violation(f"Describe with the alias {alias!r} failed: {error.code.name}") from error
        expect(answer.adapter == kit.described.adapter, f"the alias {alias!r} names {answer.adapter!r}")


@check("describe.instance-id")
async def instance_id(kit: Kit) -> None:
    """Compare the instance ID of two calls."""
    if kit.is_router:
        raise Skip("the instance behind a router may change")
    first = kit.described.instance_id
    expect(first, "instance_id is empty")
    again = await kit.call("Describe", api.DescribeRequest(adapter=kit.adapter))
    expect(again.instance_id == first, "instance_id changes from call to call")


@check("describe.config-schema")
async def config_schema(kit: Kit) -> None:
    """Parse the schema."""
    text = kit.described.config_schema_json
    if not text:
        raise Skip("config_schema_json is empty: not declared")
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise Violation(f"config_schema_json is no JSON: {error}") from error
    expect(isinstance(schema, dict), "config_schema_json is not a JSON object")
    expect(isinstance(schema.get("$schema", ""), str), "config_schema_json is no JSON Schema: its $schema is no text")
    import jsonschema  # noqa: PLC0415 - slow to import, and only needed for this

    try:
        jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        place = "".join(f"{step}." for step in error.absolute_path).removesuffix(".")
        raise Violation(f"config_schema_json is no JSON Schema: {place or 'its root'}: {error.message}") from error
    kind = schema.get("type", "object")
    expect("object" in kind, f"config_schema_json is the schema of {kind!r}; a config is an object")


@check("describe.bounds")
async def bounds(kit: Kit) -> None:
    """Compare the description with its bounds."""
    described = kit.described
    sizes = {
        "label": (len(described.label.encode()), 256),
        "version": (len(described.version.encode()), 256),
        "instance_id": (len(described.instance_id.encode()), 256),
        "config_schema_json": (len(described.config_schema_json.encode()), _MIB_QUARTER),
        "configuration_doc": (len(described.configuration_doc.encode()), _MIB_QUARTER),
        "aliases": (len(described.aliases), 32),
        "models": (len(described.models), 1000),
        "capabilities.items": (len(described.capabilities.items), 128),
    }
    for name, (size, most) in sizes.items():
        expect(size <= most, f"{name} has {size}; at most {most}")


@check("detect.data")
async def detect(kit: Kit) -> None:
    """Detect with a PATH that holds no agent."""
    request = api.DetectRequest(adapter=kit.adapter, refresh=True, env={"PATH": str(kit.setup.folder)})
    answer = await finding(kit, "Detect", request, "what it finds is data")
    expect(len(answer.detections) == 1, f"{len(answer.detections)} detections of one adapter")
    found = answer.detections[0]
    expect(found.adapter == kit.described.adapter, f"the detection is of {found.adapter!r}")
    expect(found.HasField("detected_at"), "detected_at is absent")


@check("test.invalid-is-data")
async def test_environment(kit: Kit) -> None:
    """Test an environment whose directory does not exist."""
    need(kit, pb.FEATURE_WORKSPACE)
    request = api.TestEnvironmentRequest(adapter=kit.adapter, mode=api.TEST_MODE_QUICK)
    request.workspace.cwd = str(kit.setup.folder / "no-such-directory")
    request.config.update(kit.setup.config)
    await fails_test(kit, request, "a directory that does not exist", "an invalid cwd is a failed check")


async def fails_test(kit: Kit, request: api.TestEnvironmentRequest, what: str, why: str) -> None:
    """Require that a test of an environment fails as data, with a check that says why."""
    answer = await finding(kit, "TestEnvironment", request, why, is_optional=True)
    expect(answer.status == api.TEST_STATUS_FAIL, f"{what} is not reported as FAIL")
    failed = [item for item in answer.checks if item.level == pb.SEVERITY_ERROR]
    expect(failed and all(item.code and item.message for item in failed), "no failed check with a code and a message")


@check("models.answer")
async def models(kit: Kit) -> None:
    """List models."""
    await _answers(kit, "ListModels", api.ListModelsRequest(adapter=kit.adapter))


@check("quota.answer")
async def quota(kit: Kit) -> None:
    """Ask for the rate limits of the account, in a home without a login."""
    need(kit, pb.FEATURE_QUOTA)
    request = api.GetQuotaRequest(adapter=kit.adapter, env={"HOME": directory(kit, "home")})
    answer = await finding(kit, "GetQuota", request, "why there is no answer is data")
    if answer.HasField("failure"):
        expect(answer.failure.kind and answer.failure.message, "the failure has no kind or no message")
        return
    expect(answer.HasField("read_at"), "read_at is absent")
    expect(all(window.window for window in answer.windows), "a window has no name")
    shares = [window.used_percent for window in answer.windows if window.HasField("used_percent")]
    expect(all(0 <= share <= 100 for share in shares), f"used shares of {shares} percent")


@check("login.steps")
async def login(kit: Kit) -> None:
    """Begin a login in a home without one, and leave it after its first step."""
    need(kit, pb.FEATURE_LOGIN)
    call = kit.stub.Login(api.LoginRequest(adapter=kit.adapter, env={"HOME": directory(kit, "home")}))
    try:
        event = await kit.answer("Login", anext(aiter(call)))
    except DragomanError as error:
        raise Violation(f"Login failed: {error.code.name}: why a login fails is data") from error
    finally:
        call.cancel()
    if event.HasField("prompt"):
        expect(event.prompt.url, "a prompt names no page")
        return
    expect(event.HasField("outcome"), "the event is neither a prompt nor the outcome")
    failure = event.outcome.failure
    expect(failure.kind and failure.message, "there is no prompt, and the failure has no kind or no message")


@check("skills.answer")
async def skills(kit: Kit) -> None:
    """List skills."""
    await _answers(kit, "ListSkills", api.ListSkillsRequest(adapter=kit.adapter))


@check("skills.sync")
async def sync_skills(kit: Kit) -> None:
    """Install a skill whose name would leave the directory of skills, in a home of its own."""
    home = directory(kit, "home")
    request = api.SyncSkillsRequest(adapter=kit.adapter, env={"HOME": home})
    request.skills.add(name="../conformance").files.content["SKILL.md"] = b"# Conformance\n"
    error = await refusal(kit.call("SyncSkills", request))
    if error.reason is Reason.INVALID_REQUEST:
        paths = [item.path for item in error.violations]
        expect(any(path.startswith("skills") for path in paths), f"BadRequest must name the skill; it has {paths}")
    else:
        expect_reason(error, Reason.NOT_IMPLEMENTED, Reason.NOT_SUPPORTED)
    expect(not any(Path(home).rglob("SKILL.md")), "a skill with an invalid name is installed")


async def _answers(kit: Kit, rpc: str, request: object) -> None:
    try:
        await kit.call(rpc, request)
    except DragomanError as error:
        expect_reason(error, Reason.NOT_IMPLEMENTED, Reason.NOT_SUPPORTED)
