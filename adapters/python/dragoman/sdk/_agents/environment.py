"""TestEnvironment: what is wrong with a set-up, as checks with stable codes.

Levels are Paperclip's: an *error* is a set-up that cannot work, a *warning* never blocks anything (an API key in
the environment is one: it works, and it is billed), *info* is what was found in order.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from dragoman.protocol.errors import DragomanError
from dragoman.sdk._agents.hooks import AgentHooks
from dragoman.sdk._detection.checks import Checks
from dragoman.sdk._encoding.config import as_object, as_string
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._encoding.protobuf import seconds, struct_to_dict
from dragoman.sdk._encoding.schema import ConfigSchema
from dragoman.sdk._request.workspace import check_cwd
from dragoman.sdk.spec import AgentSpec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_DEFAULT_LIVE_S = 60.0

_INFO, _WARNING, _ERROR = event_pb2.SEVERITY_INFO, event_pb2.SEVERITY_WARNING, event_pb2.SEVERITY_ERROR


TryLive = Callable[[pb.ExecuteRequest], Awaitable[tuple[event_pb2.Result, str]]]
"""Does one run; returns its result and all that it said."""


async def check_environment(
    agent: AgentHooks, schema: ConfigSchema, try_live: TryLive, request: pb.TestEnvironmentRequest
) -> list[pb.EnvironmentCheck]:
    """Make all checks, the LIVE one last and only if no other failed."""
    checks = Checks()
    config = _check_config(schema, request, checks)
    cwd = request.workspace.cwd or as_string(config.get("cwd"), "")
    if agent.spec.has(event_pb2.FEATURE_WORKSPACE):
        _check_cwd(cwd, checks)
    requested = {**_string_values(config.get("env")), **request.env}
    env = agent.surroundings(requested)
    await agent.check_agent(env, config, checks)
    if not any(item.code == "api_key_withheld" for item in checks.items):
        _check_api_keys(agent.spec, env, requested, checks)
    agent.extra_checks(config, env, checks)
    if request.mode == pb.TEST_MODE_LIVE:
        if checks.has_error:
            checks.add(_INFO, "live_skipped", "The live turn was not tried, as a check before it failed.")
        else:
            await _check_live(agent.spec, try_live, request, checks)
    return checks.items


def _check_config(schema: ConfigSchema, request: pb.TestEnvironmentRequest, checks: Checks) -> dict[str, JsonValue]:
    try:
        config = struct_to_dict(request.config)
    except DragomanError as error:
        checks.add(_ERROR, "config_invalid", error.message)
        return {}
    problems = schema.validate(config)
    for problem in problems:
        checks.add(_ERROR, "config_invalid", f"{problem.path}: {problem.message}", hint=problem.hint or "")
    if not problems:
        checks.add(_INFO, "config_valid", "The configuration fits the schema.")
    return config


def _check_cwd(cwd: str, checks: Checks) -> None:
    problem = check_cwd(cwd or None)
    if problem is None:
        checks.add(_INFO, "cwd_usable", f"The working directory is {cwd}.")
    else:
        checks.add(_ERROR, problem.code, problem.message, hint=problem.hint)


def _check_api_keys(spec: AgentSpec, env: Mapping[str, str], requested: Mapping[str, str], checks: Checks) -> None:
    for name in spec.api_key_variables:
        if not env.get(name):
            continue
        where = "the request" if name in requested else "the adapter's own environment"
        checks.add(
            _WARNING,
            "api_key_in_environment",
            f"{name} is set in {where}: runs use and bill that key instead of a subscription login.",
            hint=f"Unset {name} if the subscription is meant. This blocks nothing.",
        )


async def _check_live(spec: AgentSpec, try_live: TryLive, request: pb.TestEnvironmentRequest, checks: Checks) -> None:
    """Have one tiny real turn in a neutral directory; the answer must echo a nonce that it cannot guess."""
    import secrets  # noqa: PLC0415 - few ask for a live turn
    import shutil  # noqa: PLC0415 - as above
    import tempfile  # noqa: PLC0415 - as above

    nonce = f"dragoman-{secrets.token_hex(6)}"
    neutral = Path(tempfile.mkdtemp(prefix="dragoman-live-"))
    try:
        execute = pb.ExecuteRequest(
            run_id=f"live-{secrets.token_hex(8)}",
            adapter=spec.type,
            prompt=f"Reply with exactly: {nonce}",
            config=request.config,
            env=request.env,
            model=request.model,
        )
        execute.workspace.cwd = str(neutral)
        limit = seconds(request.timeout) if request.HasField("timeout") else _DEFAULT_LIVE_S
        execute.limits.wall.FromNanoseconds(int(limit * 1e9))
        execute.limits.grace.FromSeconds(2)
        result, text = await try_live(execute)
    except DragomanError as error:
        checks.add(_ERROR, "live_refused", str(error))
        return
    finally:
        shutil.rmtree(neutral, ignore_errors=True)
    if result.outcome != event_pb2.OUTCOME_SUCCEEDED:
        kind = event_pb2.FailureKind.Name(result.failure.kind).removeprefix("FAILURE_KIND_")
        checks.add(_ERROR, "live_failed", result.failure.message or "The live turn failed.", detail=kind)
    elif nonce not in text:
        checks.add(_ERROR, "live_no_echo", "The agent answered, but not with the word it was asked for.")
    else:
        checks.add(_INFO, "live_ok", "The agent answered a live turn.", detail=result.model)


def _string_values(value: JsonValue) -> dict[str, str]:
    return {key: item for key, item in as_object(value, {}).items() if isinstance(item, str)}
