"""What an adapter says of itself is bounded, and one that says too much harms no list."""

from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.limits import MIB
from dragoman.router.api import paging
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Caller, config, failure, routing
from tests.router.sidecar import Sidecar, serving

TOO_LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "a description of 16 MiB": ({"configuration_doc": "x" * (16 * MIB - 1000)}, "`configuration_doc`"),
    "a description of 20 MiB": ({"configuration_doc": "x" * (20 * MIB)}, "exceeds 17 MiB"),
    "a long schema": ({"config_schema_json": '{"a": "' + "x" * 256 * 1024 + '"}'}, "`config_schema_json`"),
    "many aliases": ({"aliases": [f"a{n}" for n in range(33)]}, "`aliases`"),
    "a long alias": ({"aliases": ["a" * 129]}, "`aliases[0]`"),
    "a long label": ({"label": "a" * 257}, "`label`"),
    "many models": ({"models": [pb.Model(id=f"m{n}") for n in range(1001)]}, "`models`"),
}


class Describing(Sidecar):
    """A sidecar that says more of itself."""

    def __init__(self, type_: str, **more: Any) -> None:
        super().__init__(type_)
        self.more = more

    async def Describe(self, request: pb.DescribeRequest, _context: Any) -> pb.DescribeResponse:  # noqa: N802
        description = await super().Describe(request, _context)
        description.MergeFrom(pb.DescribeResponse(**self.more))
        return description


async def listed(caller: Caller, **fields: Any) -> router_pb2.ListAdaptersResponse:
    return await caller.router.ListAdapters(router_pb2.ListAdaptersRequest(**fields), timeout=PATIENCE_S)


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_an_adapter_that_says_too_much_is_refused_with_the_reason_and_harms_no_list(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, why = TOO_LARGE[name]
    # Adapters in other languages send what they like.
    monkeypatch.setattr("dragoman.protocol.server.server_options", lambda: [("grpc.so_reuseport", 0)])
    large, good = f"unix:{folder}/large.sock", f"unix:{folder}/good.sock"
    async with (
        serving(Describing("large", **more), large),
        serving(Sidecar("good"), good),
        routing(config(folder, addresses=(large, good))) as (_, caller),
    ):
        await caller.until("good", router_pb2.ADAPTER_STATE_READY)
        entry = await caller.until(large, router_pb2.ADAPTER_STATE_REFUSED)
        assert why in entry.reason
        assert len((await listed(caller)).adapters) == 2
        refused = await failure(caller.adapter.Describe(pb.DescribeRequest(adapter="large"), timeout=PATIENCE_S))
        assert refused.reason is not None


async def test_adapters_are_listed_in_pages_that_every_client_can_receive(folder: Path) -> None:
    models = [pb.Model(id=f"{n:0250}", label="x" * 250) for n in range(1000)]
    addresses = [f"unix:{folder}/{n}.sock" for n in range(8)]
    async with (
        serving(Describing("a0", models=models), addresses[0]),
        serving(Describing("a1", models=models), addresses[1]),
        serving(Describing("a2", models=models), addresses[2]),
        serving(Describing("a3", models=models), addresses[3]),
        serving(Describing("a4", models=models), addresses[4]),
        serving(Describing("a5", models=models), addresses[5]),
        serving(Describing("a6", models=models), addresses[6]),
        serving(Describing("a7", models=models), addresses[7]),
        routing(config(folder, addresses=tuple(addresses))) as (_, caller),
    ):
        for number in range(8):
            await caller.until(f"a{number}", router_pb2.ADAPTER_STATE_READY)
        found: list[str] = []
        token = ""
        while not found or token:
            page = await listed(caller, page_token=token)
            assert page.ByteSize() < 4 * MIB
            found += [entry.adapter for entry in page.adapters]
            token = page.next_page_token
        assert found == [f"a{number}" for number in range(8)]
        watch = caller.router.WatchAdapters(router_pb2.WatchAdaptersRequest(), timeout=PATIENCE_S)
        present = await watch.read()
        assert isinstance(present, router_pb2.WatchAdaptersResponse)
        assert present.ByteSize() < 4 * MIB
        assert len(present.adapters) == 8
        assert present.adapters[0].HasField("description")
        assert not present.adapters[7].HasField("description")
        watch.cancel()


@pytest.mark.parametrize(("asked", "size"), [(0, 100), (1, 1), (100, 100), (1000, 1000), (1001, 1000)])
def test_a_page_has_a_hundred_entries_by_default_and_a_thousand_at_most(asked: int, size: int) -> None:
    assert paging.page_size(asked) == size
    shown, token = paging.page(range(2000), lambda one: [one], size=asked, token="")
    assert (len(shown), bool(token)) == (size, True)
