"""The Helm chart: each shape of values renders to valid objects, which allow no more than they have to."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from dragoman.cli.dispatch import cli
from dragoman.protocol.health_port import LIVENESS

from tests.deploy.conftest import CHART, GOLDEN, RELEASE, Failed, Object, helm, objects, render, values_of

pytestmark = pytest.mark.helm

SANDBOXES = "extensions.agents.x-k8s.io/v1beta1"
FOREIGN = {"cert-manager.io/v1", "gateway.networking.k8s.io/v1", "monitoring.coreos.com/v1", SANDBOXES}
"""Groups of which Kubernetes itself has no schema."""
VERSIONS = ["1.30.0", "1.33.0", "1.37.0"]
TLS = {"tls__existingSecret": "tls", "auth__existingSecret": "token"}
OPEN = {"networkPolicy__enabled": False}
ONE = [{"name": "codex", "image": {"repository": "codex"}}]


def pods(found: Mapping[str, Object]) -> Iterator[tuple[str, Object]]:
    """Yield the specifications of all pods."""
    for name, one in found.items():
        if one["kind"] == "Pod":
            yield name, one["spec"]
        elif one["kind"] == "Deployment":
            yield name, one["spec"]["template"]["spec"]
        elif one["kind"] == "SandboxTemplate":
            yield name, one["spec"]["podTemplate"]["spec"]


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def router(found: Mapping[str, Object]) -> Object:
    return dict(pods(found))["Deployment/rel-dragoman"]


def test_it_is_linted(shape: str) -> None:
    helm("lint", "--strict", str(CHART), "--kube-version", "1.33.0", "--values", str(values_of(shape)))


@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_are_valid_in_the_versions_that_it_supports(shape: str, version: str) -> None:
    found = render(shape)
    assert found
    for one in found.values():
        if one["apiVersion"] not in FOREIGN:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_sandboxes_are_valid_by_the_schema_of_agent_sandbox(version: str) -> None:
    """Version 0.5 of kubernetes-sigs/agent-sandbox, and for the pod in a template that of Kubernetes."""
    schemas = json.loads((Path(__file__).parent / "agent-sandbox.json").read_text(encoding="utf-8"))
    found = {one["kind"]: one for one in render("sandboxes").values() if one["apiVersion"] == SANDBOXES}
    assert set(found) == {"SandboxTemplate", "SandboxWarmPool"}
    for kind, one in found.items():
        jsonschema.validate(one, schemas[kind])
    pod = found["SandboxTemplate"]["spec"]["podTemplate"]
    metadata = {**pod["metadata"], "name": "a-sandbox"}
    kubernetes_validate.validate(
        {**pod, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}, version, strict=True
    )


def test_a_sandbox_has_the_pod_that_a_deployment_would_have() -> None:
    sandboxes, plain = render("sandboxes"), render("sandboxes", agentSandbox__enabled=False)
    template, pool = (
        sandboxes[f"{kind}/rel-dragoman-codex"]["spec"] for kind in ("SandboxTemplate", "SandboxWarmPool")
    )
    deployment = plain["Deployment/rel-dragoman-codex"]["spec"]
    assert template["podTemplate"] == deployment["template"]
    assert template["networkPolicyManagement"] == "Unmanaged", "the chart's own policies select the pods"
    assert pool["sandboxTemplateRef"] == {"name": "rel-dragoman-codex"}
    assert pool["replicas"] == deployment["replicas"]
    selector = sandboxes["Service/rel-dragoman-codex"]["spec"]["selector"]
    assert selector.items() <= template["podTemplate"]["metadata"]["labels"].items(), "routers find it"
    # It has no scale that a budget could count by.
    assert "PodDisruptionBudget/rel-dragoman-codex" not in sandboxes
    assert "PodDisruptionBudget/rel-dragoman-codex" in plain


def test_it_renders_as_before(shape: str) -> None:
    """DRAGOMAN_GOLDEN=1 writes what is rendered now; read the difference before you commit it."""
    text = helm("template", *RELEASE, "--values", str(values_of(shape)))
    path = GOLDEN / f"{shape}.yaml"
    if "DRAGOMAN_GOLDEN" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


OURS = {"meta.helm.sh/release-name": "rel"}
STATE = {"name": "rel-dragoman-state"}
CLAIM = {"metadata": {**STATE, "annotations": OURS}}
KEPT = {"metadata": {**STATE, "annotations": {**OURS, "helm.sh/resource-policy": "keep"}}}
OF_ANOTHER = {"metadata": {**STATE, "annotations": {"meta.helm.sh/release-name": "another"}}}
WITHOUT = {"metadata": STATE}
ENDING = {"metadata": {**CLAIM["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
HOME = {"metadata": {"name": "rel-dragoman-codex-home", "annotations": OURS}}
CODEX = {"name": "codex", "mode": "sidecar", "image": {"repository": "codex"}, "home": {"size": "1Gi"}}
EXTRA = {"metadata": {"name": "shared", "annotations": OURS}}


def upgraded(folder: Path, installed: Mapping[str, Any], **sets: Any) -> None:
    """Render an upgrade where these objects are installed, by kind; helm looks for none without a cluster."""
    copy = folder / "dragoman"
    shutil.copytree(CHART, copy)
    template = copy / "templates" / "upgrade.yaml"
    objects = {"PersistentVolumeClaim": {"items": []}, **installed}
    (copy / "installed.json").write_text(json.dumps(objects), encoding="utf-8")
    found = r'(get ($.Files.Get "installed.json" | fromJson) "\1")'
    text, count = re.subn(r'lookup "[^"]+" "([^"]+)" \S+ \S+(?= }})', found, template.read_text(encoding="utf-8"))
    assert count == 2
    template.write_text(text, encoding="utf-8")
    arguments = [f"--set-json={path.replace('__', '.')}={json.dumps(value)}" for path, value in sets.items()]
    helm("template", RELEASE[0], str(copy), *RELEASE[2:], "--is-upgrade", *arguments)


@pytest.mark.parametrize("version", ["0.0.9", "0.1.0", "0.1.0-rc.1"])
def test_newer_versions_may_be_installed_over_older_ones(tmp_path: Path, version: str) -> None:
    installed = {"Deployment": {"metadata": {"labels": {"app.kubernetes.io/version": version}}}}
    upgraded(tmp_path, installed, router__persistence__enabled=True)


def test_an_older_version_over_a_newer_run_log_is_refused(tmp_path: Path) -> None:
    installed = {"Deployment": {"metadata": {"labels": {"app.kubernetes.io/version": "0.2.0-rc.1"}}}}
    with pytest.raises(
        Failed, match=re.escape("version 0.2.0-rc.1 is installed, and 0.1.0 does not open its run log")
    ):
        upgraded(tmp_path / "a", installed, router__persistence__enabled=True)
    upgraded(tmp_path / "b", installed)  # whose run log ended with its pod


@pytest.mark.parametrize(
    ("claim", "sets", "is_refused"),
    [
        (CLAIM, {}, True),
        (CLAIM, {"router__persistence": {"enabled": True, "existingClaim": "another"}}, True),
        (CLAIM, {"router__persistence__enabled": True}, False),
        (KEPT, {}, False),
        (OF_ANOTHER, {}, False),
        (WITHOUT, {}, False),
        (ENDING, {}, False),
        (HOME, {}, True),
        (HOME, {"adapters": [{**CODEX, "name": "claude-code"}]}, True),
        (HOME, {"adapters": [CODEX]}, False),
        (HOME, {"adapters": [{**CODEX, "home": {"existingClaim": "another"}}]}, True),
        (EXTRA, {}, True),
        (
            EXTRA,
            {"extraObjects": [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}}]},
            False,
        ),
    ],
)
def test_an_upgrade_that_would_delete_a_volume_is_refused(
    tmp_path: Path, claim: Object, sets: dict[str, Any], is_refused: bool
) -> None:
    installed = {"PersistentVolumeClaim": {"items": [WITHOUT, claim]}}
    if not is_refused:
        upgraded(tmp_path, installed, **sets)
        return
    name = claim["metadata"]["name"]
    with pytest.raises(Failed, match=re.escape(f"annotate pvc {name} helm.sh/resource-policy=keep")):
        upgraded(tmp_path, installed, **sets)


def test_without_values_it_is_a_router_without_rights() -> None:
    found = render()
    assert sorted(one["kind"] for one in found.values()) == ["Deployment", "NetworkPolicy", "NetworkPolicy"]
    assert router(found)["automountServiceAccountToken"] is False
    assert "--listen=127.0.0.1:7777" in router(found)["containers"][0]["args"]


def test_no_container_has_more_rights_than_it_needs(shape: str) -> None:
    for name, spec in pods(render(shape)):
        security = spec["securityContext"]
        assert security["runAsNonRoot"], name
        assert security["runAsUser"] == 10001, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(spec):
            expected = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["securityContext"] == expected, (name, container["name"])
            assert container["resources"]["limits"]["memory"], (name, container["name"])
        # Agents in sidecars must not find a token of the API server.
        assert spec["automountServiceAccountToken"] is False, name
        having = [one["name"] for one in containers(spec) if "api-access" in str(one["volumeMounts"])]
        needs_token = any("--kubernetes=" in one for one in spec["containers"][0].get("args", ()))
        assert having == (["router"] if needs_token else []), name


def test_the_router_may_follow_endpoint_slices_and_nothing_else(shape: str) -> None:
    roles = [one for one in render(shape).values() if "rbac" in one["apiVersion"] and one["kind"] != "RoleBinding"]
    for role in roles:
        assert role["kind"] == "Role", "not in the whole cluster"
        rules = [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
        ]
        assert role["rules"] == rules
    assert bool(roles) == (shape != "sidecars")


def test_each_directory_that_must_be_private_is_one_of_its_own_in_its_volume(shape: str) -> None:
    """A volume's own directory can be written by its group or by all, and Dragoman trusts no such directory."""
    for name, spec in pods(render(shape)):
        (makes,) = [one for one in containers(spec) if one["name"] == "directories"]
        assert spec["initContainers"][0] is makes, "sidecars start after it"
        assert makes["command"] == ["install", "-d", "-m", "0700"]
        volumes = {mount["mountPath"].strip("/"): mount["name"] for mount in makes["volumeMounts"]}
        created = {(volumes[path.split("/")[1]], path.split("/")[2]) for path in makes["args"]}
        used = set()
        for container in containers(spec):
            for mount in container["volumeMounts"] if container is not makes else ():
                if mount.get("readOnly") or mount["name"].startswith("workspace-"):
                    continue
                assert (mount["name"], mount["subPath"]) in created, (name, container["name"], mount)
                used.add((mount["name"], mount["subPath"]))
        assert used <= created


