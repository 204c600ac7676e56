"""What the adapter for any ACP agent is."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import ClassVar, Final

from dragoman.sdk import (
    AdapterInfo,
    Job,
    JsonValue,
    SkillStrategy,
    as_bool,
    as_object,
    as_string,
    capabilities,
    shipped_documents,
)
from dragoman.sdk.acp import AcpAdapter, AcpOptions, UsageMeaning
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"

_USAGES: Final[Mapping[str, UsageMeaning]] = {"turn": "turn", "lastCall": "last_call", "session": "session"}


class AnyAcpAdapter(AcpAdapter):
    """Runs any program that speaks the protocol over its standard input and output."""

    asks_version: ClassVar[bool] = False
    skill_strategy: ClassVar[SkillStrategy | None] = SkillStrategy.PROMPT
    # What programs of this kind are configured with is theirs; it is given by name, in config.env or env.
    inherit: ClassVar[Collection[str]] = ()

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="acp",
            label="ACP agent",
            version=VERSION,
            aliases=("acp_agent", "acp_local", "agent_client_protocol"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
        )

    def acp_options(self, job: Job) -> AcpOptions:
        """Return what the config says of the agent's ways."""
        config = job.config
        access = as_string(config.get("fileAccess"), "none")
        return AcpOptions(
            reads_files=access in {"read", "write"},
            writes_files=access == "write",
            terminals=as_bool(config.get("terminals"), False),
            authenticate=as_string(config.get("authMethod"), ""),
            mode=as_string(config.get("mode"), ""),
            config_values={
                name: as_string(value, "") for name, value in as_object(config.get("configOptions"), {}).items()
            },
            slash_commands=as_bool(config.get("allowSlashCommands"), False),
            usage=_USAGES.get(as_string(config.get("promptUsage"), ""), "turn"),
            tells_offer=True,
        )

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Look for the command. It is not run, unless the config says that ``--version`` is safe."""
        found = await super().look(env, config)
        if found.available and found.executable and as_bool(config.get("askVersion"), False):
            found.version, problem = await self.versions.ask(Path(found.executable), env)
            if problem is not None:
                found.problems.append(problem)
        return found


def _capabilities() -> pb.Capabilities:
    if_told, in_prompt = "if the agent tells", "put before the prompt"
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START, pb.FEATURE_FILE_CHANGES),
        *(pb.FEATURE_PLAN, pb.FEATURE_COST, pb.FEATURE_PERMISSION_REQUESTS, pb.FEATURE_INPUT_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_FORK, pb.FEATURE_MCP_SERVERS, pb.FEATURE_MODEL_CHOICE),
        *(pb.FEATURE_SKILLS, pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT),
        resume=pb.RESUME_STYLE_CAPTURE,
        cancel=pb.CANCEL_STYLE_NATIVE,
        # Nothing is known of a program but its protocol, in which agents ask only for what they choose to ask.
        permission_mode=pb.PERMISSION_MODE_NONE,
        notes={
            pb.FEATURE_TEXT_DELTAS: if_told,
            pb.FEATURE_THINKING: if_told,
            pb.FEATURE_FILE_CHANGES: if_told,
            pb.FEATURE_PLAN: if_told,
            pb.FEATURE_COST: if_told,
            pb.FEATURE_PERMISSION_REQUESTS: "for what the agent asks; what it does unasked is not held back",
            pb.FEATURE_INPUT_REQUESTS: "forms, if the agent has any",
            pb.FEATURE_RESUME: "if the agent offers it; else the run begins anew and says why",
            pb.FEATURE_FORK: "if the agent offers it; else the run fails and says why",
            pb.FEATURE_MCP_SERVERS: "over HTTP if the agent offers it",
            pb.FEATURE_MODEL_CHOICE: "if the agent offers models; else the run fails and says why",
            pb.FEATURE_SKILLS: in_prompt,
            pb.FEATURE_INSTRUCTIONS: in_prompt,
            pb.FEATURE_SYSTEM_PROMPT: in_prompt,
        },
    )
