"""From a job to the request to the service. Pure."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Final

from dragoman.protocol.egress import Call, EgressGate, RefusedError, target_of
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import Job
from dragoman.sdk.fields import JsonValue, as_object, as_string, as_string_list, compact
from dragoman.sdk.run import render
from dragoman.v1 import adapter_pb2

TOKEN_VARIABLE: Final = "HTTP_BEARER_TOKEN"  # noqa: S105 - a name
"""The variable of the run's environment with the token; by its name the SDK redacts the value."""
HEADER_VARIABLE: Final = "HTTP_HEADER_SECRET_"
"""Begins the names of the variables that headers use."""

DEFAULT_BODY: Final[Mapping[str, JsonValue]] = {
    "prompt": "{{prompt}}",
    "systemPrompt": "{{systemPrompt}}",
    "instructions": "{{instructions}}",
    "model": "{{model}}",
    "sessionId": "{{sessionId}}",
    "runId": "{{runId}}",
    "callbackUrl": "{{callbackUrl}}",
}
"""The body unless ``config.body`` has another; members that are empty are left out."""

_ENV: Final = re.compile(r"\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_OWN_HEADERS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NEEDS: Final = {"system_prompt": "systemPrompt", "instructions": "instructions", "model": "model"}


def gate_of(config: Mapping[str, JsonValue]) -> EgressGate:
    """Return the hosts and networks that requests may go to.

    Raises:
        RefusedError: ``config.url`` is no URL.
    """
    networks = as_string_list(config.get("allowedNetworks"))
    return EgressGate(
        own=target_of(as_string(config.get("url"), "")),
        hosts=tuple(as_string_list(config.get("allowedHosts"))),
        networks=tuple(ipaddress.ip_network(item, strict=False) for item in networks),
    )


def secrets_of(job: Job) -> dict[str, str]:
    """Return the run's secrets as variables; by their names the SDK redacts the values."""
    env = job.requested_env
    variable = as_string(job.config.get("bearerTokenVariable"), "")
    token = env.get(variable, "") if variable else job.request.auth_token
    found = {TOKEN_VARIABLE: token} if token else {}
    headers = as_object(job.config.get("headers"), {})
    for value in headers.values():
        for name in _ENV.findall(as_string(value, "")):
            if env.get(name):
                found[f"{HEADER_VARIABLE}{name}"] = env[name]
    return found


def warnings(url: str, secrets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield codes and messages of unsafe settings."""
    target = target_of(url)
    is_here = target.host in {"localhost", "::1"} or target.host.startswith("127.")
    if secrets and target.scheme == "http" and not is_here:
        yield "plain_http", f"Secrets go to {target.host} unencrypted; use https."


def headers_of(job: Job, secrets: Mapping[str, str], values: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return the headers of every request to the service."""
    headers = {"accept": "application/json, text/event-stream, application/x-ndjson;q=0.9, */*;q=0.5"}
    for name, template in as_object(job.config.get("headers"), {}).items():
        text = _ENV.sub(lambda match: secrets.get(f"{HEADER_VARIABLE}{match[1]}", ""), as_string(template, ""))
        # The values of a template must not begin another header.
        headers[name.lower()] = "".join(char for char in render(text, values).text if char.isprintable())
    if secrets.get(TOKEN_VARIABLE):
        headers["authorization"] = f"Bearer {secrets[TOKEN_VARIABLE]}"
    return headers


def values_of(job: Job, callback_url: str) -> dict[str, JsonValue]:
    """Return the values of templates: those of all adapters, and those of this request."""
    return {
        **job.template_values,
        "prompt": job.prompt,
        "systemPrompt": job.system_prompt,
        "instructions": job.instructions.text if job.instructions is not None else "",
        "model": job.settings.model,
        "sessionId": job.session.native_id,
        "cwd": job.settings.cwd,
        "callbackUrl": callback_url,
    }


def call_of(job: Job, headers: Mapping[str, str], values: Mapping[str, JsonValue]) -> Call:
    """Return the request that starts the run."""
    body: JsonValue
    if "body" in job.config:
        body = _filled(job.config["body"], values)
    else:
        filled = as_object(_filled(dict(DEFAULT_BODY), values), {})
        body = {key: item for key, item in filled.items() if item != ""}
    data = body.encode() if isinstance(body, str) else compact(body).encode()
    kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    method = as_string(job.config.get("method"), "POST")
    return Call(as_string(job.config.get("url"), ""), method, {"content-type": kind, **headers}, data)


def _filled(template: JsonValue, values: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(template, str):
        return render(template, values).text
    if isinstance(template, dict):
        return {key: _filled(item, values) for key, item in template.items()}
    if isinstance(template, list):
        return [_filled(item, values) for item in template]
    return template


def wrong_config(
    request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue], model: str
) -> Iterator[FieldViolation]:
    """Yield what is wrong with a config beyond its schema, and with the fields of a request."""
    for name in ("url", "healthUrl", "cancelUrl"):
        if config.get(name):
            try:
                target_of(as_string(config[name], ""))
            except RefusedError as error:
                yield FieldViolation(f"config.{name}", str(error))
    for index, item in enumerate(as_string_list(config.get("allowedNetworks"))):
        try:
            ipaddress.ip_network(item, strict=False)
        except ValueError:
            yield FieldViolation(f"config.allowedNetworks[{index}]", "must be a network, e.g. 127.0.0.0/8")
    for name in as_object(config.get("headers"), {}):
        if name.lower() in _OWN_HEADERS or not _HEADER_NAME.fullmatch(name):
            yield FieldViolation(f"config.headers.{name[:80]}", "cannot be set")
    if config.get("mode") == "callback" and not as_object(config.get("callback"), {}).get("url"):
        yield FieldViolation("config.callback.url", "is required: where the service reaches this listener")
    is_set = {field.name for field, _ in request.ListFields()} | ({"model"} if model else set())
    body = compact(config.get("body")) if "body" in config else compact(dict(DEFAULT_BODY))
    for field, value in _NEEDS.items():
        if field in is_set and not re.search(rf"\{{\{{\s*{value}\s*\}}\}}", body):
            yield FieldViolation(field, f"would be lost: config.body does not hold {{{{{value}}}}}")
