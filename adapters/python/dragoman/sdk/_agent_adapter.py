"""What all agents share, programs or not: reading the request, sessions with one fresh retry, templates, the result.

``CommandLineAdapter`` is for agents that are programs, ``InProcessAdapter`` for those that are asked over a network.
"""

import abc
import os
import shutil
import tempfile
import uuid
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from dragoman.guard.tree import MARKER
from dragoman.protocol.errors import FieldViolation, invalid_fields
from dragoman.sdk._adapter import Adapter, AdapterInfo
from dragoman.sdk._attempt import AttemptEnd, nothing_spawned
from dragoman.sdk._checks import Checks, check_agent, check_environment
from dragoman.sdk._clocks import Clocks
from dragoman.sdk._config import ConfigSchema
from dragoman.sdk._environment import build_environment, login_variables, secret_values
from dragoman.sdk._job import Job, Plan, environment_inputs, masked_argv, render_prompt
from dragoman.sdk._json import JsonValue
from dragoman.sdk._login import AuthFinding, inherited_keys, keys_to_withhold, withheld_message
from dragoman.sdk._outcome import Evidence, Verdict, conclude, failure_message, signal_name
from dragoman.sdk._parser import FailureInfo, Report, Terminal
from dragoman.sdk._placement import default_store, placed
from dragoman.sdk._placement_plan import PlacementError
from dragoman.sdk._redaction import Redactor
from dragoman.sdk._run import Run
from dragoman.sdk._secret_patterns import REDACTED
from dragoman.sdk._sessions import SessionPlan, make_handle, plan_session, session_update
from dragoman.sdk._settings import Settings, limits_in_force, read_settings
from dragoman.sdk._skill_strategy import (
    SkillStrategy,
    may_place,
    placing_note,
    prompt_section,
    skill_note,
    strategy_in_force,
    workspace_skills,
)
from dragoman.sdk._skills import SkillError, lay_out, plan_skill_directory
from dragoman.sdk._values import struct_to_dict
from dragoman.sdk.rules import wrong_mcp_servers
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_DIRECTORY_PREFIX = "dragoman-run-"
_LONGEST_DIRECTORY = 60
"""Bytes. Agents put sockets below their TMPDIR, and a socket's path has at most 103 on some systems."""


