"""The real opencode through its adapter: what all agents must stand, and what only it does.

All tests of a class share one home, as opencode takes seconds to lay one out; but for two runs at once, which may
be the first in theirs.
"""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from dragoman.adapters.opencode import adapter
from dragoman.testkit.model_server.script import Scenario, Tool, call, say
from dragoman.testkit.profiles.opencode import OPENCODE as FAMILY
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import BIN, TEST_S, Failing, Harness, Recipe, ServedAdapter, Visit, answering, words_server
from tests.agents.issuer import SECRETS, Issuer, intercepting
from tests.agents.several import QuietSuite
from tests.agents.suite import ALLOWED, ASKED, SharedAdapter, resuming

# opencode tries again for more than a minute before it gives up on the service of its model.
pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]


@asynccontextmanager
async def issuer_of(harness: Harness) -> AsyncIterator[tuple[dict[str, str], Visit]]:
    """Be OpenAI; yield an environment that leads there, and what enters the code."""
    issuer = Issuer()
    async with leading_to(issuer, harness) as env:
        yield env, issuer.visit


@asynccontextmanager
async def leading_to(issuer: Issuer, harness: Harness) -> AsyncIterator[dict[str, str]]:
    """Lead to an issuer; yield the environment for that, with a store of logins of its own."""
    async with intercepting(harness.root, ("auth.openai.com",), issuer.answer) as leading_here:
        env = {**harness.env, **leading_here, "XDG_DATA_HOME": str(harness.root / "data")}
        del env["OPENCODE_DISABLE_DEFAULT_PLUGINS"]
        yield env


OPENCODE = Recipe(
    make=adapter,
    billing=pb.BILLING_TYPE_UNSPECIFIED,
    family=FAMILY,
    executable="opencode",
    unknown_session="ses_0000000000000000000000000",
    skill_tool=True,
    own_files=[".local/share/opencode", ".local/state/opencode", ".cache/opencode"],
    mcp_tool="words_count",
    issuer=issuer_of,
    unset=adapter().spec.inherit,
    lacks=["refusal_message", "usage_when_cancelled"],
    tested=api.TEST_STATUS_PASS,
    cannot={
        "test_a_cut_that_passes_leaves_one_answer": "it continues in the same part, and does not report it",
    },
    idle_s=20,
    wall_s=5,
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "acp_error_-32603", 400),
        "CUT_END": Failing(pb.FAILURE_KIND_NO_RESULT, "acp_no_progress"),
        "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "opencode_length"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "acp_error_-32603", 401),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "acp_error_-32603", 429),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "acp_error_-32603", 503),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "acp_error_-32603", 500),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "acp_error_-32603"),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "acp_error_-32603"),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "acp_error_-32603", 429),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "acp_error_-32603", 404),
        "REFUSAL": Failing(pb.FAILURE_KIND_MODEL_REFUSED, "acp_refusal"),
    },
)


