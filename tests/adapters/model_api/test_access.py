"""Where a run's model is, and what its service is sent for that: key, organization, project, and whose headers."""

import asyncio
from typing import Any, Self

import pytest
from dragoman.adapters.model_api import access, adapter
from dragoman.adapters.model_api.access import access_to, listed_models
from dragoman.adapters.model_api.failures import ServiceError
from dragoman.adapters.model_api.providers import ANTHROPIC, OPENAI, Access, Provider, Service
from dragoman.sdk import Model
from dragoman.v1 import adapter_pb2 as api

from tests.adapters.jobs import job_of, request_of

URL = "http://127.0.0.1:1"
ASKED: dict[Provider, dict[str, Any]] = {
    ANTHROPIC: {"max_tokens": 9},
    OPENAI: {},
}


@pytest.mark.parametrize(
    ("provider", "env", "ours", "expected"),
    [
        (ANTHROPIC, {"ANTHROPIC_API_KEY": "k"}, {}, Access("k", "ANTHROPIC_API_KEY", "")),
        (ANTHROPIC, {"ANTHROPIC_AUTH_TOKEN": "t"}, {}, Access("t", "ANTHROPIC_AUTH_TOKEN", "")),
        (ANTHROPIC, {}, {"ANTHROPIC_API_KEY": "o"}, Access("o", "ANTHROPIC_API_KEY", "")),
        (ANTHROPIC, {"ANTHROPIC_API_KEY": "k"}, {"ANTHROPIC_API_KEY": "o"}, Access("k", "ANTHROPIC_API_KEY", "")),
        (
            ANTHROPIC,
            {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": URL},
            {},
            Access("k", "ANTHROPIC_API_KEY", URL),
        ),
        (
            ANTHROPIC,
            {},
            {"ANTHROPIC_API_KEY": "o", "ANTHROPIC_BASE_URL": URL},
            Access("o", "ANTHROPIC_API_KEY", URL),
        ),
        (
            OPENAI,
            {"OPENAI_API_KEY": "k", "OPENAI_ORG_ID": "org", "OPENAI_PROJECT_ID": "proj"},
            {},
            Access("k", "OPENAI_API_KEY", "", "org", "proj"),
        ),
        (OPENAI, {"OPENAI_BASE_URL": URL}, {"OPENAI_API_KEY": "o"}, Access("", "", URL)),
    ],
)
def test_the_access_of_a_run(provider: Provider, env: dict[str, str], ours: dict[str, str], expected: Access) -> None:
    assert access_to(provider, job_of(adapter(), request_of(env=env)), {**ours, **env}) == expected


@pytest.mark.parametrize(
    ("provider", "path", "target", "sent"),
    [
        (ANTHROPIC, "v1/messages", Access("k", "ANTHROPIC_API_KEY", ""), {"authorization": "bearer k"}),
        (ANTHROPIC, "v1/messages", Access("k", "ANTHROPIC_AUTH_TOKEN", ""), {"authorization": "bearer k"}),
        (OPENAI, "chat/completions", Access("k", "OPENAI_API_KEY", ""), {"authorization": "bearer k"}),
        (OPENAI, "chat/completions", Access("", "", ""), {"authorization": "bearer none"}),
        (
            OPENAI,
            "chat/completions",
            Access("k", "OPENAI_API_KEY", "", "org", "proj"),
            {"authorization": "bearer k", "openai-organization": "org", "openai-project": "proj"},
        ),
    ],
)
async def test_what_a_service_is_sent(
    provider: Provider, path: str, target: Access, sent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{name}_CUSTOM_HEADERS", "X-Ambient: secret\nAuthorization: Bearer secret")
    monkeypatch.setenv("OPENAI_ORG_ID", "ambient")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "ambient")
    heads = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/at"
        reached = Access(target.key, target.key_variable, url, target.organization, target.project)
        async with Service(provider, reached) as service:
            with pytest.raises(ServiceError):
                await anext(service.events({**ASKED[provider], "model": "m", "messages": [], "stream": True}))
    (head,) = heads
    line, *lines = head.lower().splitlines()
    assert line.startswith(f"post /at/{path} ")
    headers = dict(item.split(": ", 1) for item in lines if item)
    names = ("x-api-key", "authorization", "openai-organization", "openai-project", "x-ambient")
    assert {name: headers[name] for name in names if name in headers} == sent


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"ANTHROPIC_API_KEY": "k"}, Access("k", "ANTHROPIC_API_KEY", "")),
        ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": URL}, Access("k", "ANTHROPIC_API_KEY", URL)),
        ({"ANTHROPIC_BASE_URL": URL}, None),
        ({}, Access("o", "ANTHROPIC_AUTH_TOKEN", "")),
    ],
)
async def test_the_models_of_a_service_are_asked_for_with_the_key_of_its_run(
    env: dict[str, str], expected: Access | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Recording:
        def __init__(self, provider: Provider, target: Access) -> None:
            asked.append((provider, target))

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def models(self) -> list[Model]:
            return [Model("m")]

    for name in (*ANTHROPIC.key_variables, ANTHROPIC.url_variable, *OPENAI.key_variables):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "o")
    monkeypatch.setattr(access, "Service", Recording)
    models = await listed_models(api.ListModelsRequest(adapter="model_api", env=env))
    assert asked == ([] if expected is None else [(ANTHROPIC, expected)])
    assert list(models) == ([] if expected is None else [Model("m")])
