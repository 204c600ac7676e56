"""What the model is told before the conversation begins. Pure."""

from dragoman.sdk import Job, skill_prompt

_WHO = """\
You are a software agent that works by itself in one directory. Read what you need before you change it, make the \
change that was asked for and no other, and then say in a few sentences what you did.

Your only tools read and write files below the working directory; you can run no commands and reach no network. \
If a tool refuses something, do not try to get around it: say what you could not do.

Working directory: {cwd}
"""


def system_prompt(job: Job) -> str:
    """Return who the model is, then the caller's system prompt, its instructions, and the run's skills."""
    parts = [_WHO.format(cwd=job.settings.cwd), job.system_prompt]
    if job.instructions is not None:
        parts.append(job.instructions.with_directive())
    parts += [skill_prompt(skill) for skill in job.skills]
    return "\n\n".join(part.strip() for part in parts if part.strip())