class TestOpencode(SharedAdapter, QuietSuite):
    """Everything that all agents must stand."""

    recipe = OPENCODE
    scenarios = (
        Scenario(
            "EDIT",
            "changes a file, then reports",
            (
                call(Tool("read", {"path": "{cwd}/README.md"})),
                call(Tool("edit", {"path": "{cwd}/README.md", "old": "A workspace.", "new": "My workspace."})),
                say("Done: {tool_result:-1|nothing}"),
            ),
        ),
    )

    @pytest.fixture
    async def harness(
        self,
        served: ServedAdapter,
        tmp_path: Path,
        tmp_path_factory: pytest.TempPathFactory,
        monkeypatch: pytest.MonkeyPatch,
        request: pytest.FixtureRequest,
    ) -> AsyncIterator[Harness]:
        for name in adapter().spec.inherit:
            monkeypatch.delenv(name, raising=False)
        if request.node.name == "test_two_runs_at_once":
            async with ServedAdapter.serve(OPENCODE, (), tmp_path_factory.mktemp("own")) as own:
                lay_out_ripgrep(own.isolation.home)
                yield Harness(own, tmp_path)
        else:
            lay_out_ripgrep(served.isolation.home)
            yield Harness(served, tmp_path)

    async def test_a_login_is_stored_and_not_reported(self, harness: Harness) -> None:
        issuer = Issuer()
        async with leading_to(issuer, harness) as env, aclosing(harness.client.login("opencode", env=env)) as steps:
            begun = await anext(steps)
            assert begun.prompt.user_code == "ABCD-1234"
            issuer.enter()
            shown = str([begun, *[step async for step in steps]])
        assert SECRETS[0] in (harness.root / "data" / "opencode" / "auth.json").read_text()
        assert not any(secret in shown for secret in SECRETS)

    async def test_a_login_that_is_refused(self, harness: Harness) -> None:
        issuer = Issuer()
        async with leading_to(issuer, harness) as env, aclosing(harness.client.login("opencode", env=env)) as steps:
            assert (await anext(steps)).HasField("prompt")
            issuer.status = "400 Bad Request"
            (ended,) = [step async for step in steps]
        assert ended.outcome.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert not (harness.root / "data" / "opencode" / "auth.json").exists()

    async def test_the_model_is_asked_once(self, harness: Harness) -> None:
        await harness.run("MOCK_TEXT")
        assert len(harness.model_requests) == 1, "there was a call for a title"

    async def test_the_model_is_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="scripted/scripted-2")
        assert harness.conversation().model == "scripted-2"
        assert seen.result.model == "scripted/scripted-2"

    async def test_a_session_goes_on_with_another_model(self, harness: Harness) -> None:
        first = await harness.run("MOCK_TEXT word=plover")
        handle = first.result.session.handle
        await harness.run("MOCK_RECALL", session=resuming(handle), model="scripted/scripted-2")
        assert [harness.conversation(number).model for number in (0, 1)] == ["scripted-1", "scripted-2"]

    async def test_an_unknown_model_ends_the_run_before_any_question(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="scripted/made-up")
        assert seen.result.failure.kind == pb.FAILURE_KIND_MODEL_NOT_FOUND
        assert "scripted/scripted-1" in seen.result.failure.message
        assert harness.model_requests == []

    async def test_without_any_model_it_never_takes_its_makers(self, harness: Harness, tmp_path: Path) -> None:
        # Nothing would get out, should it try.
        closed = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        # Its makers' models are in the catalogue that it was built with.
        own = {"XDG_CONFIG_HOME": str(tmp_path / "empty"), "OPENCODE_MODELS_PATH": str(tmp_path / "none.json")}
        env = {**own, "NO_PROXY": "127.0.0.1,localhost", **closed}
        seen = await harness.run("MOCK_TEXT", env=env)
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert seen.result.failure.kind == pb.FAILURE_KIND_MODEL_NOT_FOUND
        assert "opencode/" not in str([session.model for session in seen.of("session")])
        assert harness.model_requests == []

    async def test_usage_is_summed_over_all_calls_of_the_model(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_WRITE path=a.txt", permissions=ALLOWED, leaves=["a.txt"])
        usage = seen.result.usage
        assert len(harness.model_requests) == 2
        assert (usage.tokens.input, usage.tokens.output, usage.tokens.cache_read) == (800, 84, 1600)
        assert usage.cost.amount == "0.001128"
        assert [model.model for model in usage.models] == ["scripted/scripted-1"]

    async def test_an_edit_is_reported_with_its_diff(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_EDIT", permissions=ALLOWED, leaves=["README.md"])
        (change,) = seen.of("file_change")
        assert change.operation == pb.FILE_OPERATION_MODIFY
        assert "-A workspace." in change.diff
        assert "+My workspace." in change.diff

    async def test_a_slash_is_text(self, harness: Harness) -> None:
        seen = await harness.run("  /nothing-of-that-name MOCK_TEXT")
        assert seen.text == "Hello from the scripted model."

    async def test_a_slash_is_a_command_where_it_may_be(self, harness: Harness) -> None:
        seen = await harness.run("/nothing-of-that-name MOCK_TEXT", config={"allowSlashCommands": True})
        assert harness.model_requests == []
        assert seen.result.outcome == pb.OUTCOME_FAILED

    async def test_a_project_cannot_allow_itself_anything(self, harness: Harness) -> None:
        everything = {"*": "allow", "edit": "allow", "bash": {"*": "allow", "touch *": "allow"}}
        build = {"build": {"permission": everything}}
        settings = {"permission": everything, "agent": build, "mode": build, "tools": {"bash": True}}
        (harness.workspace / "opencode.json").write_text(json.dumps(settings))
        seen = await harness.run('MOCK_SHELL command="touch a.txt"', leaves=["opencode.json"])
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_DENIED]
        assert "permission_denied" in seen.notices

    async def test_a_file_elsewhere_is_asked_about(self, harness: Harness, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "a.txt").write_text("outside")
        seen = await harness.run(
            "MOCK_READ path=../elsewhere/a.txt", permissions=ASKED, react=answering("reject_once")
        )
        assert seen.of("input_request")
        assert "outside" not in seen.text

    async def test_nested_agents_only_read_and_no_run_waits_for_ever(self, harness: Harness) -> None:
        seen = await harness.run(
            'MOCK_SUBAGENT task="MOCK_WRITE path=b.txt"', permissions=ASKED, react=answering("allow_once")
        )
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert [asked.subject.tool_name for asked in seen.of("input_request")] == ["task"]
        # Main agent, nested one, its second word, and the report.
        assert len(harness.model_requests) == 4
        assert seen.result.usage.tokens.input == 1600

    async def test_nested_agents_may_do_all_where_all_is_allowed(self, harness: Harness) -> None:
        seen = await harness.run('MOCK_SUBAGENT task="MOCK_WRITE path=b.txt"', permissions=ALLOWED, leaves=["b.txt"])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    async def test_a_tool_server(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_COUNT", mcp_servers=[words_server()], permissions=ALLOWED)
        assert seen.text.startswith("Counted: ")
        assert "nothing" not in seen.text
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_COMPLETED]

    async def test_the_planning_agent_edits_nothing(self, harness: Harness) -> None:
        plan = pb.Permissions(auto_approve=True, native_mode="plan")
        seen = await harness.run("MOCK_WRITE path=a.txt", permissions=plan)
        assert "unavailable tool 'write'" in seen.text
        assert seen.of("session")[-1].mode == "plan"

    async def test_models_are_listed(self, harness: Harness) -> None:
        listed = await harness.client.list_models(harness.adapter, env=harness.env)
        assert [model.id for model in listed.models] == ["scripted/scripted-1", "scripted/scripted-2"]
        assert listed.source == api.MODEL_SOURCE_AGENT

    async def test_without_a_provider_it_is_logged_out(self, harness: Harness, tmp_path: Path) -> None:
        env = {**harness.env, "XDG_CONFIG_HOME": str(tmp_path / "empty")}
        (found,) = await harness.client.detect(harness.adapter, env=env)
        assert found.auth == api.AUTH_STATE_MISSING
        assert "opencode auth login" in found.hint


def lay_out_ripgrep(home: Path) -> None:
    """Lay out the program that opencode would else fetch from GitHub when it first looks into directories."""
    others = sorted(BIN.parent.glob("codex/node_modules/@openai/codex-linux-*/vendor/*-linux-*/codex-path/rg"))
    found = shutil.which("rg") or next(map(str, others), "")
    link = home / ".cache" / "opencode" / "bin" / "rg"
    link.parent.mkdir(parents=True, exist_ok=True)
    if found and not link.exists():
        link.symlink_to(found)
