"""How adapters are started. It imports nothing: an adapter may start before everything else is imported."""

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

OURS: Final = "dragoman.adapters."
"""How the modules of the adapters that come with Dragoman begin."""

ADAPTER_VARIABLE: Final = "DRAGOMAN_ADAPTER"
"""The environment variable that says where the adapter is, ``module:attribute``, to ``dragoman.sidecar``."""

# -P: a file in the working directory must not shadow one of our modules.
# The command line does not name the adapter, as its name is often the agent's: an agent that kills processes by its
# own name would kill its adapter.
SERVE: Final = (sys.executable, "-P", "-m", "dragoman.sidecar")
"""The command that serves an installed adapter."""


class LaunchSpec(NamedTuple):
    """How an adapter is started.

    Attributes:
        command: the program and its arguments.
        env: variables that override those of the router.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = MappingProxyType({})


def installed_launch(reference: str) -> LaunchSpec:
    """Return how an installed adapter is started.

    Args:
        reference: where it is, ``module:attribute``.
    """
    return LaunchSpec(SERVE, {ADAPTER_VARIABLE: reference})
