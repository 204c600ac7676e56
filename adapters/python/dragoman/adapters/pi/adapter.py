"""What the pi adapter is, and how pi is run."""

from collections.abc import Mapping
from typing import Final

from dragoman.adapters.pi.parse import PiParser
from dragoman.adapters.pi.rpc import PiRpcParser, as_text, has_rpc, opening
from dragoman.sdk import CommandLineAdapter, Evidence, FailureInfo, Job, Parser, Plan, Report
from dragoman.sdk.detection import Billing, SelectedModel, stored_object
from dragoman.sdk.failures import failure_of_evidence
from dragoman.sdk.fields import as_string, inner, text
from dragoman.sdk.run import INTERRUPT, TERMINATE, offered_tools, options
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

_BILLING: Final = {"oauth": pb.BILLING_TYPE_SUBSCRIPTION, "api_key": pb.BILLING_TYPE_API}


class PiAdapter(CommandLineAdapter):
    """Runs pi."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run pi: the prompt goes in by standard input, everything comes out as lines of JSON."""
        is_rpc = has_rpc(job.version, job.settings.extra_args)
        offered, notices = offered_tools("pi", self.spec.tools, job.permissions)
        system = job.standing_text.encode()
        is_fork = job.session.disposition == pb.SESSION_DISPOSITION_FORK
        # A run that was given another model names it with its provider.
        is_chosen = job.settings.model in {job.request.model, as_string(job.config.get("model"), "")}
        values = {
            "--fork" if is_fork else "--session": job.session.native_id,
            "--provider": as_string(job.config.get("provider"), "") if is_chosen else "",
            "--model": job.settings.model,
            "--thinking": as_string(job.config.get("effort"), ""),
            "--append-system-prompt": str(job.run_dir / "system.md") if system else "",
            "--tools": ",".join(offered) if notices else "",
        }
        mode = ("--mode", "rpc") if is_rpc else ("--mode", "json", "--print")
        arguments = [*mode, *options(values), *(() if offered else ["--no-tools"])]
        for skill in job.skills if job.skills_dir else ():
            arguments += ("--skill", f"{job.skills_dir}/{skill.name}")
        arguments += [] if is_rpc else [f"@{image.path}" for image in job.images]
        return Plan(
            argv=(job.executable, *arguments, *job.settings.extra_args),
            stdin=opening(job.prompt, job.images) if is_rpc else as_text(job.prompt).encode(),
            keep_stdin_open=is_rpc,
            env={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},  # no updates while runs use it
            files={"system.md": system} if system else {},
            notices=notices,
            cancel=INTERRUPT if is_rpc else TERMINATE,
        )

    def parser(self, job: Job) -> Parser:
        """Return the parser of its output."""
        is_rpc = has_rpc(job.version, job.settings.extra_args)
        return PiRpcParser(job.roots) if is_rpc else PiParser(job.roots)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return what its own words mean: ``errorMessage`` of the last message, or a line on standard error."""
        return failure_of_evidence(evidence, "pi", status_leads=True)

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's own settings select."""
        settings = stored_object(self.spec, env, "settings.json")
        return SelectedModel(text(settings, "defaultModel"), text(settings, "defaultProvider"))

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, by the login stored for the provider, else the keys of ``env``."""
        kind = text(inner(stored_object(self.spec, env, "auth.json"), report.provider), "type")
        if not kind and report.provider == "anthropic" and env.get("ANTHROPIC_OAUTH_TOKEN"):
            kind = "oauth"
        return Billing(_BILLING[kind], report.provider) if kind in _BILLING else super().billing(env, report)
