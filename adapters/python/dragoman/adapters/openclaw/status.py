"""What the program tells of logins and models, without a gateway."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.adapters.openclaw.setting import config_file
from dragoman.sdk import AuthFinding, CommandLineAdapter, Model, parse_json_object, probe
from dragoman.sdk import fields as read
from dragoman.sdk.fields import Fields
from dragoman.v1 import adapter_pb2 as pb

_AUTH_LIMIT_S: Final = 7.5
_MODELS_LIMIT_S: Final = 60.0
_MOST_BYTES: Final = 2 * 1024 * 1024
_VARIABLE: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")


async def read_auth(executable: str, env: Mapping[str, str]) -> AuthFinding:
    """Return whether the provider of the default model has a key or a login, as OpenClaw sees it."""
    configured = configured_key(config_file(env), env)
    if configured is not None:
        return configured
    told = await probe([executable, "models", "status", "--json"], env, _AUTH_LIMIT_S)
    status = parse_json_object(told.stdout.encode()) if not told.timed_out else None
    if status is None:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN)  # it takes seconds on a quiet machine; that is no problem to mend
    return judge(status)


def configured_key(config: Path, env: Mapping[str, str]) -> AuthFinding | None:
    """Return whether the configuration has a key for its default model; None if only OpenClaw itself can tell.

    Asking the program takes seconds; a file in plain JSON with a key in it needs no asking.
    """
    try:
        told = parse_json_object(config.read_bytes()[:_MOST_BYTES]) or {}
    except OSError:
        return None
    model = read.inner(read.inner(read.inner(told, "agents"), "defaults"), "model")
    wanted = read.text(model, "primary").partition("/")[0]
    key = read.text(read.inner(read.inner(read.inner(told, "models"), "providers"), wanted), "apiKey")
    named = _VARIABLE.fullmatch(key)
    if not key or (named and not env.get(named[1])):
        return None
    return AuthFinding(pb.AUTH_STATE_OK, "env" if named else "config")


def judge(status: Fields) -> AuthFinding:
    """Sum up what ``openclaw models status --json`` says. Pure."""
    model = read.text(status, "resolvedDefault") or read.text(status, "defaultModel")
    auth = read.inner(status, "auth")
    wanted = model.partition("/")[0]
    missing = auth.get("missingProvidersInUse")
    if isinstance(missing, list) and wanted in missing:
        return AuthFinding(pb.AUTH_STATE_MISSING)
    for provider in read.objects(auth, "providers"):
        if read.text(provider, "provider") == wanted:
            method = read.text(read.inner(provider, "effective"), "kind")
            if method and method != "missing":
                return AuthFinding(pb.AUTH_STATE_OK, method)
    return AuthFinding(pb.AUTH_STATE_MISSING)


async def read_models(adapter: CommandLineAdapter, request: pb.ListModelsRequest) -> pb.ListModelsResponse:
    """Return the models that the user's configuration names; none if it cannot be asked."""
    env = {**os.environ, **request.env}
    found = await adapter.detect(pb.DetectRequest(env=request.env))
    response = pb.ListModelsResponse(source=pb.MODEL_SOURCE_STATIC)
    if not found.available:
        return response
    told = await probe([found.executable, "models", "list", "--json"], env, _MODELS_LIMIT_S)
    for model in models_of(parse_json_object(told.stdout.encode()) or {}):
        response.models.add(id=model.id, label=model.label, is_default=model.is_default)
        response.source = pb.MODEL_SOURCE_AGENT
    return response


def models_of(told: Fields) -> list[Model]:
    """Return what ``openclaw models list --json`` names. Pure."""
    models = []
    for item in read.objects(told, "models"):
        tags = item.get("tags")
        is_default = isinstance(tags, list) and "default" in tags
        if read.text(item, "key"):
            models.append(Model(read.text(item, "key"), read.text(item, "name"), is_default=is_default))
    return models
