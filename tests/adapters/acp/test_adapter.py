"""What the adapter says of itself: schema, document, capabilities, and how it is found."""

import pytest
from dragoman.adapters.acp import adapter
from dragoman.sdk.fields import JsonValue
from dragoman.sdk.run import INTERRUPT
from dragoman.v1 import event_pb2 as pb


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"command": ""},
        {"command": "x", "fileAccess": "all"},
        {"command": "x", "dangerouslySkipPermissions": True},
    ],
)
def test_what_it_cannot_honour_is_refused(config: dict[str, JsonValue]) -> None:
    assert list(adapter().schema.validate(config))


def test_it_declares_what_depends_on_the_agent_as_such() -> None:
    able = adapter().describe().capabilities
    notes = {item.feature: item.note for item in able.items}
    for feature in (pb.FEATURE_RESUME, pb.FEATURE_FORK, pb.FEATURE_MODEL_CHOICE, pb.FEATURE_THINKING):
        assert "if the agent" in notes[feature]
    assert not {pb.FEATURE_RESUME_REJECTION, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_MAX_TURNS} & set(notes)
    assert able.permission_mode == pb.PERMISSION_MODE_NONE
    assert able.cancel_style == pb.CANCEL_STYLE_NATIVE
    assert INTERRUPT[0].interrupts
