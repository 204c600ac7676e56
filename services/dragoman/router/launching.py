"""The part of a router that starts adapters.

It can be opened before the router, so that an adapter starts while the rest of the router is imported.
"""

import contextlib
from collections.abc import Iterator, Sequence

from dragoman.router.adapters.discovery import (
    FileSource,
    Manifests,
    SocketDirectories,
    address_specs,
    entry_point_specs,
    specs_of,
)
from dragoman.router.adapters.specs import AdapterSpec
from dragoman.router.config import RouterConfig
from dragoman.router.starting import Starting, open_starting
from msgspec import Struct


class Launching(Struct, frozen=True):
    """The adapters, and what starts them."""

    starting: Starting
    specs: Sequence[AdapterSpec]
    sources: Sequence[FileSource]
    """The files among them, which may change."""

    def prepare(self, adapter: str) -> None:
        """Begin to start an adapter, so that its first call need not wait as long; nothing if its name is unknown."""
        for spec in self.specs:
            if adapter in (spec.name, *spec.aliases):
                if spec.launch is not None and not spec.problem:
                    self.starting.starter.prepare(spec.name, spec.launch)
                return


@contextlib.contextmanager
def open_launching(config: RouterConfig, starting: Starting | None = None) -> Iterator[Launching]:
    """Discover the adapters; stop at the end what was prepared and not used.

    Args:
        config: the configuration of the router.
        starting: what was opened with the same configuration, and is closed by who opened it; absent, this opens it.

    Raises:
        AddressError: the directories are not safe.
        OSError: they cannot be created.
    """
    with contextlib.ExitStack() as stack:
        if starting is None:
            orphan_after_s = 0.0 if config.embedded else config.adapter_orphan_after_s
            starting = stack.enter_context(open_starting(config.state_dir, orphan_after_s=orphan_after_s))
        sources = (Manifests(config.manifests, config.user_manifest_folder), SocketDirectories(config.socket_dirs))
        yield Launching(starting, _specs(config, *sources), sources)


def _specs(config: RouterConfig, manifests: FileSource, sockets: FileSource) -> list[AdapterSpec]:
    """Discover the adapters. The first one gets a name that several claim."""
    entry_points = entry_point_specs() if config.entry_points else []
    return [*entry_points, *specs_of(manifests), *address_specs(config.addresses), *specs_of(sockets)]
