"""``dragoman health``, as the probes of a container use it."""

from pathlib import Path

from dragoman.protocol.server import DragomanServer

from tests.cli.program import dragoman


async def test_a_probe_learns_whether_a_server_serves(tmp_path: Path) -> None:
    server = DragomanServer({}, [f"unix:{tmp_path}/a.sock"])
    await server.start()
    address = server.addresses[0]
    try:
        starting = await dragoman("health", address)
        assert (starting.code, starting.out) == (1, "")
        assert f"{address} does not serve: NOT_SERVING" in starting.err
        live = await dragoman("health", "--live", address)
        assert (live.code, live.out) == (0, "not_serving\n")
        await server.set_serving()
        good = await dragoman("health", env={"DRAGOMAN_ROUTER": address})
        assert (good.code, good.out) == (0, "serving\n")
    finally:
        await server.stop([], 0.0)
    gone = await dragoman("health", "--live", address)
    assert gone.code == 1
    assert "does not serve" in gone.err


async def test_an_address_that_is_none_is_wrong_usage() -> None:
    assert (await dragoman("health", "nowhere")).code == 2


async def test_over_tcp_it_needs_no_token(tmp_path: Path) -> None:
    server = DragomanServer({}, ["127.0.0.1:0"])
    await server.start()
    await server.set_serving()
    try:
        done = await dragoman("health", server.addresses[0], env={"XDG_STATE_HOME": str(tmp_path)})
    finally:
        await server.stop([], 0.0)
    assert (done.code, done.out) == (0, "serving\n"), done.err
