"""What the process adapter is."""

from collections.abc import Mapping

from dragoman.adapters.process.parse import ObjectParser, TextParser
from dragoman.adapters.process.plan import plan_command
from dragoman.sdk import CommandLineAdapter, Job, Parser, Plan
from dragoman.sdk.detection import AuthFinding
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2


class ProcessAdapter(CommandLineAdapter):
    """Runs any command."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Say how to run the command."""
        return plan_command(job)

    def parser(self, job: Job) -> Parser:
        """Return what understands the command's output, as ``config.output`` says."""
        return ObjectParser() if job.config.get("output") == "jsonl" else TextParser()

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """A plain command needs no login."""
        del executable, env
        return AuthFinding(adapter_pb2.AUTH_STATE_NOT_NEEDED)
