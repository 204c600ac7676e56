"""How much each caller may have."""

from collections.abc import Mapping

from msgspec import Struct, field


class Quota(Struct, frozen=True):
    """What one caller may have. ``None`` is no limit."""

    runs: int | None = None
    """Live runs that it started."""
    streams: int | None = None
    """Open streams."""
    bytes: int | None = None
    """Bytes of requests and of streams within the window."""
    window_s: float = 60.0


class Quotas(Struct, frozen=True):
    """The quotas of all callers."""

    default: Quota | None = None
    """Of each caller without a row that may not do everything."""
    callers: Mapping[str, Quota] = field(default_factory=dict)
    """By the caller's name."""

    def of(self, name: str, *, is_admin: bool) -> Quota | None:
        """Return a caller's quota; ``None`` for none.

        Args:
            name: the caller's.
            is_admin: whether it may do everything: such a one, as another router, has no default.
        """
        return self.callers.get(name, None if is_admin else self.default)
