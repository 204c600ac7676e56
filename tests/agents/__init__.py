"""Tests on the real agents."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("suite", "several", "sleepers", "choosing", "reading"))
)
