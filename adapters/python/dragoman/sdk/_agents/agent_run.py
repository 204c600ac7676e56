"""One run of an agent of any kind: its attempts, and the result that comes of the last one."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from dragoman.guard.tree import MARKER
from dragoman.protocol.clocks import Clocks
from dragoman.protocol.failures import is_passing
from dragoman.protocol.identity import new_uuid
from dragoman.protocol.redaction.patterns import REDACTED
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.protocol.texts import utf8_bytes
from dragoman.sdk._agents.accepting import prompt_of
from dragoman.sdk._agents.hooks import AgentHooks
from dragoman.sdk._agents.run_directory import lay_out_files, renew, run_directory
from dragoman.sdk._detection.agent import config_dir
from dragoman.sdk._detection.auth import FindLogin, LoginMemory, inherited_keys, keys_to_withhold, withheld_message
from dragoman.sdk._output.attached import attachments_section
from dragoman.sdk._output.billing import write_billing
from dragoman.sdk._output.outcome import (
    Evidence,
    Verdict,
    conclude,
    failure_message,
    signal_name,
    spawn_failure,
)
from dragoman.sdk._output.parser import FailureInfo, Report
from dragoman.sdk._request.bundled_files import with_bundled_files
from dragoman.sdk._request.environment import build_environment, node_variables, secret_values
from dragoman.sdk._request.job import Job, Plan, environment_inputs, following_request, masked_argv
from dragoman.sdk._request.plan_error import PlanError
from dragoman.sdk._request.sessions import SessionPlan, make_handle, session_update
from dragoman.sdk._request.settings import limits_in_force
from dragoman.sdk._run.attempt import AttemptEnd
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.sent_inputs import NO_SESSION, OUT_OF_BUDGET, RUN_ENDED, TURN_FAILED
from dragoman.sdk._run.turns import counted, total
from dragoman.sdk._skills.strategy import SkillStrategy, skill_note, strategy_in_force
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

HOOK_FAILED = "adapter_hook_failed"
"""The notice's code where an adapter's own code raised, and the run continues without its result."""
_SMALL_REQUEST = 16 * 1024
"""Bytes of a request that is looked through for secrets at once."""
_FEW_SECRETS = 4096
"""Characters of all secrets of a run together that a redactor is made of at once."""
_MOST_MISSING = 50
"""Missing values of templates that a notice lists."""


class AgentRun:
    """One run.

    Args:
        agent: what the adapter says of its agent.
        run: the run, accepted.
        logins: what earlier runs found of the agent's logins.
        marker: marks the processes of the run; see ``dragoman.guard``.
    """

    def __init__(self, agent: AgentHooks, run: Run, logins: LoginMemory, marker: str) -> None:
        self._agent = agent
        self._logins = logins
        self._spec = agent.spec
        self._run = run
        self._clocks = Clocks(run.accepted.clocks, run.accepted_at)
        self._marker = marker
        self._kept: pb.SessionHandle | None = None
        """The session of the last turn that succeeded, unless it was lost since."""
        self._hidden: tuple[str, ...] | None = None
        """The secrets that the run's redactor knows; None before it was given any."""

    async def go(self) -> pb.Result:
        """Have an attempt, and a fresh second one if the session to resume is gone."""
        run, settings = self._run, self._run.accepted
        run.secrets = await _secrets(run.request)
        await self._hide(secret_values(environment_inputs(run.request, settings, self._marker, run.secrets)))
        program = await self._agent.locate(settings, run.request.env)
        session: SessionPlan = settings.session
        lost = False
        while True:
            job, end, verdict = await self._turns(session, program)
            is_first = run.turns.number == 1
            if not (verdict.lost_session and session.resumes and is_first) or run.cancellation.is_requested:
                break
            lost = True
            reason = "the session asked for no longer exists; a new one is begun"
            run.attempt_ended(_attempt_ended(verdict, end, reason))
            session = SessionPlan(pb.SESSION_DISPOSITION_RESUME_REFUSED, reason=reason)
        # From here on nothing is waited for: no input is accepted that could not become a turn.
        run.inputs.drop_all()
        run.sent.close(self._why_last(job, end, verdict))
        run.updates.close()
        return self._result(job, end, verdict, lost=lost or verdict.lost_session)

    async def _turns(self, session: SessionPlan, program: tuple[str, str]) -> tuple[Job, AttemptEnd, Verdict]:
        """Have one attempt: the turn of the prompt, then those of queued inputs. Return how the last one ended."""
        with run_directory() as run_dir:
            job = await self._job(session, program, run_dir)
            while True:
                end = await self._attempt(job)
                _check_session(self._run, job.session, end.evidence.report.session_id)
                verdict = self._conclude(end.evidence)
                following = await self._following(job, end, verdict)
                if following is None:
                    return job, end, verdict
                job = following

    async def _following(self, job: Job, end: AttemptEnd, verdict: Verdict) -> Job | None:
        """Return the turn that begins with the input that has waited longest; None if no turn follows this one."""
        run, report = self._run, end.evidence.report
        run.end_turn()
        handle = self._handle(job, report)
        if verdict.lost_session:
            self._kept = None
        elif verdict.outcome == pb.OUTCOME_SUCCEEDED:
            self._kept = handle or self._kept
        if verdict.outcome != pb.OUTCOME_SUCCEEDED or handle is None or run.cancellation.is_requested:
            return None
        if run.budget is not None and not run.budget.turn_ended(report.usage, another=run.sent.is_waiting):
            return None
        sent = run.sent.begin_turn()
        if sent is None:
            return None
        run.turns.follow(report, run.counters, confirmed_dead=end.tree_confirmed_dead)
        renew(job.run_dir)
        session = SessionPlan(pb.SESSION_DISPOSITION_RESUME, report.session_id)
        following = await self._job(session, (job.executable, job.version), job.run_dir)
        return replace(
            following,
            attempt=job.attempt,
            turn=run.turns.number,
            request=following_request(run.request, sent.text, handle),
            prompt=sent.prompt,
            prompt_bytes={"prompt": utf8_bytes(sent.prompt)},
            missing_values=(),
            attachments=sent.files,  # the first turn got those of the prompt
        )

    def _why_last(self, job: Job, end: AttemptEnd, verdict: Verdict) -> tuple[str, str]:
        """Return why no turn follows, for those whose inputs wait for one."""
        if verdict.outcome != pb.OUTCOME_SUCCEEDED:
            return TURN_FAILED
        if self._run.budget is not None and self._run.budget.is_exceeded:
            return OUT_OF_BUDGET
        is_resumable = self._spec.has(pb.FEATURE_RESUME)
        return NO_SESSION if is_resumable and self._handle(job, end.evidence.report) is None else RUN_ENDED

    # Before the attempt.

    async def _job(self, session: SessionPlan, program: tuple[str, str], run_dir: Path) -> Job:
        run, settings = self._run, self._run.updates.applied(self._run.accepted)
        strategy = strategy_in_force(self._spec.skill_strategy, self._spec.skill_layout)
        # Else the agent reads no files, or there are none to lay out.
        if self._spec.has(pb.FEATURE_WORKSPACE) and (settings.instructions is not None or settings.skills):
            settings = await asyncio.to_thread(with_bundled_files, settings, strategy, run_dir)
        is_private = strategy is SkillStrategy.PRIVATE_DIRECTORY
        attached = run.files.attached if run.files is not None else ()
        if run.files is not None and run.files.directories:
            directories = (*settings.additional_directories, *run.files.directories)
            settings = replace(settings, additional_directories=directories)
        section = attachments_section(attached)
        prompt, sizes, missing = prompt_of(self._spec, run.request, settings, session, section)
        executable, version = program
        return Job(
            run_id=run.run_id,
            attempt=run.attempt + 1,
            request=run.request,
            settings=settings,
            prompt=prompt,
            system_prompt=run.request.system_prompt,
            instructions=settings.instructions,
            session=session,
            new_session_id=new_uuid(),
            executable=executable,
            version=version,
            run_dir=run_dir,
            skills=settings.skills,
            skills_dir=run_dir / "skills" if settings.skills and is_private else None,
            skill_strategy=strategy,
            prompt_bytes=sizes,
            missing_values=missing,
            attachments=attached,
        )

    async def _attempt(self, job: Job) -> AttemptEnd:
        run = self._run
        planned: object = self._agent.plan(job)
        if not isinstance(planned, Plan):
            raise PlanError(f"plan returned {type(planned).__name__}; return a Plan")
        plan = self._completed(job, planned)
        lay_out_files(job, plan, self._spec.skill_layout)
        artifacts = str(run.files.artifacts) if run.files is not None else ""
        inputs = environment_inputs(run.request, job.settings, self._marker, run.secrets, artifacts)
        node = node_variables(os.environ) if self._spec.runs_on_node else {}
        own = {"TMPDIR": str(job.run_dir / "tmp"), **run.span.trace.variables, **node, **plan.env}
        env = build_environment(inputs, os.environ, strip=self._spec.strip, allow=self._spec.inherit, plan_env=own)
        env, plan = await self._without_keys(job, env, plan)
        await self._hide(secret_values(inputs, env))
        self._announce(job, plan, env)
        end = await self._agent.attempt(run, job, plan, env, self._clocks)
        report = end.evidence.report
        if not report.billing.type:
            report.billing = self._agent.billing(env, report)
        return end

    async def _hide(self, secrets: tuple[str, ...]) -> None:
        """Hide these secrets from now on; mostly the environment has none that the request has not."""
        if secrets != self._hidden:
            self._run.redactor = await _redactor(secrets)
            self._hidden = secrets

    def _completed(self, job: Job, plan: Plan) -> Plan:
        """Add the notes and notices that the SDK has for every plan."""
        notes = (*plan.notes, *job.settings.notes, *skill_note(job.skill_strategy, job.skills))
        return replace(plan, notes=notes, notices=(*plan.notices, *job.settings.notices))

    async def _without_keys(self, job: Job, env: dict[str, str], plan: Plan) -> tuple[dict[str, str], Plan]:
        """Remove keys that the request did not set and that a subscription makes needless; add a note."""
        requested = {*job.settings.config_env, *job.request.env, *plan.env}
        names = inherited_keys(self._spec.api_key_variables, env, os.environ, requested)
        withheld, _ = await keys_to_withhold(names, env, self._find_login(job.executable, env))
        if not withheld:
            return env, plan
        kept = {name: value for name, value in env.items() if name not in withheld}
        return kept, replace(plan, notes=(*plan.notes, withheld_message(withheld)))

    def _find_login(self, executable: str, env: Mapping[str, str]) -> FindLogin:
        find_login = partial(self._agent.auth, executable)
        directory = config_dir(self._spec, env)
        # Elsewhere logins may be in a key ring, whose changes cannot be seen.
        if not self._spec.login_files or directory is None or sys.platform != "linux":
            return find_login
        files = [Path(executable), *(directory / name for name in self._spec.login_files)]
        decisive = {*self._spec.inherit, self._spec.config_dir_variable, "HOME", "PATH"}
        return self._logins.remembering(files, decisive, find_login)

    def _announce(self, job: Job, plan: Plan, env: Mapping[str, str]) -> None:
        run = self._run
        if run.turns.number > 1:  # the attempt was announced with its first turn
            run.state(pb.RUN_PHASE_STARTING)
            return
        sizes = dict(job.prompt_bytes)
        if job.system_prompt:
            sizes["system_prompt"] = utf8_bytes(job.system_prompt)
        if job.instructions is not None:
            sizes["instructions"] = utf8_bytes(job.instructions.text)
        hidden = {MARKER, *run.request.env}
        changed = {name: value for name, value in env.items() if os.environ.get(name) != value and name not in hidden}
        started = pb.Started(
            session_disposition=job.session.disposition,
            session_reason=job.session.reason,
            native_session_id=job.session.native_id,
            command=plan.argv[0] if plan.argv else "",
            argv=run.redactor.argv(masked_argv(plan.argv, job.prompt)),
            cwd=job.settings.cwd,
            # The request's own variables are the place for secrets: events show their names, never their values.
            env={**run.redactor.environment(changed), **dict.fromkeys(run.request.env, REDACTED)},
            prompt_bytes=sizes,
            notes=plan.notes,
            agent_version=job.version,
            permissions=job.permissions,
            capabilities=self._spec.capabilities,
            limits=limits_in_force(job.settings),
        )
        run.started(started)
        run.state(pb.RUN_PHASE_STARTING)
        for code, message in plan.notices:
            run.notice(pb.SEVERITY_WARNING, code, message)
        for path in job.missing_values[:_MOST_MISSING]:
            message = f"The template's {{{{{path}}}}} is not set; it was replaced by nothing."
            run.notice(pb.SEVERITY_INFO, "template_value_missing", message)

    # After it.

    def _conclude(self, evidence: Evidence) -> Verdict:
        if evidence.spawn_error == "ENOENT" and self._spec.install_hint and not evidence.cancelled:
            failure = spawn_failure("ENOENT", evidence.command, self._spec.install_hint)
            return Verdict(pb.OUTCOME_FAILED, failure)

        def classify(evidence: Evidence) -> FailureInfo | None:
            try:
                return self._agent.classify(evidence)
            except Exception as error:  # noqa: BLE001 - the run ends nevertheless
                consequence = "the failure is reported as the SDK classifies it"
                self._run.faults.report(error, self._agent, HOOK_FAILED, "classify", consequence)
                return None

        return conclude(evidence, classify, needs_terminal=self._spec.needs_terminal)

    def _result(self, job: Job, end: AttemptEnd, verdict: Verdict, *, lost: bool) -> pb.Result:
        evidence, report, counters = end.evidence, end.evidence.report, self._run.counters
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
            tree_confirmed_dead=end.tree_confirmed_dead and self._run.turns.all_dead,
            usage=total(self._run.turns.usage, report.usage),
            question=report.question,
            session=session_update(verdict.outcome, lost=lost, handle=self._handle(job, report), kept=self._kept),
        )
        if verdict.failure is not None:
            result.failure.CopyFrom(failure_message(verdict.failure))
            is_silent = self._spec.retries_silently and is_passing(verdict.failure.kind)
            result.failure.agent_retried = bool(counters.retries) or is_silent
        write_billing(result, report.billing)
        turns = counted(self._run.turns.count, report.turns)
        if turns is not None:
            counters.turns = turns
        if verdict.outcome != pb.OUTCOME_SUCCEEDED and not report.raw_json:
            result.raw_head, _, result.raw_tail = end.raw.parts()
            result.raw_tail = result.raw_tail or evidence.stderr_tail
        return result

    def _handle(self, job: Job, report: Report) -> pb.SessionHandle | None:
        session_id = report.session_id
        if not (session_id and self._spec.has(pb.FEATURE_RESUME) and self._agent.is_session_id(session_id)):
            return None
        return make_handle(
            adapter=self._spec.type,
            version=self._spec.version,
            native_id=session_id,
            display_id=report.display_id or session_id,
            cwd=job.settings.cwd,
            params=report.session_params,
        )


