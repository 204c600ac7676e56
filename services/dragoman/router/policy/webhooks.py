"""Webhooks of a router: which events of which runs go where, as what body, with which signature. Pure.

Signatures are those of Standard Webhooks (https://www.standardwebhooks.com).
"""

import base64
import binascii
import ipaddress
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from dragoman.protocol.egress import EgressGate, Network, RefusedError, target_of
from dragoman.protocol.identity import near_names
from dragoman.protocol.texts import enum_name
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf import json_format
from msgspec import Struct

EVENTS: Final = ("input_request", "result", "budget")
TEST: Final = "test"
"""The event that ``dragoman webhook test`` sends."""
_BUDGET_CODES: Final = frozenset({"budget_warning"})
"""Notices that say that a share of a budget is used."""
_KEYS: Final = ("url", "secret_file", "events", "adapters", "labels", "allow_private")
_PREFIX: Final = "whsec_"
_KEY_BYTES: Final = (24, 64)
_PRIVATE: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "fc00::/7",
        "::1/128",
    )
)
"""What ``allow_private`` allows: not link-local addresses, where clouds hand out credentials."""
_METADATA: Final = frozenset(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")
)
"""Where clouds hand them out too, within private networks."""
_HINT: Final = "set allow_private = true if a private address is meant"


class WebhookError(ValueError):
    """The file of webhooks is invalid; the message says which key, and why."""


class Webhook(Struct, frozen=True):
    """Where some events of some runs go."""

    name: str
    url: str
    secret_file: str
    events: tuple[str, ...] = EVENTS
    adapters: tuple[str, ...] = ("*",)
    """Patterns of adapter types."""
    labels: Mapping[str, str] = {}
    """What the run's labels must have."""
    allow_private: bool = False

    @property
    def gate(self) -> EgressGate:
        """Where its requests may go."""
        networks = _PRIVATE if self.allow_private else ()
        return EgressGate(target_of(self.url), networks=networks, hint=_HINT, never=_METADATA)

    def wants(self, event: str, run: router_pb2.RunSummary) -> bool:
        """Return whether it gets an event of a run."""
        has_labels = all(run.labels.get(name) == value for name, value in self.labels.items())
        is_of = any(fnmatchcase(run.adapter, pattern) for pattern in self.adapters)
        return event in self.events and is_of and has_labels


def parse_webhooks(data: bytes) -> tuple[Webhook, ...]:
    """Read the file of webhooks, in TOML: a table for each, by its name.

    Raises:
        WebhookError: it is invalid.
    """
    import tomllib  # noqa: PLC0415 - needed once

    try:
        content = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise WebhookError(f"is not valid TOML: {error}") from error
    if not content:
        raise WebhookError("has no webhook; write a table [NAME] with url and secret_file for each")
    return tuple(_webhook(name, table) for name, table in content.items())


def _webhook(name: str, table: Any) -> Webhook:
    if not isinstance(table, dict):
        raise WebhookError(f"{name}: must be a table [NAME] with url and secret_file")
    for key in table:
        if key not in _KEYS:
            near = near_names(key, _KEYS)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the keys are {', '.join(_KEYS)}"
            raise WebhookError(f"{name}.{key}: no such key; {hint}")
    events = _texts(table, name, "events", EVENTS)
    for event in events:
        if event not in EVENTS:
            raise WebhookError(f"{name}.events: {event[:100]!r} is no event; the events are {', '.join(EVENTS)}")
    labels = table.get("labels", {})
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise WebhookError(f"{name}.labels: must be a table of texts")
    allow_private = table.get("allow_private", False)
    if not isinstance(allow_private, bool):
        raise WebhookError(f"{name}.allow_private: must be true or false")
    url, secret_file = _text(table, name, "url"), _text(table, name, "secret_file")
    try:
        scheme = target_of(url).scheme
    except RefusedError as error:
        raise WebhookError(f"{name}.url: {error}") from None
    if scheme != "https" and not allow_private:
        raise WebhookError(f"{name}.url: must begin with https://; http:// needs allow_private = true")
    adapters = _texts(table, name, "adapters", ("*",))
    return Webhook(name, url, secret_file, events, adapters, labels, allow_private)


