"""Adapters for agents that are command-line programs: four pure pieces, and the loop that runs them.

An adapter gives ``spec``, ``plan``, ``parser`` and ``classify``. What they share with other agents is
``AgentAdapter``'s; here are the executable, its environment and its child process.
"""

import abc
import asyncio
import os
import time
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path

from dragoman.protocol.clocks import Clocks
from dragoman.protocol.errors import invalid_fields
from dragoman.sdk._agents.agent import AgentAdapter
from dragoman.sdk._agents.agent_run import HOOK_FAILED
from dragoman.sdk._detection.agent import (
    VersionCache,
    detect_agent,
    locate,
    program_environment,
    skills_dir,
    start_problem,
)
from dragoman.sdk._detection.checks import Checks, check_program
from dragoman.sdk._encoding.config import as_string
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._output.outcome import Evidence
from dragoman.sdk._output.parser import Parser, Report, Terminal
from dragoman.sdk._request.job import Job, Plan
from dragoman.sdk._request.settings import Settings, read_skills
from dragoman.sdk._run.attempt import Attempt, AttemptEnd, Launch, nothing_spawned
from dragoman.sdk._run.login_lock import LoginLocks, RenewingLogin
from dragoman.sdk._run.login_turn import LoginTurn
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.startup import StartupReports
from dragoman.sdk._run.supervision import FailureError, supervise
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2
from msgspec.structs import replace


