"""The Helm chart where a release is there already: values of before, and homes that several pods share."""

import re
from typing import Any

import pytest

from tests.deploy.conftest import Failed, render

pytestmark = pytest.mark.helm

CODEX = {"name": "codex", "image": {"repository": "codex"}}
SHARED = {"existingClaim": "shared", "accessModes": ["ReadWriteMany"]}
OPEN: dict[str, Any] = {
    "tls__existingSecret": "tls",
    "auth__existingSecret": "token",
    "networkPolicy__enabled": False,
}
LATER = [
    *(f"router__{name}" for name in ("tokens", "trust", "webhooks", "agentSecrets")),
    *("networkPolicy__issuers", "networkPolicy__webhooks", "agentSandbox"),
]
"""Values that the first charts did not have. With ``--reuse-values`` helm takes no defaults for them."""
BEFORE: dict[str, Any] = dict.fromkeys(LATER)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ({"adapters": [{**CODEX, "replicas": 2}]}, "has several pods"),
        ({"adapters": [CODEX], "agentSandbox__enabled": True}, "is in sandboxes"),
    ],
)
@pytest.mark.parametrize("home", [{"size": "1Gi"}, {"existingClaim": "one"}, {"size": "1Gi", "existingClaim": "one"}])
def test_a_home_that_one_pod_can_mount_is_refused_for_several(
    sets: dict[str, Any], says: str, home: dict[str, Any]
) -> None:
    (adapter,) = sets["adapters"]
    with pytest.raises(Failed) as failed:
        render(**OPEN, **{**sets, "adapters": [{**adapter, "home": home}]})
    text = str(failed.value)
    assert f'"codex" {says}, which cannot all mount its home' in text
    assert "set home.accessModes: [ReadWriteMany]" in text
    assert "make another claim, with ReadWriteMany, and name it by home.existingClaim" in text, "its modes are fixed"
    render(**OPEN, **{**sets, "adapters": [{**adapter, "home": SHARED}]})
    render(**OPEN, **{**sets, "adapters": [{**adapter, "home": {**SHARED, "existingClaim": "", "size": "1Gi"}}]})


@pytest.mark.parametrize("shape_", ["sidecars", "deployments"])
def test_values_of_a_release_before_render_as_those_without_the_new_ones(shape_: str) -> None:
    assert render(shape_, **BEFORE) == render(shape_)


def test_a_value_that_is_set_beside_those_of_a_release_before_has_the_default_of_its_neighbour() -> None:
    secret, peers = {"existingSecret": "a-secret"}, {"to": [{"ipBlock": {"cidr": "203.0.113.8/32"}}]}
    sets: dict[str, Any] = {f"router__{name}": secret for name in ("tokens", "trust", "webhooks")}
    sets |= {"networkPolicy__issuers": peers, "networkPolicy__webhooks": peers, "agentSandbox": {"enabled": True}}
    neighbours = {"existingSecret": "key", "to": "port", "enabled": "updateStrategy"}
    bare = {name: {**one, neighbours[key]: None} for name, one in sets.items() for key in one}
    assert render("deployments", **bare) == render("deployments", **sets)


def test_a_webhook_beside_values_of_a_release_before_still_needs_its_way_out() -> None:
    values = {**BEFORE, "router__webhooks": {"existingSecret": "webhooks", "key": None}}
    with pytest.raises(Failed, match=re.escape("set networkPolicy.webhooks.to")):
        render("deployments", **values)
