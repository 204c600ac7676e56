"""What the adapter says of itself: schema, document, what it inherits, what it refuses."""

from importlib.metadata import entry_points
from importlib.resources import files
from typing import get_args

import pytest
from anthropic.types import ModelParam
from dragoman.adapters.model_api import adapter
from dragoman.adapters.model_api.access import access_to, model_of, provider_named
from dragoman.adapters.model_api.providers import ANTHROPIC, OPENAI
from dragoman.client import execute_request
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import FailureError, FailureInfo
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import job_of, request_of

FOLDER = files("dragoman.adapters.model_api")
DOCUMENT = (FOLDER / "configuration.md").read_text(encoding="utf-8")


def test_it_is_found_by_its_entry_point() -> None:
    (entry,) = entry_points(group="dragoman.adapters", name="model_api")
    info = entry.load()().describe()
    assert info.type == "model_api"
    assert {"api-fallback", "api_fallback", "anthropic_api", "openai_api"} <= set(info.aliases)


@pytest.mark.parametrize("name", adapter().spec.inherit)
def test_every_variable_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCUMENT


def test_who_is_asked() -> None:
    ours = {"ANTHROPIC_API_KEY": "a"}
    assert provider_named("", "", {}, {}).name == "anthropic"
    assert provider_named("", "", {"OPENAI_API_KEY": "o"}, ours).name == "openai", "the caller's key comes first"
    assert provider_named("anthropic", "openai_api", {}, {"OPENAI_API_KEY": "o"}).name == "anthropic"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("anthropic_api", "anthropic"),
        ("anthropic-api", "anthropic"),
        ("openai_api", "openai"),
        ("openai-api", "openai"),
    ],
)
def test_an_alias_that_names_a_provider_outranks_the_keys(alias: str, name: str) -> None:
    other = {"OPENAI_API_KEY": "o"} if name == "anthropic" else {"ANTHROPIC_API_KEY": "a"}
    assert provider_named("", alias, other, {}).name == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": " "},
        {"config": {"command": "sh"}},
        {"config": {"provider": "gemini"}},
        {"permissions": pb.Permissions(native_mode="plan")},
    ],
)
def test_what_is_refused(tmp_path: object, wrong: dict[str, object]) -> None:
    permissions = wrong.pop("permissions", None)
    request = execute_request("model_api", cwd=str(tmp_path), **{"prompt": "x", **wrong})  # type: ignore[arg-type] # as above
    if isinstance(permissions, pb.Permissions):
        request.permissions.CopyFrom(permissions)
    with pytest.raises(DragomanError):
        adapter().accept(request)


def test_the_default_is_the_newest_sonnet_that_its_vendors_sdk_knows() -> None:
    listed, _ = get_args(ModelParam)
    sonnets = [name for name in get_args(listed) if name.startswith("claude-sonnet-")]
    assert ANTHROPIC.default_model == sonnets[0]
    assert [model.id for model in ANTHROPIC.models if model.is_default] == [ANTHROPIC.default_model]
    assert {model.id for model in ANTHROPIC.models} <= set(get_args(listed))


def failing(env: dict[str, str], ours: dict[str, str]) -> FailureInfo:
    job = job_of(adapter(), request_of(env=env))
    with pytest.raises(FailureError) as raised:
        access_to(ANTHROPIC, job, {**ours, **env})
    return raised.value.info


def test_a_key_that_is_missing_is_named() -> None:
    missing = failing({}, {})
    assert (missing.kind, missing.code) == (pb.FAILURE_KIND_AUTH_REQUIRED, "key_missing")
    assert "ANTHROPIC_API_KEY" in missing.message
    theirs = failing({"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, {"ANTHROPIC_API_KEY": "of-the-adapter"})
    assert theirs.code == "key_missing"
    assert "the adapter's key is not sent there" in theirs.message


def test_a_model_that_is_missing_is_named() -> None:
    with pytest.raises(FailureError) as raised:
        model_of(OPENAI, job_of(adapter(), request_of()), {})
    assert (raised.value.info.kind, raised.value.info.code) == (pb.FAILURE_KIND_INVALID_CONFIG, "model_missing")
    assert OPENAI.model_variable in raised.value.info.message