def test_sidecars_start_before_the_router_and_do_not_decide_whether_it_is_ready() -> None:
    spec = router(render("sidecars"))
    sidecars = [one for one in spec["initContainers"] if one.get("restartPolicy") == "Always"]
    assert [one["name"] for one in sidecars] == ["adapter-codex", "adapter-claude-code"]
    for one in sidecars:
        assert "readinessProbe" not in one
        assert one["startupProbe"]
        assert one["livenessProbe"]
        assert any(mount["mountPath"] == "/run/dragoman/sockets" for mount in one["volumeMounts"])


@pytest.mark.parametrize("shape_", ["sidecars", "deployments", "replicas"])
def test_the_kubelet_asks_each_container_at_its_own_port_of_health(shape_: str) -> None:
    """No program starts in a container to ask for health: on a busy node that takes too long."""
    for name, spec in pods(render(shape_)):
        taken = []
        for container in containers(spec):
            if "startupProbe" not in container:
                continue
            variables = {one["name"]: one.get("value", "") for one in container["env"]}
            (address,) = [
                one.removeprefix("--health=") for one in container["args"] if one.startswith("--health=")
            ] or [variables["DRAGOMAN_HEALTH"]]
            host, _, port = address.rpartition(":")
            assert host == "0.0.0.0", "the kubelet calls the pod's address"
            assert container["startupProbe"]["grpc"] == {"port": int(port)}
            if "readinessProbe" in container:
                assert container["readinessProbe"]["grpc"] == {"port": int(port)}
            # What drains does not serve any more, and must not be killed for that.
            assert container["livenessProbe"]["grpc"] == {"port": int(port), "service": LIVENESS}
            taken.append(int(port))
        assert sorted(taken) == list(range(7900, 7900 + len(taken))), name
        assert bool(taken) == (not name.startswith("Pod/")), name


