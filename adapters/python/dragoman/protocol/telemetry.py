"""Loads what measures a server, if that is asked for: it needs the extra ``telemetry``, and else costs nothing."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dragoman.protocol.addresses import AddressError
from dragoman.protocol.observer import Level

if TYPE_CHECKING:
    from dragoman.protocol.metrics import Metrics

__all__ = ["load_metrics"]


def load_metrics(levels: Callable[[], Iterable[Level]]) -> "Metrics":
    """Return an observer that counts, for Prometheus.

    Args:
        levels: returns the present levels; called in the event loop.

    Raises:
        AddressError: the extra is not installed.
    """
    try:
        from dragoman.protocol.metrics import Metrics  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise AddressError(f"metrics need {error.name}: pip install 'dragoman[telemetry]'") from error
    return Metrics(levels)
