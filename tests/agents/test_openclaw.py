"""The real OpenClaw through its adapter: what all agents must stand, and what only it does.

All tests share one gateway, which takes a quarter of a minute to start. Those in which the model's service refuses a
key have a provider each: OpenClaw then does not ask that one again for a minute or more, for any run.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import ClassVar, Final

import psutil
import pytest
from dragoman.adapters.openclaw import adapter
from dragoman.testkit.profiles.openclaw import MODEL, OPENCLAW
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.agents.conforming import LEAST, RULES, judge, options_for
from tests.agents.harness import PATIENCE_S, Failing, Harness, Recipe, ServedAdapter, answering, when
from tests.agents.several import QuietSuite
from tests.agents.suite import ALLOWED, ASKED, SharedAdapter, is_kind, resuming

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

REFUSED: Final = {"[401]": "first", "[NO_CREDIT]": "second", "fresh_start_fails": "third"}
"""In the names of tests: the provider that OpenClaw does not ask for a while after them."""


SAVED: Final = ".openclaw/agents/main/agent/settings.json"
FEWER_RETRIES: Final = '{{"retry": {{"provider": {{"maxRetries": 3}}}}}}'
"""Of calls of the model; by itself it makes up to ten tries, for a minute and a half."""


def configuration() -> str:
    """Return OpenClaw's, with further providers beside that of all other tests; each is the scripted service."""
    (text,) = OPENCLAW.model_files.values()
    document = json.loads(text.format_map({}))
    providers = document["models"]["providers"]
    providers.update(dict.fromkeys(REFUSED.values(), providers["scripted"]))
    return json.dumps(document).replace("{", "{{").replace("}", "}}")


RECIPE = Recipe(
    make=adapter,
    billing=pb.BILLING_TYPE_UNSPECIFIED,
    family=replace(
        OPENCLAW,
        model_files=dict.fromkeys(OPENCLAW.model_files, configuration()),
        files=dict.fromkeys([SAVED], FEWER_RETRIES),
    ),
    executable="openclaw",
    unknown_session="00000000-0000-4000-8000-000000000000",
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "openclaw_format"),
        "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "openclaw_timeout", retries=True),
        "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "openclaw_output_limit"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "openclaw_auth", 401),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "openclaw_rate_limit", retries=True, first_unseen=True),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "openclaw_server_error", 500, retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "openclaw_timeout", retries=True),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "openclaw_context_overflow"),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "openclaw_billing"),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "openclaw_model_not_found"),
        "REFUSAL": Failing(pb.FAILURE_KIND_MODEL_REFUSED, "openclaw_error"),
    },
    cannot={
        "test_a_prompt_of_300_kb": "it adds the time, and a line about itself; see the test of its own",
        "test_a_silent_tool_is_ended_by_its_own_limit_only": "a command goes into the background after ten seconds",
    },
    lacks=["usage_when_cancelled"],
    tested=api.TEST_STATUS_PASS,  # the key is in its configuration
    idle_s=20,
    wall_s=4,
    grace_s=20,
    own_files=[".npm", ".cache"],  # in the latter its gateway stages copies of its databases, when it likes
    unset=adapter().spec.inherit,
)
WATCHFUL = ("quick_test",)
"""In the names of tests that look at all of the home, where a warm gateway writes whenever it likes."""


