"""What the process adapter is."""

from collections.abc import Mapping
from typing import ClassVar

from dragoman.adapters.process.parse import JsonLinesParser, TextParser
from dragoman.adapters.process.plan import plan_command
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    CommandLineAdapter,
    Job,
    Parser,
    Plan,
    capabilities,
    shipped_documents,
)
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION = "1.0.0"


class ProcessAdapter(CommandLineAdapter):
    """Runs any command."""

    needs_terminal: ClassVar[bool] = False
    asks_version: ClassVar[bool] = False
    native_protocol: ClassVar[str] = "process-lines"

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        able = capabilities(
            *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
            cancel=pb.CANCEL_STYLE_SIGNAL,
            permission_mode=pb.PERMISSION_MODE_NONE,
        )
        return AdapterInfo(
            type="process",
            label="Process",
            version=VERSION,
            **shipped_documents(__package__),
            capabilities=able,
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run the command."""
        return plan_command(job)

    def parser(self, job: Job) -> Parser:
        """Return what understands the command's output, as ``config.output`` says."""
        return JsonLinesParser() if job.config.get("output") == "jsonl" else TextParser()

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """A plain command needs no login."""
        del executable, env
        return AuthFinding(adapter_pb2.AUTH_STATE_NOT_NEEDED)
