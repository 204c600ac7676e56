"""The shipped fixtures, as a test uses them."""

import urllib.request
from collections.abc import Callable

from dragoman.testkit.isolation import Isolation
from dragoman.testkit.model_server import ServerInThread


def test_the_scripted_model_serves(scripted_model: ServerInThread) -> None:
    with urllib.request.urlopen(scripted_model.url) as answer:
        assert answer.status == 200


def test_an_isolated_agent_points_at_it(
    scripted_model: ServerInThread, isolated_agent: Callable[[str], Isolation]
) -> None:
    assert isolated_agent("claude").environment["ANTHROPIC_BASE_URL"] == scripted_model.url
