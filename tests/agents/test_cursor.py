"""Cursor's adapter: the shared suite on a fake made from Cursor's documentation, and its real SDK as far as it goes.

Cursor's program comes from no package registry. The table of proofs says of each of these tests what it ran on.
"""

import asyncio
from pathlib import Path

import pytest
from dragoman.adapters.cursor import adapter
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.profiles.cursor import CURSOR
from dragoman.v1 import event_pb2 as pb

from tests.agents.choosing import why_not
from tests.agents.harness import BIN, TEST_S, Failing, Harness, Recipe
from tests.agents.suite import ALLOWED, AgentSuite, resuming

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]

FAKE = Path(__file__).parent / "fake_cursor.py"

RECIPE = Recipe(
    make=adapter,
    billing=pb.BILLING_TYPE_UNSPECIFIED,
    family=CURSOR,
    executable="",
    built_from_documentation=True,
    unknown_session="00000000-0000-4000-8000-000000000000",
    lacks=["usage"],
    unset=["CURSOR_API_KEY"],
    untestable=dict.fromkeys(
        [
            "test_a_failure_that_passes",
            "test_a_cut_that_passes_leaves_one_answer",
            "test_a_stream_without_a_finish_reason_is_no_success",
            "test_an_answer_cut_by_the_output_limit",
            "test_a_failure_of_the_models_service[400]",
        ],
        "what Cursor does then, and how it reports it, is not documented",
    ),
    failures={
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "cursor_auth_required", 401),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "cursor_rate_limited", 429),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "cursor_upstream_unavailable", 500),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "cursor_network"),
    },
)


class TestCursorFake(AgentSuite):
    """Everything that all agents must stand, on the fake."""

    recipe = RECIPE

    @pytest.fixture(autouse=True)
    def for_this_agent(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reason = why_not(self.recipe, request.node)
        if reason:
            pytest.skip(reason)
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "cursor-agent").symlink_to(FAKE)
        monkeypatch.setenv("PATH", f"{folder}:/usr/local/bin:/usr/bin:/bin")

    async def test_it_may_do_everything_or_only_propose(self, harness: Harness) -> None:
        nearly = pb.Permissions(
            default_decision=pb.PERMISSION_DECISION_ALLOW,
            rules=[pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY, path_glob="*.key")],
        )
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=nearly)
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_DENIED]
        assert "tools_withheld" in seen.notices
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=ALLOWED, leaves=["notes.txt"])
        assert "tools_withheld" not in seen.notices

    async def test_a_mode_is_asked_for_and_the_chats_id_is_cursors(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", permissions=pb.Permissions(native_mode="plan"))
        argv = list(seen.of("started")[0].argv)
        assert argv[argv.index("--mode") + 1] == "plan"
        assert seen.of("started")[0].native_session_id == ""
        handle = seen.result.session.handle
        again = await harness.run("MOCK_TEXT", session=resuming(handle))
        argv = list(again.of("started")[0].argv)
        assert argv[argv.index("--resume") + 1] == handle.native_id


SDK_PROGRAM = """
import sys
from cursor_sdk import Agent, errors
try:
    print(Agent.prompt("Say hello.", {"model": "auto", "local": {"cwd": sys.argv[1]}}))
except errors.CursorSDKError as error:
    print(type(error).__name__, error)
"""


async def test_cursors_real_sdk_starts_its_bridge_and_gets_no_further_than_its_own_service(tmp_path: Path) -> None:
    """Its bridge starts without a terminal, takes the key, and asks for models; the rest is Cursor's own protocol."""
    python = BIN / "cursor-sdk"
    if not python.exists():
        pytest.fail("cursor-sdk is not installed; run scripts/install-agents")
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "CURSOR_API_KEY": "key_fake"}
    async with ModelServer() as service:
        child = await asyncio.create_subprocess_exec(
            *(str(python), "-c", SDK_PROGRAM, str(tmp_path)),
            env={**env, "CURSOR_BACKEND_URL": service.url, "DO_NOT_TRACK": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await child.communicate()
        asked = [(request.method, request.path) for request in service.requests]
    assert asked[:2] == [("POST", "/auth/exchange_user_api_key"), ("GET", "/v1/models")]
    assert output.startswith(b"InternalServerError"), output
