"""What each agent family calls the neutral tool actions of the scripts."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Native:
    """A family's own tool for a neutral action.

    Attributes:
        name: Tool name offered in the request.
        inputs: Native input field -> neutral argument it takes.
        constants: Native input fields with a fixed value.
    """

    name: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)


#: Agent family -> neutral action -> its tool. A family is recognised by the tools a request offers.
VOCABULARIES: Mapping[str, Mapping[str, Native]] = {
    "claude": {
        "write": Native("Write", {"file_path": "path", "content": "content"}),
        "read": Native("Read", {"file_path": "path"}),
        "edit": Native("Edit", {"file_path": "path", "old_string": "old", "new_string": "new"}),
        "shell": Native("Bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": Native(
            "Bash",
            {"command": "command"},
            {"description": "Run a scripted command", "run_in_background": True},
        ),
        "skill": Native("Skill", {"skill": "name"}),
        "ask": Native("AskUserQuestion", {"questions": "questions"}),
        "subagent": Native(
            "Agent",
            {"prompt": "prompt"},
            {
                "description": "Scripted helper",
                "subagent_type": "general-purpose",
                "run_in_background": False,
            },
        ),
    },
}


def native(action: str, inputs: Mapping[str, object], offered: tuple[str, ...]) -> tuple[str, dict[str, object]]:
    """Translate a neutral tool call into the asking agent's own.

    Args:
        action: Neutral action, or a native tool name.
        inputs: Its arguments.
        offered: Tool names the request offers.

    Returns:
        Tool name and input; both as given when no family that knows the action recognises itself.
    """
    for words in VOCABULARIES.values():
        tool = words.get(action)
        if tool is None or not any(known.name in offered for known in words.values()):
            continue
        named = {theirs: inputs[ours] for theirs, ours in tool.inputs.items() if ours in inputs}
        return tool.name, {**named, **tool.constants}
    return action, dict(inputs)
