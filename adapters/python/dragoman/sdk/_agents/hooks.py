"""What the SDK asks of an agent of any kind: data in ``spec``, and functions that have an answer for most agents."""

import abc
import os
import re
from collections.abc import Iterable, Mapping

from dragoman.protocol.clocks import Clocks
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk._detection.agent import SelectedModel
from dragoman.sdk._detection.auth import AuthFinding
from dragoman.sdk._detection.checks import Checks, check_agent
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._output.billing import Billing, key_billing
from dragoman.sdk._output.outcome import Evidence
from dragoman.sdk._output.parser import FailureInfo, Report
from dragoman.sdk._request.job import Job, Plan
from dragoman.sdk._request.sessions import is_uuid
from dragoman.sdk._request.settings import Settings
from dragoman.sdk._run.attempt import AttemptEnd
from dragoman.sdk._run.run import Run
from dragoman.sdk.spec import AgentSpec, SessionIds
from dragoman.v1 import adapter_pb2


class AgentHooks(abc.ABC):
    """What an adapter says of its agent."""

    spec: AgentSpec
    """What the adapter declares: ``spec = agent_spec(__package__)``."""

    @abc.abstractmethod
    def plan(self, job: Job) -> Plan:
        """Return how to run the agent. Pure."""

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return what went wrong, where this agent's conventions are more precise than its final message. Pure."""
        del evidence
        return None

    def is_session_id(self, text: str) -> bool:
        """Return whether ``text`` has the shape of this agent's session ids."""
        if self.spec.session_id_pattern and not re.fullmatch(self.spec.session_id_pattern, text):
            return False
        if self.spec.session_ids is SessionIds.PRINTABLE:
            return bool(text) and len(text) <= 256 and not text.startswith("-") and text.isprintable()
        return is_uuid(text, lower_case=self.spec.session_ids is SessionIds.LOWER_CASE_UUID)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterable[FieldViolation]:
        """Yield what is wrong with a request for this agent. Pure; what several agents refuse is in ``sdk.rules``."""
        del request, settings
        return ()

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether the agent is logged in: one look, quick, without spending."""
        del executable, env
        return AuthFinding(adapter_pb2.AUTH_STATE_UNKNOWN)

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return the model and provider that the agent's own files and variables select, for Detect.

        Quick: a look at files, no program is started. The files hold anything; texts that are no names are left out.
        """
        del env
        return SelectedModel()

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how for an attempt, where the agent has not said so itself.

        Asked after the attempt. Quick: a look at variables and files, no program is started.
        """
        return key_billing(self.spec.api_key_variables, env, report.provider)

    def extra_checks(self, config: Mapping[str, JsonValue], env: Mapping[str, str], checks: Checks) -> None:  # noqa: B027 - most agents have none
        """Add checks that only this agent knows. Pure and quick."""

    # What agents of one kind have in common.

    @abc.abstractmethod
    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Look for the agent.

        Args:
            env: what ``surroundings`` returns.
            config: the request's, unchecked.
        """

    def surroundings(self, requested: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that ``look`` and ``check_agent`` get: the adapter's, and the request's over them."""
        return {**os.environ, **requested}

    async def check_agent(self, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks) -> None:
        """Check that the agent can be used, for TestEnvironment; see ``look`` for the arguments."""
        check_agent(self.spec, await self.look(env, config), checks)

    async def locate(self, settings: Settings, env: Mapping[str, str]) -> tuple[str, str]:
        """Return the agent's executable and version; both empty if it is no program."""
        del settings, env
        return "", ""

    @abc.abstractmethod
    async def attempt(self, run: Run, job: Job, plan: Plan, env: Mapping[str, str], clocks: Clocks) -> AttemptEnd:
        """Have one attempt at a run that was announced; nothing of it is left when this returns."""
