"""opencode's accounts: what it is logged in with, who pays, and a new login."""

import contextlib
from collections.abc import Mapping
from typing import Final

from dragoman.adapters.opencode.device_login import METHOD, log_in
from dragoman.adapters.opencode.login import configured_model, find_billing, find_login, renewing_login
from dragoman.adapters.opencode.usage import database
from dragoman.sdk import Job, Report
from dragoman.sdk.account import AgentProgram, Steps, log_in_by
from dragoman.sdk.acp import AcpAdapter
from dragoman.sdk.detection import AuthFinding, Billing, LoginLocks, RenewingLogin, SelectedModel, probe
from dragoman.v1 import adapter_pb2

_DATABASE_LIMIT_S: Final = 60.0


class WithAccount(AcpAdapter):
    """The part of the adapter that is about accounts."""

    def renewing_login(self, job: Job, env: Mapping[str, str]) -> RenewingLogin | None:
        """Return the stored login that would be used, if it is one that the agent renews."""
        return renewing_login(env, provider=job.settings.model.partition("/")[0])

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether it has a login, a key or a provider of the user's own."""
        del executable
        return find_login(env, self.spec.api_key_variables)

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's own configuration selects: a provider, a slash, and its model."""
        provider, slash, model = configured_model(env).partition("/")
        return SelectedModel(model, provider) if slash else SelectedModel(provider)

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, by the login stored for its provider."""
        return find_billing(env, report.provider, self.spec.api_key_variables)

    def log_in(self, request: adapter_pb2.LoginRequest) -> Steps:
        """Log opencode in at OpenAI with a device code."""
        return log_in_by(self.spec, request, METHOD, self._begin_login)

    async def _begin_login(self, program: AgentProgram) -> Steps:
        await create_database(program.executable, program.env, self.login_locks)
        async with contextlib.aclosing(log_in(program)) as steps:
            async for event in steps:
                yield event


async def create_database(executable: str, env: Mapping[str, str], locks: LoginLocks) -> None:
    """Have opencode create its database alone, if it has none.

    Two that start first at once would both create its tables, and one fail with "Failed query: CREATE TABLE" (1.18).

    Args:
        executable: opencode.
        env: its whole environment.
        locks: the turns of those that share the database.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without a lock it is created nevertheless
            lock = await locks.take(RenewingLogin(database(env)), lambda: None)
            held.callback(lock.release)
        if not database(env).exists():
            await probe([executable, "db", "path"], env, _DATABASE_LIMIT_S)
