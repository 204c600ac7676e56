"""The real opencode through its adapter: what all agents must stand, and what only it does."""

import shutil
from pathlib import Path

import pytest
from dragoman.adapters.opencode import adapter
from dragoman.adapters.opencode.adapter import INHERITED
from dragoman.testkit.families.opencode import OPENCODE as FAMILY
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import BIN, Failing, Recipe
from tests.agents.suite import AgentSuite

pytestmark = pytest.mark.agents

OPENCODE = Recipe(
    make=adapter,
    family=FAMILY,
    executable="opencode",
    unknown_session="ses_0000000000000000000000000",
    skill_tool=True,
    own_files=[".local/share/opencode", ".local/state/opencode", ".cache/opencode"],
    unset=INHERITED,
    lacks=["refusal_message", "usage_when_cancelled"],
    tested=api.TEST_STATUS_PASS,
    idle_s=12,
    wall_s=8,
    failures={
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "acp_error_-32603"),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "acp_error_-32603"),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "acp_error_-32603"),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "acp_error_-32603"),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "acp_error_-32603"),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "acp_error_-32603"),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "acp_error_-32603"),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "acp_error_-32603"),
        "REFUSAL": Failing(pb.FAILURE_KIND_MODEL_REFUSED, "acp_refusal"),
    },
)


class TestOpencode(AgentSuite):
    """Everything that all agents must stand."""

    recipe = OPENCODE

    @pytest.fixture(autouse=True)
    def ripgrep(self, tmp_path: Path) -> None:
        """Lay out the program that opencode would else fetch from GitHub when it first looks into directories."""
        others = sorted(BIN.parent.glob("codex/node_modules/@openai/codex-linux-*/vendor/*-linux-*/codex-path/rg"))
        found = shutil.which("rg") or next(map(str, others), "")
        folder = tmp_path / "home" / ".cache" / "opencode" / "bin"
        folder.mkdir(parents=True)
        if found:
            (folder / "rg").symlink_to(found)