class AgentAdapter(Adapter):
    """An adapter for an agent of any kind. Subclass one of its two subclasses."""

    needs_terminal: ClassVar[bool] = True
    """Whether the agent always says in its output how it ended. If not, exit code 0 is success."""
    skill_strategy: ClassVar[SkillStrategy | None] = None
    """The way a run's skills go. None: a private directory if there is a ``skill_layout``, else the plan's way."""
    skill_layout: ClassVar[str] = ""
    """Where a skill goes below its private directory, e.g. ``.claude/skills/{name}``."""
    inherit: ClassVar[Collection[str]] = ()
    """Variables, beyond the usual ones, that are passed on from the adapter's own environment."""
    strip: ClassVar[Collection[str]] = ()
    """Variables that are never passed on, e.g. those by which an agent knows that it runs inside itself."""
    api_key_variables: ClassVar[tuple[str, ...]] = ()
    """Variables with an API key: found in the environment they are a warning, as they are billed. Those of the
    adapter's own environment are not passed on where ``auth`` finds a subscription in use."""
    login_hint: ClassVar[str] = ""
    """How to log in, e.g. "run `claude auth login`"."""
    install_hint: ClassVar[str] = ""
    """How to install the agent."""
    live_prompt: ClassVar[str] = "Reply with exactly: {nonce}"
    """What a LIVE test asks. The answer must hold the nonce."""

    @abc.abstractmethod
    def info(self) -> AdapterInfo:
        """Say what the adapter is. Called once."""

    @abc.abstractmethod
    def plan(self, job: Job) -> Plan:
        """Say how to run the agent. Pure."""

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what went wrong, where this agent's ways tell more than its own last word. Pure."""
        del evidence
        return None

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` has the shape of this agent's session ids."""
        return bool(text) and len(text) <= 256 and not text.startswith("-") and text.isprintable()

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterable[FieldViolation]:
        """Yield what is wrong with a request for this agent. Pure; what several agents refuse is in ``sdk.rules``."""
        del request, settings
        return ()

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether the agent is logged in: one look, quick, without spending."""
        del executable, env
        return AuthFinding(adapter_pb2.AUTH_STATE_UNKNOWN)

    def extra_checks(
        self, config: Mapping[str, JsonValue], env: Mapping[str, str]
    ) -> Sequence[adapter_pb2.EnvironmentCheck]:
        """Return checks that only this agent knows. Pure and quick."""
        del config, env
        return ()

    # What the SDK calls.

    @abc.abstractmethod
    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Look for the agent.

        Args:
            env: the adapter's own environment with that of the request over it.
            config: the request's, unchecked.
        """

    async def check_agent(self, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks) -> None:
        """Check that the agent can be used, for TestEnvironment; see ``look`` for the arguments."""
        await check_agent(self, env, config, checks)

    @abc.abstractmethod
    async def attempt(self, run: Run, job: Job, plan: Plan, env: Mapping[str, str], clocks: Clocks) -> AttemptEnd:
        """Have one attempt at a run that was announced; nothing of it is left when this returns."""

    @cached_property
    def _info(self) -> AdapterInfo:
        info = self.info()
        # What is passed on to it by name is what it logs in with.
        return info if info.login_variables else replace(info, login_variables=login_variables(self.inherit))

    @cached_property
    def schema(self) -> ConfigSchema:
        """The schema of ``config``, compiled once."""
        return ConfigSchema(self._info.config_schema)

    def describe(self) -> AdapterInfo:
        """Say what the adapter is."""
        return self._info

    def accept(self, request: adapter_pb2.ExecuteRequest) -> Settings:
        """Check the request and read its settings."""
        settings = read_settings(request, self._info, self.schema)
        wrong = [*wrong_mcp_servers(request.mcp_servers), *self.wrong_fields(request, settings)]
        if wrong:
            raise invalid_fields(wrong)
        session = plan_session(
            request,
            adapter=self._info.type,
            aliases=tuple(self._info.aliases),
            cwd=settings.cwd,
            is_session_id=self.is_session_id,
        )
        self._check_skills(settings)
        return replace(settings, session=session)

    def _check_skills(self, settings: Settings) -> None:
        strategy = strategy_in_force(self.skill_strategy, self.skill_layout, settings.config)
        try:
            workspace_skills(strategy, settings.skills, self.skill_layout)
        except SkillError as error:
            raise invalid_fields([FieldViolation("skills", str(error))]) from error

    def session_in_use(self, accepted: Any) -> str:
        """Return the session that is resumed; a copy leaves it alone."""
        session: SessionPlan = accepted.session
        return session.native_id if session.disposition == pb.SESSION_DISPOSITION_RESUME else ""

    async def detect(self, request: adapter_pb2.DetectRequest) -> adapter_pb2.Detection:
        """Look for the agent."""
        return await self.look({**os.environ, **request.env}, struct_to_dict(request.config))

    async def test_environment(
        self, request: adapter_pb2.TestEnvironmentRequest
    ) -> Sequence[adapter_pb2.EnvironmentCheck]:
        """Check a set-up."""
        return await check_environment(self, request)

    async def execute(self, run: Run) -> pb.Result:
        """Do one run: an attempt, and a fresh second one if the session to resume is gone."""
        settings: Settings = run.accepted
        clocks = Clocks(settings.clocks, run.accepted_at)
        marker = uuid.uuid4().hex
        run.redactor = Redactor(secret_values(environment_inputs(run.request, settings, marker)))
        executable, version = await self._locate(settings, run.request.env)
        session = settings.session
        lost = False
        while True:
            with _run_directory() as run_dir:
                job = self._job(run, settings, session, executable, version, run_dir)
                end = await self._announced(run, job, clocks, marker)
            _check_session(run, session, end.evidence.report.session_id)
            verdict = self._conclude(end.evidence)
            if not (verdict.lost_session and session.resumes) or run.cancel_wish.is_asked:
                break
            lost = True
            reason = "the session asked for no longer exists; a new one is begun"
            run.attempt_ended(_attempt_ended(verdict, end, reason))
            session = SessionPlan(pb.SESSION_DISPOSITION_RESUME_REFUSED, reason=reason)
        return self._result(run, job, end, verdict, lost=lost or verdict.lost_session)

    async def _locate(self, settings: Settings, env: Mapping[str, str]) -> tuple[str, str]:
        """Return the agent's executable and version; both empty if it is no program."""
        del settings, env
        return "", ""

    def _job(
        self, run: Run, settings: Settings, session: SessionPlan, executable: str, version: str, run_dir: Path
    ) -> Job:
        request = run.request
        skills = settings.skills
        strategy = strategy_in_force(self.skill_strategy, self.skill_layout, settings.config)
        is_private = strategy is SkillStrategy.PRIVATE_DIRECTORY
        prompt = self._prompt(request, settings, session)[0]
        return Job(
            run_id=run.run_id,
            attempt=run.attempt + 1,
            request=request,
            settings=settings,
            prompt=prompt,
            system_prompt=request.system_prompt,
            instructions=settings.instructions,
            session=session,
            new_session_id=str(uuid.uuid4()),
            executable=executable,
            version=version,
            run_dir=run_dir,
            skills=skills,
            skills_dir=run_dir / "skills" if skills and is_private else None,
            skill_strategy=strategy,
        )

    def _prompt(
        self, request: adapter_pb2.ExecuteRequest, settings: Settings, session: SessionPlan
    ) -> tuple[str, dict[str, int], tuple[str, ...]]:
        strategy = strategy_in_force(self.skill_strategy, self.skill_layout, settings.config)
        skills = prompt_section(strategy, settings.skills)
        return render_prompt(request, settings, resumes=session.resumes, skills=skills)

    async def _announced(self, run: Run, job: Job, clocks: Clocks, marker: str) -> AttemptEnd:
        plan = self._complete(job, self.plan(job))
        _lay_out_files(job, plan, self.skill_layout)
        inputs = environment_inputs(run.request, job.settings, marker)
        temporary = {"TMPDIR": str(job.run_dir / "tmp")}
        env = build_environment(
            inputs, os.environ, strip=self.strip, allow=self.inherit, plan_env={**temporary, **plan.env}
        )
        env, plan = await self._without_keys(job, env, plan)
        run.redactor = Redactor(secret_values(inputs, env))
        warnings = await self._install_skills(job, env)
        self._announce(run, job, plan, env)
        for warning in warnings:
            run.notice(pb.SEVERITY_WARNING, "skill_not_installed", warning)
        return await self._placed(run, job, plan, self.attempt(run, job, plan, env, clocks))

    def _complete(self, job: Job, plan: Plan) -> Plan:
        """Add what the SDK does for every plan: skills that go into the workspace, and notes."""
        files = {**workspace_skills(job.skill_strategy, job.skills, self.skill_layout), **plan.workspace_files}
        notes = (*plan.notes, *skill_note(job.skill_strategy, job.skills), *placing_note(files, job.config))
        return replace(plan, workspace_files=files if may_place(job.config) else {}, notes=notes)

    async def _without_keys(self, job: Job, env: dict[str, str], plan: Plan) -> tuple[dict[str, str], Plan]:
        """Take out keys that nobody asked for and that a subscription makes needless; tell so."""
        given = {*job.settings.config_env, *job.request.env, *plan.env}
        names = inherited_keys(self.api_key_variables, env, os.environ, given)
        withheld, _ = await keys_to_withhold(names, env, partial(self.auth, job.executable))
        if not withheld:
            return env, plan
        kept = {name: value for name, value in env.items() if name not in withheld}
        return kept, replace(plan, notes=(*plan.notes, withheld_message(withheld)))

    async def _install_skills(self, job: Job, env: Mapping[str, str]) -> Sequence[str]:
        """Put skills where the agent keeps its own, if they go that way; return what could not be done."""
        del job, env
        return ()

    async def _placed(self, run: Run, job: Job, plan: Plan, attempt: Coroutine[Any, Any, AttemptEnd]) -> AttemptEnd:
        """Have the attempt with the plan's files in the workspace."""
        try:
            with placed(Path(job.settings.cwd), plan.workspace_files, run.run_id, store=default_store()) as told:
                end = await attempt
        except PlacementError as error:
            attempt.close()
            failure = FailureInfo(pb.FAILURE_KIND_WORKSPACE_FAILED, f"{error}.", code=error.code)
            report = Report(terminal=Terminal(succeeded=False, failure=failure))
            return nothing_spawned(Evidence(report, resumed=job.session.resumes))
        for code, message in told.notices:
            run.notice(pb.SEVERITY_WARNING, code, message)
        return end

    def _announce(self, run: Run, job: Job, plan: Plan, env: Mapping[str, str]) -> None:
        _, sizes, missing = self._prompt(run.request, job.settings, job.session)
        if job.system_prompt:
            sizes["system_prompt"] = len(job.system_prompt.encode())
        if job.instructions is not None:
            sizes["instructions"] = len(job.instructions.text.encode())
        changed = {name: value for name, value in env.items() if os.environ.get(name) != value and name != MARKER}
        started = pb.Started(
            session_disposition=job.session.disposition,
            session_reason=job.session.reason,
            native_session_id=job.session.native_id,
            command=plan.argv[0] if plan.argv else "",
            argv=run.redactor.argv(masked_argv(plan.argv, job.prompt)),
            cwd=job.settings.cwd,
            # The request's own variables are the place for secrets: their names are told, never their values.
            env={**run.redactor.environment(changed), **dict.fromkeys(run.request.env, REDACTED)},
            prompt_bytes=sizes,
            notes=plan.notes,
            agent_version=job.version,
            permissions=job.permissions,
            capabilities=self._info.capabilities,
            limits=limits_in_force(job.settings),
        )
        run.started(started)
        run.state(pb.RUN_PHASE_STARTING)
        for code, message in plan.notices:
            run.notice(pb.SEVERITY_WARNING, code, message)
        for path in missing:
            message = f"The template's {{{{{path}}}}} is not set; it was replaced by nothing."
            run.notice(pb.SEVERITY_INFO, "template_value_missing", message)

    def _conclude(self, evidence: Evidence) -> Verdict:
        return conclude(evidence, self.classify, needs_terminal=self.needs_terminal)

    def _result(self, run: Run, job: Job, end: AttemptEnd, verdict: Verdict, *, lost: bool) -> pb.Result:
        evidence, report = end.evidence, end.evidence.report
        result = pb.Result(
            outcome=verdict.outcome,
            subtype=report.terminal.subtype if report.terminal else "",
            exit_code=evidence.exit_code,
            signal=signal_name(evidence.exit_signal) if evidence.exit_signal else "",
            provider=report.provider,
            model=report.model,
            summary=report.summary,
            raw_json=report.raw_json,
            structured_output_json=report.structured_output_json,
            tree_confirmed_dead=end.tree_confirmed_dead,
        )
        if verdict.failure is not None:
            result.failure.CopyFrom(failure_message(verdict.failure))
        if report.usage is not None:
            result.usage.CopyFrom(report.usage)
        if report.question is not None:
            result.question.CopyFrom(report.question)
        if report.turns is not None:
            run.counters.turns = report.turns
        update = session_update(verdict.outcome, lost=lost, handle=self._handle(job, evidence))
        if update is not None:
            result.session.CopyFrom(update)
        if verdict.outcome != pb.OUTCOME_SUCCEEDED and not report.raw_json:
            result.raw_head, _, result.raw_tail = end.raw.parts()
            result.raw_tail = result.raw_tail or evidence.stderr_tail
        return result

    def _handle(self, job: Job, evidence: Evidence) -> pb.SessionHandle | None:
        report = evidence.report
        if (
            not report.session_id
            or not self._info.has(pb.FEATURE_RESUME)
            or not self.is_session_id(report.session_id)
        ):
            return None
        return make_handle(
            adapter=self._info.type,
            version=self._info.version,
            native_id=report.session_id,
            display_id=report.display_id,
            cwd=job.settings.cwd,
            params=report.session_params,
        )


def _check_session(run: Run, session: SessionPlan, reported: str) -> None:
    """Tell if the agent went on with another session than the one asked for."""
    if session.disposition == pb.SESSION_DISPOSITION_RESUME and reported not in {"", session.native_id}:
        message = f"The agent was asked to resume {session.native_id}, and says that it is in {reported}."
        run.notice(pb.SEVERITY_WARNING, "session_differs", message, "What was said before may be unknown to it.")


def _attempt_ended(verdict: Verdict, end: AttemptEnd, reason: str) -> pb.AttemptEnded:
    ended = pb.AttemptEnded(reason=reason, exit_code=end.evidence.exit_code)
    if verdict.failure is not None:
        ended.failure.CopyFrom(failure_message(verdict.failure))
    ended.session.change = pb.SESSION_CHANGE_CLEAR
    if end.evidence.report.usage is not None:
        ended.usage.CopyFrom(end.evidence.report.usage)
    return ended


def _lay_out_files(job: Job, plan: Plan, skill_layout: str) -> None:
    (job.run_dir / "tmp").mkdir(mode=0o700)
    if job.skills_dir is not None:
        job.skills_dir.mkdir(mode=0o700)
        lay_out(job.skills_dir, plan_skill_directory(job.skills, skill_layout))
    for relative, content in plan.files.items():
        path = job.run_dir / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)


@contextmanager
def _run_directory() -> Iterator[Path]:
    """Make a directory for one attempt, and remove it whatever happens."""
    path = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX))
    if len(os.fsencode(path)) > _LONGEST_DIRECTORY:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX, dir="/tmp"))
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        # An agent may leave directories that even their owner cannot enter.
        for folder, inner, _ in os.walk(path):
            for entry in (Path(folder, name) for name in inner):
                if not entry.is_symlink():
                    entry.chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