def test_what_a_pod_has_time_for_is_longer_than_what_it_does(shape: str) -> None:
    for name, spec in pods(render(shape)):
        for container in spec["containers"]:
            sleeps = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            # A router's runs get 30 s, and its adapters 20; an adapter cancels its runs within 15 s and a margin.
            works = 50 if container["name"] == "router" else 30 if container["name"] == "adapter" else 0
            assert spec.get("terminationGracePeriodSeconds", 30) > sleeps + works, name


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    for one in selector.get("matchExpressions", ()):
        assert one["operator"] == "In"
        if labels.get(one["key"]) not in one["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


@pytest.mark.parametrize("shape_", ["sidecars", "deployments", "replicas"])
def test_what_no_policy_names_is_closed(shape_: str) -> None:
    """Each pod is selected by the default policy, which lets nothing in, and out to DNS only."""
    found = render(shape_)
    policies = [one["spec"] for one in found.values() if one["kind"] == "NetworkPolicy"]
    default = found["NetworkPolicy/rel-dragoman-default"]["spec"]
    assert default["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in default
    assert [port["port"] for rule in default["egress"] for port in rule["ports"]] == [53, 53]
    for one in found.values():
        if one["kind"] in {"Pod", "Deployment"}:
            labels = (one if one["kind"] == "Pod" else one["spec"]["template"])["metadata"]["labels"]
            assert matches(default["podSelector"], labels)
    for policy in policies:
        for rule in (*policy.get("ingress", ()), *policy.get("egress", ())):
            # An empty rule, or one without peers or ports, would allow everything.
            assert rule.get("from") or rule.get("to"), policy
            assert rule["ports"], policy
            # Health is for the kubelet, which needs no rule.
            assert not any(7900 <= port["port"] < 8000 for port in rule["ports"]), policy


def test_only_routers_may_call_adapters() -> None:
    found = render("deployments")
    rule = found["NetworkPolicy/rel-dragoman-codex"]["spec"]
    labels = found["Deployment/rel-dragoman"]["spec"]["template"]["metadata"]["labels"]
    (ingress,) = rule["ingress"]
    (peer,) = ingress["from"]
    assert list(peer) == ["podSelector"], "of the same namespace"
    assert matches(peer["podSelector"], labels)
    others = found["Deployment/rel-dragoman-process"]["spec"]["template"]["metadata"]["labels"]
    assert not matches(peer["podSelector"], others)
    assert found["NetworkPolicy/rel-dragoman-process"]["spec"].get("egress") is None


def test_a_service_selects_the_pods_of_its_adapter_and_the_router_finds_its_slices() -> None:
    found = render("deployments")
    (selector,) = [one for one in router(found)["containers"][0]["args"] if one.startswith("--kubernetes=")]
    expected = dict(part.split("=") for part in selector.removeprefix("--kubernetes=").split(","))
    for adapter in ("codex", "process"):
        service, deployment = found[f"Service/rel-dragoman-{adapter}"], found[f"Deployment/rel-dragoman-{adapter}"]
        assert expected.items() <= service["metadata"]["labels"].items()
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not expected.items() <= found["Service/rel-dragoman"]["metadata"]["labels"].items()


def test_certificates_name_what_the_router_dials() -> None:
    found = render("replicas")
    names = {
        one["spec"]["secretName"]: one["spec"]["dnsNames"] for one in found.values() if one["kind"] == "Certificate"
    }
    # SERVICE.NAMESPACE.svc, as the router expects of the pods of a Service.
    assert names == {
        "rel-dragoman-router-tls": ["rel-dragoman.agents.svc"],
        "rel-dragoman-codex-tls": ["rel-dragoman-codex.agents.svc"],
    }
    assert "--peer-name=rel-dragoman.agents.svc" in router(found)["containers"][0]["args"]
    used = {
        volume["secret"]["secretName"]
        for _, spec in pods(found)
        for volume in spec["volumes"]
        if volume["name"] == "tls"
    }
    assert used == set(names)


def test_who_may_call_is_known_to_the_routers_alone() -> None:
    spec = router(render("replicas"))
    volumes = {one["name"]: one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
    assert volumes["tokens"] == "dragoman-tokens"
    assert volumes["trust"] == "dragoman-trust"
    for container in containers(spec):
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        variables = {one["name"]: one.get("value") for one in container.get("env", ())}
        if container["name"] == "router":
            assert variables["DRAGOMAN_TOKENS"] == f"{mounted['tokens']}/tokens.json"
            assert variables["DRAGOMAN_TRUST"] == f"{mounted['trust']}/trust.toml"
        else:
            assert not mounted.keys() & {"tokens", "trust"}, container["name"]
            assert not variables.keys() & {"DRAGOMAN_TOKENS", "DRAGOMAN_TRUST"}, container["name"]


def test_keys_of_webhooks_and_secrets_of_stored_agents_are_in_the_router_alone() -> None:
    spec = router(render("replicas"))
    volumes = {one["name"]: one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
    assert volumes["webhooks"] == "dragoman-webhooks"
    assert volumes["agent-secrets"] == "dragoman-agents"
    for container in containers(spec):
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        if container["name"] == "router":
            assert f"--webhooks={mounted['webhooks']}/webhooks.toml" in container["args"]
            assert f"--secrets={mounted['agent-secrets']}" in container["args"]
        else:
            assert not mounted.keys() & {"webhooks", "agent-secrets"}, container["name"]


@pytest.mark.parametrize("name", ["router", "adapter", "adapter-codex", "test"])
def test_each_command_is_one_that_the_program_has(name: str) -> None:
    """An option that was renamed would only be noticed in a cluster."""
    for shape in ("sidecars", "deployments", "replicas"):
        for _, spec in pods(render(shape)):
            for one in containers(spec):
                if one["name"] == name:
                    guarded = [*one.get("command", []), *one.get("args", [])]
                    check_options(guarded[guarded.index("dragoman") + 1 :])


def check_options(arguments: list[str]) -> None:
    """Check a command line's options by the help of its command."""
    words = [one for one in arguments if re.fullmatch(r"[a-z]+", one)]
    path = words[:2] if words[0] == "adapter" else words[:1]
    text = CliRunner().invoke(cli, [*path, "--help"]).output
    assert "Usage" in text
    for one in arguments:
        if one.startswith("--"):
            assert re.search(rf"{one.partition('=')[0]}\b", text), (path, one)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"adapters": ONE}, "needs TLS: set tls.existingSecret"),
        ({"tls__existingSecret": "tls"}, "kubectl create secret generic dragoman-token"),
        ({**TLS, "adapters": ONE}, "set networkPolicy.kubernetesApi.cidrs"),
        ({**TLS, "router__replicas": 2}, "set postgresql.existingSecret"),
        ({"router__replicas": 2, "postgresql__existingSecret": "db", **OPEN}, "several routers call each other"),
        ({**TLS, "postgresql__existingSecret": "db"}, "set networkPolicy.postgresql.to"),
        ({"router__webhooks__existingSecret": "hooks"}, "set networkPolicy.webhooks.to"),
        (
            {
                **TLS,
                **OPEN,
                "router": {"replicas": 2, "persistence": {"enabled": True}},
                "postgresql__existingSecret": "d",
            },
            "set router.persistence.enabled=false",
        ),
        ({**TLS, **OPEN, "adapters": [*ONE, *ONE]}, 'two have the name "codex"'),
        ({**TLS, **OPEN, "adapters": [{"name": "codex"}]}, '"codex" has no image'),
        ({"adapters": [{**ONE[0], "mode": "sidecar", "replicas": 2}]}, "remove replicas, or set mode: deployment"),
        ({"adapters": [{**ONE[0], "mode": "sidecar", "runtimeClassName": "gvisor"}]}, "set router.runtimeClassName"),
        ({**TLS, **OPEN, "adapters": [{**ONE[0], "replicas": 2, "home": {"size": "1Gi"}}]}, "[ReadWriteMany]"),
        (
            {**TLS, **OPEN, "agentSandbox__enabled": True, "adapters": [{**ONE[0], "home": {"size": "1Gi"}}]},
            "beside one that is claimed the pool makes another",
        ),
    ],
)
def test_values_that_do_not_fit_together_are_refused_with_what_to_do(values: dict[str, Any], says: str) -> None:
    with pytest.raises(Failed) as failed:
        render(**values)
    assert says in str(failed.value)


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 3},
        {"router__replica": 3},
        {"router__replicas": "3"},
        {"router__webhooks__file": "webhooks.toml"},
        {"adapters": [{"name": "Codex"}]},
        {"adapters": [{"name": "codex", "mode": "daemon"}]},
        {"adapters": [{"name": "codex", "images": {}}]},
        {"adapters": [{"type": "codex"}]},
        {"image__digest": "sha256:123"},
        {"runAs": 0},
        {"networkPolicy__kubernetesApi__cidrs": ["kubernetes.default"]},
        {"networkPolicy__dns": []},
        {"adapterDefaults__home__size": "much"},
    ],
)
def test_values_that_are_unknown_or_of_another_kind_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(Failed) as failed:
        render(**values)
    assert "values don't meet the specifications of the schema" in str(failed.value)


