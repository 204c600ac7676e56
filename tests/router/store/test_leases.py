"""How often a router renews its lease, and what it makes of a renewal that fails."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.router.storage import leases
from dragoman.router.storage.database import StoreError
from structlog.testing import capture_logs


class Leases:
    """Renews a lease, or fails, as it is set up."""

    def __init__(self, *failures: StoreError | None) -> None:
        self._failures = iter(failures)
        self.renewed: list[tuple[str, float]] = []

    async def renew(self, owner: str, lease_until: float) -> None:
        self.renewed.append((owner, lease_until))
        if (failure := next(self._failures)) is not None:
            raise failure


def ownership(of: Leases, lease_s: float = leases.LEASE_S) -> leases.RunOwnership:
    store: Any = SimpleNamespace(leases=of)
    clock: Any = SimpleNamespace(time=lambda: 100.0)
    return leases.RunOwnership(store, clock, "o", lease_s)


@pytest.mark.parametrize(("lease_s", "pauses"), [(15.0, [5.0, 1.0, 5.0]), (0.6, [0.2, 0.2, 0.2])])
async def test_a_lease_is_renewed_three_times_before_it_ends_and_soon_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, lease_s: float, pauses: list[float]
) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 3:
            raise asyncio.CancelledError

    of = Leases(None, StoreError("disk is full"), None)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await ownership(of, lease_s).keep()
    assert paused == pytest.approx(pauses)
    assert of.renewed == [("o", 100.0 + lease_s)] * 3


async def test_a_renewal_that_fails_is_logged_and_noted() -> None:
    tested = ownership(Leases(StoreError("no such table"), None))
    noted: list[str] = []
    health: Any = SimpleNamespace(
        record_failure=lambda: noted.append("failure"), record_success=lambda: noted.append("success")
    )
    tested.health = health
    with capture_logs() as logs:
        assert not await tested.renew()
    assert logs == [{"event": "lease not renewed", "why": "no such table", "log_level": "warning"}]
    assert await tested.renew()
    assert noted == ["failure", "success"]
