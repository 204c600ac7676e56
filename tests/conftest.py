"""What holds for all tests."""

import gc
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from dragoman.protocol import logs
from hypothesis import HealthCheck, is_hypothesis_test, settings

# A busy machine is no fault: no property here is about time, and each test has the timeout of pytest anyway.
settings.register_profile("dragoman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dragoman")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts its background jobs; programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MANY_EXAMPLES_S = 300
"""What a test of many examples may take on a busy machine; the slowest takes some seconds on an idle one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of many examples the time that they take where nothing else hangs."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_MANY_EXAMPLES_S))


def pytest_collection_finish() -> None:
    """Keep thousands of collected tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logs_of_its_own() -> Iterator[None]:
    """Undo what a program that was called in this process set up: no logger is to go on with it in other tests."""
    configure, before = structlog.configure, structlog.get_config()

    def configure_for_now(**how: Any) -> None:
        configure(**{**how, "cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", configure_for_now)
        patch.setattr(logs, "_output", logs._Output())
        yield
    configure(**before)
