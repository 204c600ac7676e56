"""From a job to a command line. Pure."""

from dragoman.sdk import Job, Plan
from dragoman.sdk.fields import as_string
from dragoman.sdk.run import render

_PROMPT_FILE = "prompt.txt"


def plan_command(job: Job) -> Plan:
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
