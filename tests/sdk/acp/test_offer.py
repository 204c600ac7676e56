"""What an agent says of itself when a conversation begins."""

from typing import Any

import pytest
from dragoman.sdk.acp._session import described, read_offer

INFO = {"name": "words", "title": "Words", "version": "1.2"}
OFFERS: dict[str, dict[str, Any]] = {
    "session/load": {"loadSession": True},
    "session/resume": {"sessionCapabilities": {"resume": {}}},
    "session/fork": {"sessionCapabilities": {"fork": {}}},
    "further directories": {"sessionCapabilities": {"additionalDirectories": {}}},
    "MCP servers over HTTP": {"mcpCapabilities": {"http": True}},
    "images": {"promptCapabilities": {"image": True}},
}


def described_as(able: dict[str, Any], **fields: Any) -> str:
    return described(read_offer({"protocolVersion": 1, "agentCapabilities": able, **fields}))


@pytest.mark.parametrize("name", OFFERS)
def test_each_offer_is_named(name: str) -> None:
    assert described_as(OFFERS[name], agentInfo=INFO) == f"Words 1.2 offers {name}."


@pytest.mark.parametrize(
    ("info", "name"),
    [({"name": "words"}, "words"), ({"name": "words", "version": "3"}, "words 3"), ({}, "The agent")],
)
def test_an_agent_that_offers_nothing(info: dict[str, str], name: str) -> None:
    assert described_as({}, agentInfo=info) == f"{name} offers only what every agent does."


def test_what_is_not_true_is_not_offered() -> None:
    able: dict[str, Any] = {
        "loadSession": "yes",
        "mcpCapabilities": {"http": "yes"},
        "promptCapabilities": {"image": 1},
    }
    offer = read_offer({"protocolVersion": 1, "agentCapabilities": {**able, "sessionCapabilities": {"fork": True}}})
    assert (offer.loads, offer.http_mcp, offer.images, offer.forks, offer.resumes) == (False,) * 5
    assert offer.version == 1


def test_all_offers_are_named_in_order() -> None:
    able: dict[str, Any] = {
        "loadSession": True,
        "sessionCapabilities": {"resume": {}, "fork": {}, "additionalDirectories": {}},
        "mcpCapabilities": {"http": True},
        "promptCapabilities": {"image": True},
    }
    offers = ", ".join(OFFERS)
    methods: list[Any] = [{"id": "login"}]
    assert described_as(able, agentInfo=INFO, authMethods=methods) == f"Words 1.2 offers {offers}."
    assert read_offer({"authMethods": methods}).auth_methods == tuple(methods)
