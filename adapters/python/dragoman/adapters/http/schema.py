"""The schema of ``config``: the seeds' keys as they are, and the adapter's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.http.schema``.
"""

from typing import Any, Final

from dragoman.adapters.http.mapping import DEFAULT_PATHS
from dragoman.sdk import adapter_schema, print_schema

_URL: Final = {"type": "string", "pattern": "^https?://"}
_OWN: Final[dict[str, dict[str, Any]]] = {
    "url": {
        **_URL,
        "description": "Where the work is asked for. Whoever sets it decides where prompts and the token go.",
        "x-dangerous": True,
    },
    "method": {"type": "string", "enum": ["POST", "PUT", "PATCH"], "default": "POST", "description": "HTTP method."},
    "headers": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "default": {},
        "description": "Headers of every request; templates like the body's, and {{env.NAME}} of the request's env.",
    },
    "body": {
        "description": "What is sent: JSON whose texts are templates, or one text. See the document for the default.",
    },
    "bearerTokenVariable": {
        "type": "string",
        "description": "Variable in env with the bearer token. Absent: the request's auth_token, if there is one.",
    },
    "mode": {
        "type": "string",
        "enum": ["sync", "stream", "poll", "callback"],
        "default": "sync",
        "description": "How the service answers.",
    },
    "paths": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in DEFAULT_PATHS},
        "additionalProperties": False,
        "default": {},
        "description": "JSON paths (RFC 9535) of what answers hold, over the defaults in the document.",
    },
    "poll": {
        "type": "object",
        "properties": {"intervalSec": {"type": "number", "minimum": 0.05, "maximum": 300, "default": 2}},
        "additionalProperties": False,
        "description": "intervalSec: seconds between two looks; the service's Retry-After wins.",
    },
    "callback": {
        "type": "object",
        "properties": {
            "host": {"type": "string", "default": "127.0.0.1"},
            "port": {"type": "integer", "minimum": 0, "maximum": 65535, "default": 0},
            "url": _URL,
        },
        "additionalProperties": False,
        "description": "Where this adapter listens (host, port; 0 takes a free one), and the url that leads there,"
        " {port} in it replaced.",
        "x-dangerous": True,
    },
    "cancelUrl": {**_URL, "description": "POSTed to when a run is stopped, unless the service names one itself."},
    "healthUrl": {**_URL, "description": "Looked at by Detect and TestEnvironment. Absent: nobody is asked."},
    "allowedHosts": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "default": [],
        "description": "Hosts besides that of url that requests may go to: name, *.name, name:port.",
        "x-dangerous": True,
    },
    "allowedNetworks": {
        "type": "array",
        "items": {"type": "string"},
        "default": [],
        "description": "Networks that are not public and may be reached, e.g. 127.0.0.0/8.",
        "x-dangerous": True,
    },
    "allowRedirects": {
        "type": "boolean",
        "default": False,
        "description": "Follow redirects, to allowed hosts; secrets stay with the host that they were given for.",
        "x-dangerous": True,
    },
    "caFile": {
        "type": "string",
        "pattern": "^/",
        "description": "Further authorities' certificates: absolute path.",
    },
    "responseTimeoutSec": {
        "type": "number",
        "minimum": 0,
        "maximum": 86400,
        "default": 600,
        "description": "Seconds until an answer has come as a whole; of a stream, until it has begun.",
    },
    "maxResponseBytes": {
        "type": "integer",
        "minimum": 1,
        "maximum": 1073741824,
        "default": 16777216,
        "description": "Bytes of one answer.",
    },
}
_WITHOUT: Final = (
    *("command", "args", "extraArgs", "effort", "maxTurns"),
    *("dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox"),
)


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    login = ("url", "headers", "bearerTokenVariable")
    return adapter_schema(_OWN, without=_WITHOUT, required=("url",), login=login, is_token_login=True)


if __name__ == "__main__":
    print_schema(make_schema())
