"""An agent whose program does not exist, and one that ends with an error: neither is a success, nor silence."""

import json
from typing import Any

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.checks.describe import fails_test
from dragoman.conformance.kit import Kit, expect_failure, expect_outcome, finding, has_setting
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_COMMAND = "command"
"""The setting that names the agent's program, where an adapter has it."""
_EXIT_CODE = 7


def _without_program(kit: Kit, request: Any) -> None:
    """Let the settings and variables of a request name a program that does not exist.

    Raises:
        Skip: the kit does not know which of them names one.
    """
    absent = str(kit.setup.folder / "no-such-program")
    script = kit.setup.script
    config: dict[str, Any] = kit.setup.config
    env = kit.setup.env
    if script and script in json.dumps([config, env]):
        config = json.loads(json.dumps(config).replace(script, absent))
        env = {name: value.replace(script, absent) for name, value in env.items()}
    elif has_setting(kit.described.config_schema_json, _COMMAND):
        config = {**config, _COMMAND: absent}
    else:
        raise Skip("neither {script} nor a setting 'command' names the agent's program")
    request.config.Clear()
    request.config.update(config)
    request.env.update(env)


@check("detect.missing")
async def detect(kit: Kit) -> None:
    """Detect an agent whose program does not exist."""
    request = api.DetectRequest(adapter=kit.adapter, refresh=True)
    _without_program(kit, request)
    answer = await finding(kit, "Detect", request, "that there is no program is data", is_optional=True)
    expect(answer.detections, "no detection")
    found = answer.detections[0]
    expect(not found.available, "available is true, although the program does not exist")
    expect(not found.executable, f"the executable is {found.executable}, which is not the program that was asked for")
    expect(found.hint or found.problems, "neither a hint nor a problem says what is wrong")


@check("test.missing")
async def test_environment(kit: Kit) -> None:
    """Test an environment with an agent whose program does not exist."""
    request = api.TestEnvironmentRequest(adapter=kit.adapter, mode=api.TEST_MODE_QUICK)
    _without_program(kit, request)
    if kit.has(pb.FEATURE_WORKSPACE):
        request.workspace.cwd = str(kit.setup.folder)
    await fails_test(kit, request, "a program that does not exist", "a missing program is a failed check")


@check("run.missing")
async def run(kit: Kit) -> None:
    """Run an agent whose program does not exist."""
    request = kit.request()
    _without_program(kit, request)
    result = (await kit.run(request)).result
    expect_outcome(result, pb.OUTCOME_FAILED)
    expect_failure(result, pb.FAILURE_KIND_NOT_INSTALLED, pb.FAILURE_KIND_SPAWN_FAILED)
    expect(result.failure.message, "the failure has no message")


@check("run.exit-code")
async def exit_code(kit: Kit) -> None:
    """Have an agent exit with an error, without another word."""
    result = (await kit.run(kit.request("say=hello", f"exit={_EXIT_CODE}"))).result
    expect_outcome(result, pb.OUTCOME_FAILED, f"the agent exited with {_EXIT_CODE}")
    found = result.exit_code if result.HasField("exit_code") else "absent"
    expect(found == _EXIT_CODE, f"exit_code is {found}; the agent exited with {_EXIT_CODE}")