async def _secrets(request: adapter_pb2.ExecuteRequest) -> tuple[str, ...]:
    """Return the secrets of a request; searched in a thread if it is large, so that other runs continue."""
    if request.ByteSize() <= _SMALL_REQUEST:
        return request_secrets(request)
    return await asyncio.to_thread(request_secrets, request)


async def _redactor(secrets: Sequence[str]) -> Redactor:
    """Return the redactor of these secrets; made in a thread if they are many, so that other runs continue."""
    if sum(map(len, secrets)) <= _FEW_SECRETS:
        return Redactor(secrets)
    return await asyncio.to_thread(Redactor, secrets)


def _check_session(run: Run, session: SessionPlan, reported: str) -> None:
    """Warn if the agent continued another session than the one asked for."""
    if session.disposition == pb.SESSION_DISPOSITION_RESUME and reported not in {"", session.native_id}:
        message = f"The agent was asked to resume {session.native_id}, and says that it is in {reported}."
        run.notice(pb.SEVERITY_WARNING, "session_differs", message, "What was said before may be unknown to it.")


def _attempt_ended(verdict: Verdict, end: AttemptEnd, reason: str) -> pb.AttemptEnded:
    report = end.evidence.report
    ended = pb.AttemptEnded(reason=reason, exit_code=end.evidence.exit_code, usage=report.usage)
    if verdict.failure is not None:
        ended.failure.CopyFrom(failure_message(verdict.failure))
    ended.session.change = pb.SESSION_CHANGE_CLEAR
    write_billing(ended, report.billing)
    return ended
