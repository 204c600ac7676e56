"""The part of a router that starts adapters.

It can be opened before the router, so that an adapter starts while the rest of the router is imported.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence

from dragoman.router.adapters.discovery import (
    FileSource,
    Manifests,
    SocketDirectories,
    address_specs,
    entry_point_specs,
    specs_of,
)
from dragoman.router.adapters.launcher import GuardLauncher
from dragoman.router.adapters.specs import AdapterSpec
from dragoman.router.config import RouterConfig
from dragoman.router.runtime_dirs import RuntimeDirs, open_runtime_dirs
from msgspec import Struct


class Launching(Struct, frozen=True):
    """The directories, the adapters, and what starts them."""

    dirs: RuntimeDirs
    specs: Sequence[AdapterSpec]
    sources: Sequence[FileSource]
    """The files among them, which may change."""
    launcher: GuardLauncher

    async def prepare(self, adapter: str) -> None:
        """Begin to start an adapter, so that its first call need not wait as long; nothing if its name is unknown."""
        for spec in self.specs:
            if adapter in (spec.name, *spec.aliases):
                if spec.launch is not None and not spec.problem:
                    await self.launcher.prepare(spec.name, spec.launch)
                return


@contextlib.asynccontextmanager
async def open_launching(config: RouterConfig) -> AsyncIterator[Launching]:
    """Create the directories and discover the adapters; stop at the end what was prepared and not used.

    Raises:
        AddressError: the directories are not safe.
        OSError: they cannot be created.
    """
    with open_runtime_dirs(config.state_dir) as dirs:
        orphan_after_s = 0.0 if config.embedded else config.adapter_orphan_after_s
        launcher = GuardLauncher(dirs.runtime, dirs.logs, orphan_after_s=orphan_after_s)
        try:
            sources = (
                Manifests(config.manifests, config.user_manifest_folder),
                SocketDirectories(config.socket_dirs),
            )
            yield Launching(dirs, _specs(config, *sources), sources, launcher)
        finally:
            await launcher.close()


def _specs(config: RouterConfig, manifests: FileSource, sockets: FileSource) -> list[AdapterSpec]:
    """Discover the adapters. The first one gets a name that several claim."""
    entry_points = entry_point_specs() if config.entry_points else []
    return [*entry_points, *specs_of(manifests), *address_specs(config.addresses), *specs_of(sockets)]
