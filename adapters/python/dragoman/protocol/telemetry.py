"""Loads what measures a server, if that is asked for: it needs the extra ``telemetry``, and else costs nothing."""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from dragoman.protocol.addresses import AddressError
from dragoman.protocol.logs import Logger
from dragoman.protocol.observer import Level
from dragoman.protocol.tracing import Tracing

if TYPE_CHECKING:
    from dragoman.protocol.metrics import Metrics

_ON: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")

_log = Logger("dragoman.telemetry")


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


def load_tracing(service: str) -> Tracing:
    """Return what records spans, if the environment says where they go, by the variables of OpenTelemetry.

    Args:
        service: the name of this process, unless ``OTEL_SERVICE_NAME`` gives another.
    """
    has_target = any(os.environ.get(name) for name in _ON) and os.environ.get("OTEL_TRACES_EXPORTER") != "none"
    if not has_target or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Tracing()
    try:
        from dragoman.protocol.otel import OtelTracing  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        # The variables may be meant for the agents alone.
        _log.warning("no spans are recorded", missing=error.name, hint="pip install 'dragoman[telemetry]'")
        return Tracing()
    return OtelTracing(service)
