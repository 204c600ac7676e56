"""Adapters for agents that are command-line programs: four pure pieces, and the loop that runs them.

An adapter gives ``info``, ``plan``, ``parser`` and ``classify``. What they share with other agents is
``AgentAdapter``'s; here are the executable, its environment and its child process.
"""

import abc
import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from dragoman.protocol.errors import invalid_fields
from dragoman.sdk._agent_adapter import AgentAdapter
from dragoman.sdk._attempt import Attempt, AttemptEnd, nothing_spawned
from dragoman.sdk._checks import Checks, check_program
from dragoman.sdk._clocks import Clocks
from dragoman.sdk._config import as_string
from dragoman.sdk._finding import Versions, config_dir, detect_agent, locate
from dragoman.sdk._job import Job, Plan
from dragoman.sdk._json import JsonValue
from dragoman.sdk._outcome import Evidence, Verdict, spawn_failure
from dragoman.sdk._parser import FailureInfo, Parser, Report, Terminal
from dragoman.sdk._run import Run
from dragoman.sdk._settings import Settings, read_skills
from dragoman.sdk._skill_strategy import SkillStrategy
from dragoman.sdk._skill_sync import list_directory, sync_directory
from dragoman.sdk._supervision import FailureError, supervise
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb


class CommandLineAdapter(AgentAdapter):
    """An adapter for a command-line agent. Subclasses set the class variables and give the pure pieces."""

    executables: ClassVar[tuple[str, ...]] = ()
    """Names to look for on PATH, best first. Empty: ``config.command`` is required."""
    native_protocol: ClassVar[str] = ""
    """The name of the agent's wire format, for NativeFrame.protocol."""
    linger_s: ClassVar[float] = 5.0
    """Seconds that the agent may live on after its last word."""
    config_dir_name: ClassVar[str] = ""
    """The agent's config directory below the home directory, e.g. ``.claude``. Empty: it has none."""
    config_dir_variable: ClassVar[str] = ""
    """The variable that moves it. Empty: there is none."""
    skills_dir_name: ClassVar[str] = ""
    """Where the agent keeps skills, below its config directory. Empty: nowhere."""
    asks_version: ClassVar[bool] = True
    """Whether ``--version`` may be asked. Not of a command that nobody knows."""
    tidy_variables: ClassVar[tuple[str, ...]] = ()
    """Variables that lead elsewhere while it is asked, as the agent makes directories wherever they lead."""

    @abc.abstractmethod
    def parser(self, job: Job) -> Parser:
        """Return what understands the output of this attempt."""

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """Bring about what must be there before the agent is started, such as a server that runs share.

        It counts as start-up: it is cancelled when the run is, or when its start-up limit is over. What it
        starts and is to outlive the run, ``close`` ends.

        Args:
            job: the attempt.
            env: the agent's whole environment.

        Returns:
            Variables to add to it; they win over all others.

        Raises:
            FailureError: it cannot be brought about; the run fails with what it says.
        """
        del job, env
        return {}

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
            report: what was learned; without a terminal, the agent did not say its last word.

        Returns:
            Whether it is certain that nothing of the attempt is left there.
        """
        del job, env, report
        return True

    # What the SDK calls.

    @cached_property
    def versions(self) -> Versions:
        """The versions already asked for."""
        return Versions()

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Look for the agent."""
        return await detect_agent(self, env, as_string(config.get("command"), ""))

    async def check_agent(self, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks) -> None:
        """Check that the program can be used."""
        await check_program(self, env, config, checks)

    async def list_skills(self, request: adapter_pb2.ListSkillsRequest) -> adapter_pb2.ListSkillsResponse:
        """List the skills that the agent finds by itself: its user's, and those of the workspace."""
        native = self._info.has(pb.FEATURE_NATIVE_SKILLS)
        own = self._own_skills({**os.environ, **request.env})
        roots = [own] if own is not None else []
        if request.workspace.cwd and self.skill_layout:
            roots.append(Path(request.workspace.cwd) / self.skill_layout.removesuffix("/{name}"))
        found = [entry for root in roots for entry in list_directory(root)]
        return adapter_pb2.ListSkillsResponse(native=native, skills=found)

    async def sync_skills(self, request: adapter_pb2.SyncSkillsRequest) -> adapter_pb2.SyncSkillsResponse:
        """Put skills into the agent's own directory, and take away what was put there before."""
        root = self._own_skills({**os.environ, **request.env})
        if root is None:
            return await super().sync_skills(request)
        skills, wrong = read_skills(request.skills)
        if wrong:
            raise invalid_fields(wrong)
        synced = await asyncio.to_thread(sync_directory, root, skills)
        return adapter_pb2.SyncSkillsResponse(skills=synced.skills, warnings=synced.warnings)

    def _own_skills(self, env: Mapping[str, str]) -> Path | None:
        directory = config_dir(self, env) if self.skills_dir_name else None
        return directory / self.skills_dir_name if directory is not None else None

    async def _install_skills(self, job: Job, env: Mapping[str, str]) -> Sequence[str]:
        root = self._own_skills(env)
        if not job.skills or job.skill_strategy is not SkillStrategy.CONFIG_DIRECTORY or root is None:
            return ()
        synced = await asyncio.to_thread(sync_directory, root, job.skills, keeps_others=True)
        return synced.warnings

    async def attempt(self, run: Run, job: Job, plan: Plan, env: Mapping[str, str], clocks: Clocks) -> AttemptEnd:
        """Run the program once, and clear up after it."""
        parser = self.parser(job)
        try:
            end = await self._attempt(run, job, plan, env, clocks, parser)
        finally:
            is_clear = await self.finish(job, env, parser.report)
        return end if is_clear else replace(end, tree_confirmed_dead=False)

    async def _attempt(
        self, run: Run, job: Job, plan: Plan, env: Mapping[str, str], clocks: Clocks, parser: Parser
    ) -> AttemptEnd:
        clocks.spawned(asyncio.get_running_loop().time())
        began_at = time.time()
        resumed = job.session.resumes
        try:
            preparing = self.prepare(job, env)
            added, stopped = await supervise(run, clocks, preparing, asyncio.Event(), job.settings.grace_s)
        except FailureError as error:
            report = Report(terminal=Terminal(succeeded=False, failure=error.info))
            return nothing_spawned(Evidence(report, resumed=resumed))
        if stopped is not None or run.cancel_wish.is_asked:
            clock = stopped.clock if stopped else None
            evidence = Evidence(Report(), stopped_by=clock, cancelled=run.cancel_wish.is_asked, resumed=resumed)
            return nothing_spawned(evidence)
        attempt = Attempt(
            run,
            job,
            plan,
            parser,
            {**env, **(added or {})},
            clocks,
            linger_s=self.linger_s,
            native_protocol=self.native_protocol,
        )
        end = await attempt.go()
        await self.complete(job, env, end.evidence.report, began_at)
        return end

    async def _locate(self, settings: Settings, env: Mapping[str, str]) -> tuple[str, str]:
        found = await locate(self, {**os.environ, **settings.config_env, **env}, settings.command)
        wanted = settings.command or (self.executables[0] if self.executables else "")
        return found.executable or wanted, found.version

    def _conclude(self, evidence: Evidence) -> Verdict:
        if evidence.spawn_error == "ENOENT" and self.install_hint:
            failure = spawn_failure("ENOENT", evidence.command)
            mended = FailureInfo(failure.kind, f"{failure.message} {self.install_hint}", code=failure.code)
            if not evidence.cancelled:
                return Verdict(pb.OUTCOME_FAILED, mended)
        return super()._conclude(evidence)
