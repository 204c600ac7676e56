"""The system prompt of the model. Pure."""

from typing import Final

from dragoman.sdk import Job
from dragoman.sdk.skills import skill_prompt

_WHO = """\
You are a software agent that works by itself in one directory. Read what you need before you change it, make the \
change that was asked for and no other, and then say in a few sentences what you did.

Your only tools read and write files below the working directory; you can run no commands and reach no network. \
If a tool refuses something, do not try to get around it: say what you could not do.

Working directory: {cwd}
"""
_ALSO: Final = "You may read, and not write, files below these directories too: {directories}"


def system_prompt(job: Job) -> str:
    """Return the role of the model, then the request's system prompt, instructions and skills."""
    parts = [_WHO.format(cwd=job.settings.cwd)]
    if job.settings.additional_directories:
        parts.append(_ALSO.format(directories=", ".join(job.settings.additional_directories)))
    parts.append(job.system_prompt)
    if job.instructions is not None:
        parts.append(job.instructions.with_directive())
    parts += [skill_prompt(skill) for skill in job.skills]
    return "\n\n".join(part.strip() for part in parts if part.strip())
