"""Which login a run uses, as far as its request says: each has a circuit breaker of its own."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from dragoman.protocol.duties import settings_of
from dragoman.router.policy.circuit_breaker import BreakerKey
from dragoman.v1 import adapter_pb2

_SELECTS_ACCOUNT: Final = re.compile(
    "KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|HOME$|CONFIG|BASE_URL|ENDPOINT|PROFILE|^AWS_|CLOUD_PROJECT", re.IGNORECASE
)
"""Names of variables that hold a credential, or lead to one: a home directory, a service, a profile."""


def breaker_key(
    adapter: str, request: adapter_pb2.ExecuteRequest, keyed: Callable[[Iterable[str]], bytes]
) -> BreakerKey:
    """Return the key of a run's circuit breaker.

    What too many runs differ in costs one more try each; what too few do keeps runs away that would work.

    Args:
        adapter: the adapter's type.
        request: what the adapter gets. Variables with the caller's prefix, and a token that comes with ``api_url``,
            are for the caller's own API and may be new for each run, so they do not count.
        keyed: returns a keyed digest of some texts, empty for none: nothing else may be stored of credentials.
    """
    config = dict(settings_of(request).fields.items())
    configured = config["env"].struct_value.fields.items() if "env" in config else ()
    variables = {**{name: value.string_value for name, value in configured}, **request.env}
    prefix = f"{request.brand.env_prefix or 'DRAGOMAN'}_"
    settings = {name: config[name].string_value for name in ("command", "url", "provider", "model") if name in config}
    parts = [
        f"{name}={variables[name]}"
        for name in sorted(variables)
        if _SELECTS_ACCOUNT.search(name) and not name.startswith(prefix)
    ]
    parts += [f"{name} {settings[name]}" for name in ("command", "url") if settings.get(name)]
    if request.auth_token and not request.api_url:
        parts.append(f"token {request.auth_token}")
    model = request.model or settings.get("model", "")
    return BreakerKey(adapter, keyed(parts), "/".join(filter(None, (settings.get("provider"), model))))
