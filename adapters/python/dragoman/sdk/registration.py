"""Announcing an adapter at routers, for adapters that no router launches or has configured.

``serve`` does it with its argument ``register``. Who embeds an ``AdapterServer`` uses ``registered``.
"""

from dragoman.sdk._serving.registering import Registration, registered

__all__ = ["Registration", "registered"]