class TestOpenClaw(SharedAdapter, QuietSuite):
    """Everything that all agents must stand."""

    recipe: ClassVar[Recipe] = RECIPE

    @pytest.mark.timeout(1500)
    @pytest.mark.proves("conformance kit", features=(), uses=())
    async def test_the_kit_examines_it(self, served: ServedAdapter, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[override]
        """Examine the adapter that all tests share, as each process starts a gateway, which takes long."""
        rules = tuple(name for name in RULES if not name.startswith("process."))
        options = options_for(RECIPE, served, monkeypatch)
        await judge(replace(options, address=served.client.address, command=()), rules, LEAST)

    @pytest.fixture
    async def harness(
        self, served: ServedAdapter, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
    ) -> AsyncIterator[Harness]:
        if any(mark in request.node.name for mark in WATCHFUL):
            async with ServedAdapter.serve(RECIPE, (), tmp_path_factory.mktemp("own")) as own:
                yield Harness(own, tmp_path_factory.mktemp("work"))
            return
        harness = Harness(served, tmp_path_factory.mktemp("work"))
        for mark, provider in REFUSED.items():
            if mark in request.node.name:
                harness.fields["model"] = f"{provider}/{MODEL.partition('/')[2]}"
        yield harness

    async def test_the_gateway_is_kept_warm_and_started_again_when_it_has_died(self, harness: Harness) -> None:
        await harness.run("MOCK_TEXT")
        (first,) = gateways()
        assert (await harness.run("MOCK_TEXT")).result.outcome == pb.OUTCOME_SUCCEEDED
        assert gateways() == [first]
        gateway = psutil.Process(first)
        gateway.kill()
        await asyncio.to_thread(gateway.wait, PATIENCE_S)
        assert (await harness.run("MOCK_TEXT")).result.outcome == pb.OUTCOME_SUCCEEDED
        (second,) = gateways()
        assert second != first

    async def test_the_token_is_in_no_argument_and_no_event(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", include_native=True)
        (gateway,) = gateways()
        token = psutil.Process(gateway).environ()["OPENCLAW_GATEWAY_TOKEN"]
        assert len(token) > 30
        assert all(token not in str(event) for event in seen.events)
        assert all(
            token not in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
        )

    async def test_the_users_configuration_stays_as_it_is(self, harness: Harness) -> None:
        config = harness.isolation.config / "openclaw.json"
        before = config.read_bytes()
        await harness.run("MOCK_WRITE path=a.txt", permissions=ALLOWED, leaves=["a.txt"], model=MODEL)
        assert config.read_bytes() == before

    async def test_a_command_is_asked_about_too(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_SHELL", permissions=ASKED, react=answering("allow_once"))
        (asked,) = seen.of("input_request")
        assert asked.subject.command == "echo shell-ran"
        assert list(asked.subject.paths) == []
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_COMPLETED

    async def test_the_read_only_mode_takes_the_tools_away(self, harness: Harness) -> None:
        allowed = pb.Permissions(native_mode="read-only", auto_approve=True)
        seen = await harness.run("MOCK_WRITE path=a.txt", permissions=allowed)
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_FAILED]

    async def test_a_resumed_session_has_the_mode_of_its_run(self, harness: Harness) -> None:
        strict = pb.Permissions(native_mode="read-only", auto_approve=True)
        first = await harness.run("MOCK_TEXT", permissions=strict)
        handle = resuming(first.result.session.handle)
        await harness.run("MOCK_WRITE path=a.txt", session=handle, permissions=ALLOWED, leaves=["a.txt"])

    async def test_a_model_that_is_not_configured_is_reported(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="no_provider/none")
        assert seen.result.failure.kind == pb.FAILURE_KIND_MODEL_NOT_FOUND
        assert '"no_provider"' in seen.result.failure.message

    async def test_all_of_300_kb_arrive(self, harness: Harness) -> None:
        prompt = "MOCK_ECHO " + "Grüße\u2028" * 34_000
        await harness.run(prompt)
        assert prompt.strip() in harness.conversation_text()

    async def test_two_questions_at_once(self, harness: Harness) -> None:
        seen = await harness.run(
            "MOCK_PARALLEL_WRITE", permissions=ASKED, react=every("allow_once"), leaves=["one.txt", "two.txt"]
        )
        assert len(seen.of("input_request")) == 2

    async def test_a_cancelled_start_of_the_gateway_is_no_loss(self, harness: Harness) -> None:
        env = {"OPENCLAW_STATE_DIR": str(harness.root / "other")}
        react = when(is_kind("started"), lambda stream: stream.cancel(grace_s=1))
        seen = await harness.run("MOCK_TEXT", react=react, env=env)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED


def every(option: str):  # type: ignore[no-untyped-def]  # what `answering` returns
    """Answer all questions alike."""

    async def react(event: pb.AgentEvent, stream: object) -> None:
        if event.WhichOneof("body") == "input_request":
            await stream.respond(event.input_request.id, pb.InputAnswer(option_ids=[option]))  # type: ignore[attr-defined]  # a RunStream

    return react


def gateways() -> list[int]:
    """Return the pids of the gateways, each of which is the child of its guard below this process."""
    found = []
    for guard in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # others come and go
            found += [child.pid for child in guard.children() if "gateway" in child.cmdline()]
    return found
