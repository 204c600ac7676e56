"""What the adapter for any ACP agent is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk import Job
from dragoman.sdk.acp import AcpAdapter, AcpOptions, UsageMeaning
from dragoman.sdk.fields import JsonValue, as_bool, as_object, as_string
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2

_USAGES: Final[Mapping[str, UsageMeaning]] = {"turn": "turn", "lastCall": "last_call", "session": "session"}


class AnyAcpAdapter(AcpAdapter):
    """Runs any program that speaks the protocol over its standard input and output."""

    spec = agent_spec(__package__)

    def acp_options(self, job: Job) -> AcpOptions:
        """Return what the config says of the agent's ways."""
        config = job.config
        return AcpOptions(
            authenticate=as_string(config.get("authMethod"), ""),
            mode=as_string(config.get("mode"), ""),
            config_values={
                name: as_string(value, "") for name, value in as_object(config.get("configOptions"), {}).items()
            },
            slash_commands=as_bool(config.get("allowSlashCommands"), False),
            usage=_USAGES.get(as_string(config.get("promptUsage"), ""), "turn"),
            reports_offer=True,
        )

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Look for the command. It is not run, unless the config says that ``--version`` is safe."""
        found = await super().look(env, config)
        if found.available and found.executable and as_bool(config.get("askVersion"), False):
            found.version, problem = await self.versions.ask(Path(found.executable), env)
            if problem is not None:
                found.problems.append(problem)
        return found
