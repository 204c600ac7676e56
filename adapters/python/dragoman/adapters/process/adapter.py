"""What the process adapter is, and how a command is run."""

from collections.abc import Mapping
from typing import Final

from dragoman.adapters.process.parse import ObjectParser, TextParser
from dragoman.sdk import CommandLineAdapter, Job, Parser, Plan
from dragoman.sdk.detection import AuthFinding
from dragoman.sdk.fields import as_string
from dragoman.sdk.run import render
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2

_PROMPT_FILE: Final = "prompt.txt"


class ProcessAdapter(CommandLineAdapter):
    """Runs any command."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run the configured command.

        ``config.promptVia`` says how the prompt gets to it: ``stdin`` (default), ``file`` (its path is in
        PREFIX_PROMPT_FILE and replaces ``{{promptFile}}`` in the arguments), ``args`` (``{{prompt}}`` in the
        arguments is replaced), or ``none``.
        """
        via = as_string(job.config.get("promptVia"), "stdin")
        prompt_file = str(job.run_dir / _PROMPT_FILE)
        values = {"prompt": job.prompt, "promptFile": prompt_file, "cwd": job.settings.cwd, "runId": job.run_id}
        argv = (job.executable, *(render(item, values).text for item in job.settings.extra_args))
        if via == "file":
            variable = f"{job.settings.env_prefix.rstrip('_')}_PROMPT_FILE"
            return Plan(argv, env={variable: prompt_file}, files={_PROMPT_FILE: job.prompt.encode()})
        return Plan(argv, stdin=job.prompt.encode() if via == "stdin" else b"")

    def parser(self, job: Job) -> Parser:
        """Return the parser of the command's output, as ``config.output`` says."""
        return ObjectParser() if job.config.get("output") == "jsonl" else TextParser()

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """A plain command needs no login."""
        del executable, env
        return AuthFinding(adapter_pb2.AUTH_STATE_NOT_NEEDED)
