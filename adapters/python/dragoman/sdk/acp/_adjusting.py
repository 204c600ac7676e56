"""The mode, model and options that a session is to have, as requests to the agent. Pure."""

from collections.abc import Iterable
from typing import TypeAlias

from dragoman.sdk._encoding.fields import Fields, text
from dragoman.sdk._output.parser import FailureInfo
from dragoman.sdk.acp._options import AcpOptions
from dragoman.sdk.acp._setup import Choices, Conversation, option_values
from dragoman.v1 import event_pb2 as pb

Adjustment: TypeAlias = tuple[str, dict[str, object]]
"""A method and its parameters, without the session's id."""


def adjustments(conversation: Conversation, options: AcpOptions, choices: Choices) -> list[Adjustment] | FailureInfo:
    """Return what to ask for before the prompt; a failure if the agent does not offer what is conversation.

    A mode or model that cannot be had ends the run: it may be the one that keeps the agent from doing harm.
    """
    asked: list[Adjustment] = []
    mode = conversation.mode or options.mode
    if mode and mode != choices.mode:
        found = _mode(mode, choices)
        if isinstance(found, FailureInfo):
            return found
        asked.append(found)
    if conversation.model and options.sets_model and conversation.model != choices.model:
        found = _model(conversation.model, choices)
        if isinstance(found, FailureInfo):
            return found
        asked.append(found)
    for name, value in options.config_values.items():
        option = choices.find(name)
        if option is None:
            return _not_offered(f"the option {name}", choices.options)
        if value not in option_values(option):
            return _not_offered(f"{value} for the option {name}", option_values(option))
        asked.append(_set_option(option, value))
    return asked


def _mode(mode: str, choices: Choices) -> Adjustment | FailureInfo:
    option = choices.find("mode")
    if option is not None and mode in option_values(option):
        return _set_option(option, mode)
    if mode in choices.modes:
        return "session/set_mode", {"modeId": mode}
    return _not_offered(f"the mode {mode}", [*choices.modes, *(option_values(option) if option is not None else ())])


def _model(model: str, choices: Choices) -> Adjustment | FailureInfo:
    option = choices.find("model")
    if option is not None and model in option_values(option):
        return _set_option(option, model)
    if model in choices.models:
        return "session/set_model", {"modelId": model}
    offered = [*choices.models, *(option_values(option) if option is not None else ())]
    if not offered:
        message = "This agent does not let its model be chosen over the protocol. Leave the model out."
        return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="acp_no_model_choice")
    message = f"The agent does not offer the model {model}. It offers {_listed(offered)}."
    return FailureInfo(pb.FAILURE_KIND_MODEL_NOT_FOUND, message, code="acp_model_not_offered")


def _set_option(option: Fields, value: str) -> Adjustment:
    return "session/set_config_option", {"configId": text(option, "id"), "value": value}


def _not_offered(what: str, offered: Iterable[str]) -> FailureInfo:
    message = f"The agent does not offer {what}. It offers {_listed(offered)}."
    return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="acp_not_offered")


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values)) or "none"