def test_the_schema_knows_each_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def check(part: Any, value: Any, path: str) -> None:
        properties = part.get("properties")
        if properties is None or not isinstance(value, dict):
            return
        assert part["additionalProperties"] is False, path
        # A value that has no default is that of an entry, or Helm's own.
        without = {"global", "name", "kind", "group"}
        assert set(properties) - without == set(value) - without, path
        for name, one in value.items():
            check(properties[name], one, f"{path}.{name}")

    check(schema, values, "")
    entry, defaults = schema["properties"]["adapters"]["items"], schema["properties"]["adapterDefaults"]
    assert set(entry["properties"]) - {"name", "type"} == set(defaults["properties"])
    assert entry["additionalProperties"] is False


def test_the_readme_is_generated_from_the_values(tmp_path: Path) -> None:
    """Make it anew: PATH="$(scripts/install-helm):$PATH" helm-docs --chart-search-root deploy/helm."""
    copy = tmp_path / "dragoman"
    shutil.copytree(CHART, copy)
    subprocess.run(["helm-docs", "--chart-search-root", str(tmp_path)], check=True, capture_output=True, timeout=50)
    assert (copy / "README.md").read_text(encoding="utf-8") == (CHART / "README.md").read_text(encoding="utf-8")


def test_the_version_is_that_of_the_package() -> None:
    project = (CHART.parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert f'version = "{chart["appVersion"]}"' in project


@pytest.mark.parametrize(
    ("shape", "says"), [("sidecars", "port-forward deploy/rel-dragoman"), ("deployments", "helm test rel -n agents")]
)
def test_the_notes_say_what_to_type_next(shape: str, says: str, tmp_path: Path) -> None:
    """Helm renders notes only in a cluster; so they are put into an object here."""
    copy = tmp_path / "dragoman"
    shutil.copytree(CHART, copy)
    (copy / "templates" / "NOTES.txt").rename(copy / "notes.tpl")
    (copy / "templates" / "notes.yaml").write_text(
        'kind: Notes\nmetadata: {name: notes}\ntext: {{ tpl (.Files.Get "notes.tpl") . | quote }}\n'
    )
    arguments = (RELEASE[0], str(copy), *RELEASE[2:], "--values", str(values_of(shape)))
    notes = objects(helm("template", *arguments))["Notes/notes"]["text"]
    assert says in notes
    assert ("There are no adapters yet" in notes) is False


MONITORED = {**TLS, "metrics__enabled": True}


def test_metrics_are_read_by_those_that_are_named_alone() -> None:
    found = render("replicas")
    for name in ("NetworkPolicy/rel-dragoman-router", "NetworkPolicy/rel-dragoman-codex"):
        (rule,) = [one for one in found[name]["spec"]["ingress"] if one["ports"][0]["port"] == 9464]
        assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    closed = render("replicas", metrics__clients=[], metrics__serviceMonitor__enabled=False)
    assert all(
        one["ports"][0]["port"] != 9464
        for name, policy in closed.items()
        if name.startswith("NetworkPolicy/")
        for one in policy["spec"].get("ingress", [])
    )


def test_the_service_of_metrics_is_no_adapter() -> None:
    """Routers find adapters by the labels of Services."""
    found = render("replicas")
    labels = found["Service/rel-dragoman-metrics"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "metrics"
    monitor = found["ServiceMonitor/rel-dragoman"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_alerts_and_the_dashboard_ask_for_metrics_that_there_are() -> None:
    found = render("replicas")
    rules = found["PrometheusRule/rel-dragoman"]["spec"]["groups"][0]["rules"]
    dashboard = json.loads(found["ConfigMap/rel-dragoman-dashboard"]["data"]["dragoman.json"])
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    guide = (CHART.parents[2] / "docs/guides/telemetry.md").read_text(encoding="utf-8")
    for expression in asked:
        for name in re.findall(r"dragoman_\w+", expression.replace("app_kubernetes_io", "")):
            assert f"`{name.removesuffix('_bucket')}`" in guide
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")


def test_routers_scale_on_their_live_runs() -> None:
    (metric,) = render("replicas")["HorizontalPodAutoscaler/rel-dragoman"]["spec"]["metrics"]
    assert metric["pods"]["metric"] == {"name": "dragoman_live_runs"}
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "40"}


def test_metrics_and_traces_are_off_unless_asked_for() -> None:
    text = helm("template", *RELEASE, "--values", str(values_of("deployments")))
    assert "9464" not in text
    assert "OTEL_" not in text


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"router__autoscaling__targetLiveRuns": 5}, "set metrics.enabled=true"),
        ({"metrics__dashboard__enabled": True}, "set metrics.enabled=true"),
        ({**MONITORED, "metrics__serviceMonitor__enabled": True}, "set metrics.clients"),
        ({"tracing__endpoint": "http://collector:4318"}, "set tracing.to"),
        ({"tracing__endpoint": "collector:4318"}, "tracing"),
        (
            {
                **TLS,
                **OPEN,
                "adapters": [{"name": "codex", "image": {"repository": "codex"}, "drainGraceSeconds": 900}],
            },
            "set it to at least 940",
        ),
    ],
)
def test_telemetry_and_drain_that_cannot_work_are_refused(sets: dict[str, Any], message: str) -> None:
    with pytest.raises(Failed, match=re.escape(message)):
        render(**sets)