def _text(table: Mapping[str, Any], name: str, key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise WebhookError(f"{name}.{key}: must be a text, and must not be missing")
    return value


def _texts(table: Mapping[str, Any], name: str, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    values = table.get(key, list(default))
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise WebhookError(f"{name}.{key}: must be a list of texts that is not empty")
    return tuple(values)


def key_of(text: str, name: str) -> bytes:
    """Return the key that signs a webhook's requests.

    Args:
        text: the content of its file.
        name: the webhook.

    Raises:
        WebhookError: it is no such key. The message does not repeat it.
    """
    encoded = text.strip()
    try:
        key = base64.b64decode(encoded.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not encoded.startswith(_PREFIX) or not _KEY_BYTES[0] <= len(key) <= _KEY_BYTES[1]:
        least, most = _KEY_BYTES
        raise WebhookError(f"{name}.secret_file: must hold {_PREFIX} and {least} to {most} random bytes in base64")
    return key


def headers_of(message_id: str, at: int, body: bytes, key: bytes) -> dict[str, str]:
    """Return the headers of a request, with its signature.

    Args:
        message_id: the same for each attempt to deliver one event.
        at: when the request is sent, in seconds since the epoch.
        body: its body.
        key: see ``key_of``.
    """
    import hmac  # noqa: PLC0415 - few routers have webhooks

    signed = hmac.digest(key, f"{message_id}.{at}.".encode() + body, "sha256")
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def message_id(hook: str, event: str, run_id: str, about: Mapping[str, Any]) -> str:
    """Return the id of an event for a webhook: the same at each router of a run log."""
    import hashlib  # noqa: PLC0415 - as above

    return f"msg_{hashlib.sha256(json.dumps([hook, event, run_id, about], sort_keys=True).encode()).hexdigest()[:32]}"


def event_of(event: pb.AgentEvent) -> str:
    """Return as which event a run's event goes to webhooks; empty for none. Results have an end of their own."""
    if event.HasField("input_request"):
        return "input_request"
    return "budget" if event.HasField("notice") and event.notice.code in _BUDGET_CODES else ""


def body_of(event: str, run: router_pb2.RunSummary, about: Mapping[str, Any], at: str) -> bytes:
    """Return the body of a request.

    Args:
        event: one of ``EVENTS``.
        run: the run. Nothing that the agent or the caller wrote is repeated but names.
        about: what happened; see ``about_event`` and ``about_result``.
        at: when, in RFC 3339.
    """
    names = {
        "run_id": run.run_id,
        "adapter": run.adapter,
        "agent_name": run.agent_name,
        "agent_id": run.agent_id,
        "company_id": run.company_id,
        "task_key": run.task_key,
        "labels": dict(sorted(run.labels.items())),
    }
    data = {name: value for name, value in names.items() if value} | {"attempt": run.attempt} | dict(about)
    return json.dumps({"type": event, "timestamp": at, "data": data}, ensure_ascii=False).encode()


def about_event(event: pb.AgentEvent) -> dict[str, Any]:
    """Return what a body says of an input request or a notice, as it was redacted."""
    about: dict[str, Any] = {"sequence": event.sequence}
    if event.HasField("input_request"):
        asked = event.input_request
        kind = enum_name(pb.InputKind.DESCRIPTOR, asked.kind, "INPUT_KIND_").lower()
        return about | {"request_id": asked.id, "kind": kind, "title": asked.title}
    return about | {"code": event.notice.code, "message": event.notice.message}


def about_result(result: pb.Result, sequence: int) -> dict[str, Any]:
    """Return what a body says of a result: no text of the agent's."""
    about: dict[str, Any] = {
        "sequence": sequence,
        "outcome": enum_name(pb.Outcome.DESCRIPTOR, result.outcome, "OUTCOME_").lower(),
        "duration_s": result.duration.ToNanoseconds() / 1e9,
    }
    if result.HasField("failure"):
        kind = enum_name(pb.FailureKind.DESCRIPTOR, result.failure.kind, "FAILURE_KIND_").lower()
        about["failure"] = {"kind": kind, "code": result.failure.code, "retryable": result.failure.retryable}
    if result.HasField("usage"):
        about["usage"] = json_format.MessageToDict(result.usage, preserving_proto_field_name=True)
    return about
