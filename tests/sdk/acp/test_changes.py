"""Changes of the model or mode while an agent works: what asks for them, and what its answers come down to."""

from collections.abc import Iterable
from typing import Any

import pytest
from dragoman.sdk import Output
from dragoman.sdk.acp import AcpOptions
from dragoman.sdk.parsing import NotUpdated, Update, Updated

from tests.sdk.acp.talking import READY, Talk

MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "code"}]}
MODELS = {"currentModelId": "m1", "availableModels": [{"modelId": "m1"}, {"modelId": "m2"}]}
OPTIONS = [
    {"id": "x", "category": "mode", "currentValue": "ask", "options": [{"value": "ask"}, {"value": "code"}]},
    {"id": "y", "category": "model", "currentValue": "m1", "options": [{"value": "m1"}, {"value": "m2"}]},
]
MODE, MODEL = Update("u", permission_mode="code"), Update("u", model="m2")


def working(options: AcpOptions | None = None, **session: Any) -> Talk:
    """Return a conversation whose prompt was sent, in a session with these facts."""
    first, _ = READY
    talk = Talk(options or AcpOptions()).hear(first, {"id": 2, "result": {"sessionId": "s-1", **session}})
    talk.outputs.clear()
    return talk


def change(talk: Talk, update: Update) -> list[Output]:
    outputs: Iterable[Output] | None = talk.parser.update(update)
    assert outputs is not None
    came = list(outputs)
    talk.outputs += came
    return came


@pytest.mark.parametrize(
    ("update", "session", "method", "params"),
    [
        (MODE, {"modes": MODES}, "session/set_mode", {"modeId": "code"}),
        (MODEL, {"models": MODELS}, "session/set_model", {"modelId": "m2"}),
        (MODE, {"configOptions": OPTIONS}, "session/set_config_option", {"configId": "x", "value": "code"}),
        (MODEL, {"configOptions": OPTIONS}, "session/set_config_option", {"configId": "y", "value": "m2"}),
    ],
)
def test_a_change_is_asked_for_in_the_agents_way(
    update: Update, session: dict[str, Any], method: str, params: dict[str, str]
) -> None:
    talk = working(**session)
    change(talk, update)
    (asked,) = talk.written
    assert (asked["method"], asked["params"]) == (method, {"sessionId": "s-1", **params})
    talk.hear({"id": asked["id"], "result": {}})
    assert Updated("u") in talk.outputs
    if method != "session/set_config_option":  # else the agent reports its options
        (reported,) = talk.of("session")
        assert (reported.mode, reported.model) == (update.permission_mode or "", update.model or "")


def test_what_the_agent_rejects_leaves_the_session_as_it_is() -> None:
    talk = working(modes=MODES)
    change(talk, MODE)
    talk.hear({"id": talk.written[0]["id"], "error": {"code": -32603, "message": "not now"}})
    assert talk.outputs[1:] == [NotUpdated("u", "not now")]
    assert talk.parser.report.terminal is None


@pytest.mark.parametrize("update", [MODE, MODEL])
def test_what_the_agent_does_not_offer_is_not_asked_for(update: Update) -> None:
    talk = working()
    (output,) = change(talk, update)
    assert isinstance(output, NotUpdated)
    assert output.why
    assert talk.written == []


def test_a_model_of_the_command_line_can_be_changed() -> None:
    talk = working(AcpOptions(sets_model=False), models=MODELS)
    change(talk, MODEL)
    assert talk.written[0]["method"] == "session/set_model"


@pytest.mark.parametrize(
    ("as_options", "as_models", "method", "params"),
    [
        (["m1(x)", "m2(x)"], ["m1(x)", "m2(x)"], "session/set_config_option", {"configId": "y", "value": "m2(x)"}),
        (["m1(x)", "m2(x)", "m2"], ["m2(x)"], "session/set_config_option", {"configId": "y", "value": "m2"}),
        (["m1(x)"], ["m1(x)", "m2(x)"], "session/set_model", {"modelId": "m2(x)"}),
        (["m2(x)"], ["m2"], "session/set_model", {"modelId": "m2"}),
    ],
    ids=[
        "an option before the older way",
        "its ID before its name",
        "no value of the option",
        "its ID the older way",
    ],
)
def test_a_model_is_asked_for_by_its_name(
    as_options: list[str], as_models: list[str], method: str, params: dict[str, str]
) -> None:
    models = {"currentModelId": "m1(x)", "availableModels": [{"modelId": one} for one in as_models]}
    option = {**OPTIONS[1], "currentValue": "m1(x)", "options": [{"value": one} for one in as_options]}
    options = AcpOptions(model_name=lambda model: model.removesuffix("(x)"))
    talk = working(options, models=models, configOptions=[option])
    change(talk, MODEL)
    (asked,) = talk.written
    assert (asked["method"], asked["params"]) == (method, {"sessionId": "s-1", **params})


def test_a_change_waits_until_the_turn_runs_and_is_none_once_it_is_to_stop() -> None:
    assert Talk().hear(READY[0]).parser.update(MODE) is None
    talk = working(modes=MODES)
    list(talk.parser.interrupt())
    assert talk.parser.update(MODE) is None
