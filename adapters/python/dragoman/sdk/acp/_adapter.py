"""The base of adapters for agents that speak the Agent Client Protocol."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dragoman.sdk._agents.command_line import CommandLineAdapter
from dragoman.sdk._encoding.protobuf import struct_to_dict
from dragoman.sdk._output.parser import Parser
from dragoman.sdk._request.job import INTERRUPT, Job, Plan
from dragoman.sdk.acp._parser import COST_KEY, AcpParser, opening
from dragoman.sdk.acp._session import AcpOptions, Conversation, full_prompt
from dragoman.v1 import event_pb2 as pb


class AcpAdapter(CommandLineAdapter):
    """An adapter for an agent that speaks the protocol. Subclasses give ``spec`` and say how the agent is started."""

    acp: ClassVar[AcpOptions] = AcpOptions()
    """The agent's ways."""

    def acp_args(self, job: Job) -> Sequence[str]:
        """Return the arguments behind the executable that make the agent speak the protocol. Pure."""
        del job
        return ()

    def acp_env(self, job: Job) -> Mapping[str, str]:
        """Return the agent's own variables. Pure."""
        del job
        return {}

    def acp_options(self, job: Job) -> AcpOptions:
        """Return the agent's ways in this run. Pure."""
        del job
        return self.acp

    def acp_conversation(self, job: Job) -> Conversation:
        """Return what this run wants of the agent. Pure."""
        return conversation(job, self.acp_options(job))

    def plan(self, job: Job) -> Plan:
        """Return how to run the agent."""
        return Plan(
            argv=(job.executable, *self.acp_args(job), *job.settings.extra_args),
            stdin=opening(self.acp_options(job), self.spec.version),
            keep_stdin_open=True,
            env=self.acp_env(job),
            notes=job.session.notes,
            cancel=INTERRUPT,
        )

    def parser(self, job: Job) -> Parser:
        """Return the parser of the agent's output, which answers it too."""
        return AcpParser(self.acp_conversation(job), self.acp_options(job), self.spec.version)


def conversation(job: Job, options: AcpOptions) -> Conversation:
    """Return what a job wants of its agent. Pure."""
    prompt = full_prompt(
        job.prompt,
        system_prompt=job.system_prompt,
        instructions=job.instructions.with_directive() if job.instructions is not None else "",
        slash_commands=options.slash_commands,
    )
    kept = struct_to_dict(job.request.session.handle.params).get(COST_KEY) if job.session.resumes else None
    return Conversation(
        cwd=job.settings.cwd,
        prompt=prompt,
        images=tuple(job.images),
        additional_directories=job.settings.additional_directories,
        asks_for_directories=bool(job.request.workspace.additional_directories),
        mcp_servers=tuple(job.request.mcp_servers),
        session_id=job.session.native_id,
        forks=job.session.disposition == pb.SESSION_DISPOSITION_FORK,
        mode=job.permissions.native_mode,
        model=job.settings.model,
        cost_before=kept if isinstance(kept, str) else None,
        tag=f"acp-{job.attempt}",
        names_frames=job.request.include_native,
    )
