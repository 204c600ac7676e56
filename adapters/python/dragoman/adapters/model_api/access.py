"""The provider, address, key and model of a run, from its settings and environment."""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Final

from dragoman.adapters.model_api.failures import ServiceError
from dragoman.adapters.model_api.providers import (
    ANTHROPIC,
    OPENAI,
    PROVIDERS,
    Access,
    Provider,
    Service,
    is_installed,
)
from dragoman.sdk import FailureError, FailureInfo, Job, Model
from dragoman.sdk.fields import as_object, as_string
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

ALIASES: Final[Mapping[str, Provider]] = {
    "anthropic_api": ANTHROPIC,
    "anthropic-api": ANTHROPIC,
    "openai_api": OPENAI,
    "openai-api": OPENAI,
}
"""Names of the adapter that choose a provider."""

_LIST_LIMIT_S: Final = 10.0


def provider_named(name: str, alias: str, *layers: Mapping[str, str]) -> Provider:
    """Return the provider: by the setting, by the adapter's alias, or the first one with a key.

    Args:
        name: ``config.provider``, or empty.
        alias: the adapter's name in the request.
        layers: environments, the caller's before the inherited one.
    """
    named = PROVIDERS.get(name) or ALIASES.get(alias)
    if named is not None:
        return named
    for layer in layers:
        for provider in PROVIDERS.values():
            if any(layer.get(variable) for variable in provider.key_variables):
                return provider
    return ANTHROPIC


def provider_of(job: Job, env: Mapping[str, str]) -> Provider:
    """Return the provider of a run. ``env`` is the environment that an agent would get."""
    request = job.request
    # A router sends the adapter's type in place of an alias; the agent's record may still have the alias.
    alias = request.adapter if request.adapter in ALIASES else request.agent.adapter_type
    return provider_named(as_string(job.config.get("provider"), ""), alias, job.requested_env, env)


def model_of(provider: Provider, job: Job, env: Mapping[str, str]) -> str:
    """Return the model of a run.

    Raises:
        FailureError: none is set, and the provider has no default.
    """
    model = job.settings.model or env.get(provider.model_variable) or provider.default_model
    if not model:
        message = f"No model is set, and {provider.name} has no default. Set model, or {provider.model_variable}."
        raise FailureError(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="model_missing"))
    return model


def access_to(provider: Provider, job: Job, env: Mapping[str, str]) -> Access:
    """Return where the service is and with which key.

    A key of the adapter's own environment is never sent to an address that the caller chose.

    Raises:
        FailureError: there is no key, or none that may be sent there.
    """
    own = job.requested_env
    url = env.get(provider.url_variable, "")
    layers = (own,) if own.get(provider.url_variable) else (own, env)
    for layer in layers:
        for name in provider.key_variables:
            if layer.get(name):
                return Access(layer[name], name, url, env.get("OPENAI_ORG_ID", ""), env.get("OPENAI_PROJECT_ID", ""))
    if provider is OPENAI and url:
        return Access("", "", url)  # local servers need none
    names = " or ".join(provider.key_variables)
    if own.get(provider.url_variable):
        message = (
            f"The run sets {provider.url_variable}; the adapter's key is not sent there. Set {names} in env too."
        )
    else:
        message = f"There is no key: set {names} in env."
    raise FailureError(FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, message, code="key_missing", errors=(message,)))


async def listed_models(request: adapter_pb2.ListModelsRequest) -> Sequence[Model]:
    """Return the models that the service lists; empty if there is no key, no SDK, or no answer in time."""
    config = as_object(json_format.MessageToDict(request.config), {})
    env = {**os.environ, **request.env}
    provider = provider_named(as_string(config.get("provider"), ""), request.adapter, request.env, env)
    layer: Mapping[str, str] = request.env if request.env.get(provider.url_variable) else env
    key = next((name for name in provider.key_variables if layer.get(name)), "")
    if not key or not is_installed(provider):
        return ()
    access = Access(layer[key], key, env.get(provider.url_variable, ""))
    with contextlib.suppress(ServiceError, TimeoutError):
        async with asyncio.timeout(_LIST_LIMIT_S), Service(provider, access) as service:
            return await service.models()
    return ()
