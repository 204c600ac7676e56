"""The configuration of opencode that holds for one run. Pure.

It goes in by ``OPENCODE_CONFIG_CONTENT`` and ``OPENCODE_PERMISSION``, which come after the user's files and those of
the project, so that neither can take away what keeps a run in bounds; and no file is written. Keys as in
https://opencode.ai/config.json, precedence as seen in opencode 1.18.33.
"""

from collections.abc import Mapping
from typing import Final

from dragoman.sdk import Job
from dragoman.sdk.fields import JsonValue, as_bool, as_int, as_object, as_string, as_string_list, compact
from dragoman.v1 import event_pb2 as pb

INSTRUCTIONS: Final = "instructions.md"
"""The run's file with standing instructions, below its directory."""
SKILLS: Final = ".opencode/skills"
"""Where skills are below their directory."""
HOSTED: Final = "opencode"
"""The provider of the hosted models of opencode's maker. With no model chosen, opencode would take one of them."""
DEFAULT_AGENT: Final = "build"
_PLAN_AGENT: Final = "plan"
OWN_AGENTS: Final = (DEFAULT_AGENT, _PLAN_AGENT)
"""The agents of opencode's own that a run may have."""
_NESTED: Final = ("general", "explore")
"""opencode's own agents that its ``task`` tool starts."""

_READING: Final[Mapping[str, JsonValue]] = {
    # As opencode has it by itself.
    "read": {"*": "allow", "*.env": "ask", "*.env.*": "ask", "*.env.example": "allow"},
    **dict.fromkeys(("glob", "grep", "list", "lsp", "skill", "todowrite"), "allow"),
}


def environment(job: Job) -> dict[str, str]:
    """Return the variables that configure opencode for a run."""
    variables = {
        "OPENCODE_CONFIG_CONTENT": compact(configuration(job)),
        # A program must not change while runs use it, nor fetch programs without a request.
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        # It serves its session on a local port; without a password any user of the machine could use that.
        "OPENCODE_SERVER_PASSWORD": job.new_session_id,
    }
    if not has_own_permissions(job):
        variables["OPENCODE_PERMISSION"] = compact(permission(job))
    if not as_bool(job.config.get("projectConfig"), True):
        variables["OPENCODE_DISABLE_PROJECT_CONFIG"] = "1"
    return variables


def configuration(job: Job) -> dict[str, JsonValue]:
    """Return the configuration of a run: ``config.opencodeConfig``, and what overrides it."""
    settings: dict[str, JsonValue] = dict(as_object(job.config.get("opencodeConfig"), {}))
    settings["autoupdate"] = False
    settings["share"] = "disabled"
    settings |= _models(job, as_object(settings.get("provider"), {}))
    settings["agent"] = _agents(job, as_object(settings.get("agent"), {}))
    if not has_own_permissions(job):
        # The old name of agents, which opencode puts over the new one when all files are read.
        settings["mode"] = {name: {"permission": permission(job, name)} for name in _primary(job)}
    # Else a run ends, as if all were well, at the first thing that is refused.
    settings["experimental"] = {**as_object(settings.get("experimental"), {}), "continue_loop_on_deny": True}
    if job.standing_text:
        settings["instructions"] = [*as_string_list(settings.get("instructions")), str(job.run_dir / INSTRUCTIONS)]
    if job.skills_dir is not None:
        settings["skills"] = {**as_object(settings.get("skills"), {}), "paths": [str(job.skills_dir / SKILLS)]}
    return settings


def agent_of(job: Job) -> str:
    """Return the agent (opencode's word for a mode) of a run; empty leaves it to opencode."""
    return job.permissions.native_mode or as_string(job.config.get("agent"), "")


def has_own_permissions(job: Job) -> bool:
    """Return whether opencode's own settings decide what it asks about."""
    return as_bool(job.config.get("ownPermissions"), False)


