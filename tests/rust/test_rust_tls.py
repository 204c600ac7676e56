"""TLS of the Rust SDK: `make test-rust` builds its adapters."""

from pathlib import Path

import pytest

from tests.rust.test_rust_adapters import PROCESS
from tests.tls_adapters import CASES, Case

pytestmark = [pytest.mark.rust, pytest.mark.timeout(180)]


@pytest.mark.parametrize("case", CASES)
async def test_an_adapter(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await case([str(PROCESS)], tmp_path, monkeypatch)
