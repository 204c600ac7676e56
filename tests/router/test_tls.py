"""TLS from a client through a router to an adapter that runs elsewhere."""

from pathlib import Path

import pytest
from dragoman.client import Client, DragomanError, Reason, execute_request
from dragoman.router.app import Router
from dragoman.sdk._serving.server import AdapterServer

from tests.certificates import VARIABLES, Authority, Files
from tests.router.harness import config
from tests.sdk.serving import Scripted


@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "stranger"])
async def test_each_hop_speaks_tls_with_peers_of_the_same_authority(
    is_trusted: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("DRAGOMAN_TOKEN", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    authority = Authority()
    ours, the_adapters = Files(tmp_path / "ours"), Files(tmp_path / "adapter")
    ours.fill(authority)
    the_adapters.fill(authority if is_trusted else Authority(), trusted=authority)
    with the_adapters.used(monkeypatch):
        adapter = AdapterServer(Scripted(), ["0.0.0.0:0"])
        await adapter.start()
    at = adapter.addresses[0].replace("0.0.0.0", "127.0.0.1")
    try:
        with ours.used(monkeypatch):
            async with (
                Router(config(folder, listen=("127.0.0.1:0",), addresses=(at,), run_log="memory")) as router,
                Client(router.addresses[0]) as client,
            ):
                stream = client.execute(execute_request("scripted", "hello", cwd=str(tmp_path)))
                if is_trusted:
                    assert [event.WhichOneof("body") async for event in stream][-1] == "result"
                else:
                    with pytest.raises(DragomanError) as refused:
                        await anext(stream)
                    assert refused.value.reason is Reason.ADAPTER_NOT_FOUND
    finally:
        await adapter.stop(0.2)
