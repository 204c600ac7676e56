"""Send, by itself: when an input is accepted."""

import asyncio
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from dragoman.sdk._serving.service import AdapterServicer
from dragoman.v1 import adapter_pb2 as api


@pytest.mark.parametrize("repeated", [None, 3])
async def test_an_input_waits_for_the_attempt_unless_it_is_a_repeated_one(
    monkeypatch: pytest.MonkeyPatch, repeated: int | None
) -> None:
    accepted: list[str] = []

    async def accept(run: Any, request: api.SendRequest, sender: str) -> int:
        del run, request
        accepted.append(sender)
        return 7

    module = import_module("dragoman.sdk._serving.service")
    monkeypatch.setattr(module, "accept_input", accept)
    for check in ("check_name", "refuse_undeclared"):
        monkeypatch.setattr(module, check, lambda *_: None)
    run = SimpleNamespace(run_id="r", attempting=asyncio.Event(), sent=SimpleNamespace(repeated=lambda _: repeated))
    servicer: Any = SimpleNamespace(info=SimpleNamespace(type="agent"), _runs=SimpleNamespace(find=lambda _: run))
    request = api.SendRequest(run_id="r", input_id="i", text="more", sender="ada")
    sending = asyncio.ensure_future(AdapterServicer.Send(servicer, request, Mock()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (accepted, sending.done()) == ([], repeated is not None)
    run.attempting.set()
    assert (await sending).sequence == (repeated or 7)
    assert accepted == ([] if repeated else ["ada"])
