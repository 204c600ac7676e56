"""Logins and models, from the program itself, without a gateway."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from dragoman.adapters.openclaw.environment import config_file
from dragoman.sdk import CommandLineAdapter, Model
from dragoman.sdk import fields as read
from dragoman.sdk.detection import AuthFinding, probe
from dragoman.sdk.fields import Fields, parse_json_object, read_json_object
from dragoman.v1 import adapter_pb2 as pb

_AUTH_LIMIT_S: Final = 7.5
_MODELS_LIMIT_S: Final = 60.0
_VARIABLE: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")


async def read_auth(executable: str, env: Mapping[str, str], keys: Iterable[str]) -> AuthFinding:
    """Return whether the provider of the default model has a key or a login, as OpenClaw sees it.

    Args:
        executable: OpenClaw.
        env: its environment.
        keys: the variables with keys of providers.
    """
    configured = configured_key(config_file(env), env)
    if configured is not None:
        return configured
    if not was_used(env, keys):
        return AuthFinding(pb.AUTH_STATE_UNKNOWN)
    answer = await probe([executable, "models", "status", "--json"], env, _AUTH_LIMIT_S)
    status = parse_json_object(answer.stdout.encode()) if not answer.timed_out else None
    if status is None:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN)  # it takes seconds even on an idle machine
    return judge(status)


def was_used(env: Mapping[str, str], keys: Iterable[str]) -> bool:
    """Return whether OpenClaw may know of a key or a login: it has a directory, or one of the keys is in ``env``.

    To answer that there is none it takes three seconds of CPU time, most of what detecting all agents takes.
    """
    return config_file(env).parent.is_dir() or any(env.get(name) for name in keys)


def configured_key(config: Path, env: Mapping[str, str]) -> AuthFinding | None:
    """Return whether the configuration has a key for its default model; None if only OpenClaw itself knows.

    The program takes seconds to answer; a file in plain JSON with a key in it takes none.
    """
    settings = read_json_object(config)
    model = read.inner(read.inner(read.inner(settings, "agents"), "defaults"), "model")
    provider = read.text(model, "primary").partition("/")[0]
    key = read.text(read.inner(read.inner(read.inner(settings, "models"), "providers"), provider), "apiKey")
    named = _VARIABLE.fullmatch(key)
    if not key or (named and not env.get(named[1])):
        return None
    return AuthFinding(pb.AUTH_STATE_OK, "env" if named else "config")


def judge(status: Fields) -> AuthFinding:
    """Return the state of the login that ``openclaw models status --json`` reports. Pure."""
    model = read.text(status, "resolvedDefault") or read.text(status, "defaultModel")
    auth = read.inner(status, "auth")
    default = model.partition("/")[0]
    missing = auth.get("missingProvidersInUse")
    if isinstance(missing, list) and default in missing:
        return AuthFinding(pb.AUTH_STATE_MISSING)
    for provider in read.objects(auth, "providers"):
        if read.text(provider, "provider") == default:
            method = read.text(read.inner(provider, "effective"), "kind")
            if method and method != "missing":
                return AuthFinding(pb.AUTH_STATE_OK, method)
    return AuthFinding(pb.AUTH_STATE_MISSING)


async def read_models(adapter: CommandLineAdapter, request: pb.ListModelsRequest) -> pb.ListModelsResponse:
    """Return the models that the user's configuration names; none if the program does not answer."""
    env = {**os.environ, **request.env}
    found = await adapter.detect(pb.DetectRequest(env=request.env))
    response = pb.ListModelsResponse(source=pb.MODEL_SOURCE_STATIC)
    if not found.available:
        return response
    answer = await probe([found.executable, "models", "list", "--json"], env, _MODELS_LIMIT_S)
    for model in models_of(parse_json_object(answer.stdout.encode()) or {}):
        response.models.add(id=model.id, label=model.label, is_default=model.is_default)
        response.source = pb.MODEL_SOURCE_AGENT
    return response


def models_of(listing: Fields) -> list[Model]:
    """Return the models of ``openclaw models list --json``. Pure."""
    models = []
    for item in read.objects(listing, "models"):
        tags = item.get("tags")
        is_default = isinstance(tags, list) and "default" in tags
        if read.text(item, "key"):
            models.append(Model(read.text(item, "key"), read.text(item, "name"), is_default=is_default))
    return models