def skips_permissions(job: Job) -> bool:
    """Return whether opencode asks no questions."""
    return as_bool(job.config.get("dangerouslySkipPermissions"), False)


def permission(job: Job, agent: str = DEFAULT_AGENT) -> dict[str, JsonValue]:
    """Return what opencode asks about: everything but reading below the working directory.

    Args:
        job: the run.
        agent: whose it is; the planning agent must not be asked for edits, as it may make none.
    """
    if skips_permissions(job):
        return {"*": "allow"}
    outside: dict[str, JsonValue] = {"*": "ask"}
    outside |= {f"{folder}/*": "allow" for folder in job.settings.additional_directories}
    if job.skills_dir is not None:
        outside[f"{job.skills_dir}/*"] = "allow"
    edit: dict[str, JsonValue] = {"edit": "deny"} if agent == _PLAN_AGENT else {"edit": "ask"}
    # Words in place of patterns: a pattern of the project's own would stand beside ours, and might win.
    asked: dict[str, JsonValue] = dict.fromkeys(("bash", "webfetch", "websearch", "doom_loop"), "ask")
    nested: dict[str, JsonValue] = {"*": "deny", **dict.fromkeys(_NESTED, "ask")}
    return {
        "*": "ask",
        **_READING,
        **asked,
        **edit,
        "question": "deny",
        "external_directory": outside,
        "task": nested,
        **({"skill": "ask"} if _has_rule_about_skills(job) else {}),
    }


def _has_rule_about_skills(job: Job) -> bool:
    """Return whether a rule is about loading a skill; a rule can only decide what opencode asks about."""
    return any(rule.tool_kind == pb.TOOL_KIND_SKILL or rule.tool_name == "skill" for rule in job.permissions.rules)


def _nested_permission(job: Job) -> dict[str, JsonValue]:
    """Return what nested agents may do: opencode passes none of their questions on, and would wait for ever."""
    everything = "allow" if job.permissions.auto_approve or skips_permissions(job) else "deny"
    return {
        "*": everything,
        "edit": everything,
        "bash": everything,
        "webfetch": everything,
        **_READING,
        "task": "deny",
        **({"skill": everything} if _has_rule_about_skills(job) else {}),
    }


def _agents(job: Job, configured: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    # A title would cost a call of the model, and is not used.
    agents: dict[str, JsonValue] = {**configured, "title": {"disable": True}}

    def add(name: str, more: Mapping[str, JsonValue]) -> None:
        agents[name] = {**as_object(agents.get(name), {}), **more}

    if not has_own_permissions(job):
        for name in _primary(job):
            add(name, {"permission": permission(job, name)})
        for name in _NESTED:
            add(name, {"permission": _nested_permission(job)})
    steps = as_int(job.config.get("steps"), 0)
    if steps:
        add(agent_of(job) or DEFAULT_AGENT, {"steps": steps})
    return agents


def _primary(job: Job) -> list[str]:
    """Return the agents that a run may have: the one that is chosen, and those that opencode may switch to."""
    return list(dict.fromkeys([agent_of(job) or DEFAULT_AGENT, DEFAULT_AGENT, _PLAN_AGENT]))


def _models(job: Job, providers: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the model and the providers; without a model, opencode's hosted provider has no models."""
    model = job.settings.model
    if not model:
        return {"provider": {**providers, HOSTED: {**as_object(providers.get(HOSTED), {}), "whitelist": []}}}
    others = as_string_list(job.config.get("enabledProviders"))
    return {"model": model, "enabled_providers": list(dict.fromkeys([model.split("/", 1)[0], *others]))}


def notices(job: Job) -> list[tuple[str, str]]:
    """Return code and message of what is worth a warning."""
    found: list[tuple[str, str]] = []
    if skips_permissions(job) or has_own_permissions(job):
        found.append(
            (
                "permissions_skipped",
                "opencode itself decides what it asks about in this run: what it does not ask, no rule decides.",
            )
        )
    return found