class CommandLineAdapter(AgentAdapter):
    """An adapter for a command-line agent. Subclasses set ``spec`` and give the pure pieces."""

    starts_programs = True

    @abc.abstractmethod
    def parser(self, job: Job) -> Parser:
        """Return the parser of the output of this attempt."""

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """Bring about what must be there before the agent is started, such as a server that runs share.

        It counts as start-up: it is cancelled when the run is, or when its start-up limit is over. What it
        starts and is to outlive the run, ``close`` ends.

        Returns:
            Variables to add to it; they win over all others.

        Raises:
            FailureError: it cannot be brought about; the run fails with what it says.
        """
        del job, env
        return {}

    def startup_reason(self, job: Job) -> str:
        """Return what ``prepare`` waits for, for people, e.g. "its gateway to answer". Asked every few seconds."""
        del job
        return f"what {self.spec.label} needs to start"

    def renewing_login(self, job: Job, env: Mapping[str, str]) -> RenewingLogin | None:
        """Return the stored login that the agent would use with these variables, if the agent renews it by itself.

        Runs with the same one start one after the other while it is due. Looks at files only, and is quick.
        """
        del job, env
        return None

    async def complete(self, job: Job, env: Mapping[str, str], report: Report, began_at: float) -> None:
        """Add to what the agent said what it only keeps, such as its usage in files of its own.

        Called when the agent has gone, however it ended. Quick; what cannot be found out is left as it is.

        Args:
            job: the attempt.
            env: what the agent's environment was.
            report: what the agent said.
            began_at: when the attempt began, in Unix seconds.
        """

    async def finish(self, job: Job, env: Mapping[str, str], report: Report) -> bool:
        """End what an attempt has left in a server that runs share. Called once for each, however it ended.

        Args:
            job: the attempt.
            env: the agent's whole environment, as ``prepare`` got it.
            report: what was learned; without a terminal, the agent did not report its end.

        Returns:
            Whether it is certain that nothing of the attempt is left there.
        """
        del job, env, report
        return True

    # What the SDK calls.

    @cached_property
    def versions(self) -> VersionCache:
        """The versions already asked for."""
        return VersionCache()

    @cached_property
    def login_locks(self) -> LoginLocks:
        """The turns of runs that share a login."""
        return LoginLocks()

    def surroundings(self, requested: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a run would get: a login by one that it does not inherit would be none."""
        return program_environment(self.spec, struct_pb2.Struct(), requested)

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Look for the agent."""
        found = await detect_agent(self.spec, self.versions, self.auth, env, as_string(config.get("command"), ""))
        self.selected_model(env).add_to(found)
        return found

    async def check_agent(self, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks) -> None:
        """Check that the program can be used."""
        found = await self.look(env, config)
        if (problem := await start_problem(self.spec, env, found)) is not None:
            found.problems.append(problem)
        check_program(self.spec, found, env, config, checks)

    async def locate(self, settings: Settings, env: Mapping[str, str]) -> tuple[str, str]:
        """Return the agent's executable and version."""
        variables = {**os.environ, **settings.config_env, **env}
        found = await locate(self.spec, self.versions, variables, settings.command, is_for_run=True)
        command = settings.command or (self.spec.executables[0] if self.spec.executables else "")
        return found.executable or command, found.version

    async def list_skills(self, request: adapter_pb2.ListSkillsRequest) -> adapter_pb2.ListSkillsResponse:
        """List the skills that the agent finds by itself: its user's, and those of the workspace."""
        own = skills_dir(self.spec, {**os.environ, **request.env})
        roots = [own] if own is not None else []
        if request.workspace.cwd and self.spec.skill_layout:
            roots.append(Path(request.workspace.cwd) / self.spec.skill_layout.removesuffix("/{name}"))
        from dragoman.sdk._skills.sync import list_directory  # noqa: PLC0415 - no run needs it

        found = [entry for root in roots for entry in list_directory(root)]
        return adapter_pb2.ListSkillsResponse(native=self.spec.has(pb.FEATURE_NATIVE_SKILLS), skills=found)

    async def sync_skills(self, request: adapter_pb2.SyncSkillsRequest) -> adapter_pb2.SyncSkillsResponse:
        """Put skills into the agent's own directory, and take away what was put there before."""
        root = skills_dir(self.spec, {**os.environ, **request.env})
        if root is None:
            return await super().sync_skills(request)
        skills, wrong = read_skills(request.skills)
        if wrong:
            raise invalid_fields(wrong)
        from dragoman.sdk._skills.sync import sync_directory  # noqa: PLC0415 - as above

        synced = await asyncio.to_thread(sync_directory, root, skills)
        return adapter_pb2.SyncSkillsResponse(skills=synced.skills, warnings=synced.warnings)

    async def attempt(self, run: Run, job: Job, plan: Plan, env: Mapping[str, str], clocks: Clocks) -> AttemptEnd:
        """Run the program once, and clear up after it."""
        return await _ProgramAttempt(self, run, job, env, clocks).go(plan)


class _ProgramAttempt:
    """One attempt of a program: what must be there before it, its login's turn, the program, and what it leaves."""

    def __init__(
        self, adapter: CommandLineAdapter, run: Run, job: Job, env: Mapping[str, str], clocks: Clocks
    ) -> None:
        self._adapter = adapter
        self._run = run
        self._job = job
        self._env = env
        self._clocks = clocks
        self._parser = adapter.parser(job)

    async def go(self, plan: Plan) -> AttemptEnd:
        """Run the program, and clear up after it."""
        try:
            end = await self._attempt(plan)
        finally:
            is_clear = await self._finish()
        return end if is_clear else replace(end, tree_confirmed_dead=False)

    async def _attempt(self, plan: Plan) -> AttemptEnd:
        adapter, run, job, clocks = self._adapter, self._run, self._job, self._clocks
        clocks.limits = replace(clocks.limits, unread_s=adapter.spec.unread_s)
        clocks.spawned(asyncio.get_running_loop().time())
        began_at = time.time()
        resumed = job.session.resumes
        turn = LoginTurn(run, adapter.login_locks, self._renewing_login)
        with StartupReports(run, clocks) as reports:
            try:
                reports.waiting_for(partial(adapter.startup_reason, job))
                preparing = adapter.prepare(job, self._env)
                added, stopped = await supervise(run, clocks, preparing, asyncio.Event(), job.settings.grace_s)
                reports.waiting_for(None)
                if stopped is None and not run.cancellation.is_requested:
                    stopped = await turn.wait(clocks, reports, job.settings.grace_s)
            except FailureError as error:
                report = Report(terminal=Terminal(succeeded=False, failure=error.info))
                return nothing_spawned(Evidence(report, resumed=resumed))
            if stopped is not None or run.cancellation.is_requested:
                turn.release()
                clock = stopped.clock if stopped else None
                evidence = Evidence(
                    Report(), stopped_by=clock, cancelled=run.cancellation.is_requested, resumed=resumed
                )
                return nothing_spawned(evidence)
            if adapter.spec.needs_terminal:  # any other program may say nothing until it ends
                reports.waiting_for(lambda: "the agent's first output")
            environment = {**self._env, **(added or {})}
            launch = Launch(job, plan, self._parser, environment, adapter.spec.linger_s, adapter.spec.native_protocol)
            attempt = Attempt(run, launch, clocks)
            try:
                with run.observed(turn.observe):
                    end = await attempt.go()
            finally:
                turn.release()
        await self._complete(end.evidence.report, began_at)
        return end

    # The hooks: what the run has done counts, whatever they raise.

    def _renewing_login(self) -> RenewingLogin | None:
        try:
            return self._adapter.renewing_login(self._job, self._env)
        except Exception as error:  # noqa: BLE001 - a run without the lock is better than none
            self._report(error, "renewing_login", "runs that share a login may meet")
            return None

    async def _complete(self, report: Report, began_at: float) -> None:
        try:
            await self._adapter.complete(self._job, self._env, report, began_at)
        except Exception as error:  # noqa: BLE001 - as above
            self._report(error, "complete", "what only the agent's files hold may be missing")

    async def _finish(self) -> bool:
        try:
            return await self._adapter.finish(self._job, self._env, self._parser.report)
        except Exception as error:  # noqa: BLE001 - as above
            self._report(error, "finish", "it is not certain that nothing of the run is left")
            return False

    def _report(self, error: Exception, hook: str, consequence: str) -> None:
        self._run.faults.report(error, self._adapter, HOOK_FAILED, hook, consequence)
