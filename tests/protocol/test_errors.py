"""Statuses and back: over real channels, both kinds of client, and whatever a peer may send."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid, invalid_fields, not_supported
from dragoman.protocol.limits import MAX_TRAILER_BYTES
from dragoman.protocol.statuses import DOMAIN, from_rpc_error, to_status
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

Abort = Callable[[grpc.ServicerContext], None]


class Peer:
    """A real server whose one method fails as the test asks."""

    def __init__(self) -> None:
        self.fail: Abort = lambda context: None
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._server = grpc.server(self._pool)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._call)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("test.Service", {"Call": handler})]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _call(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        self.fail(context)
        return b""

    def close(self) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown()

    def error(self, fail: Abort) -> DragomanError:
        """Call it and return what the client makes of it."""
        self.fail = fail
        with grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Service/Call")
            with pytest.raises(grpc.RpcError) as caught:
                method(b"", timeout=20)
            return from_rpc_error(caught.value)

    async def error_by_aio(self, fail: Abort) -> DragomanError:
        """As ``error``, with the other client."""
        self.fail = fail
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Service/Call")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"", timeout=20)
            return from_rpc_error(caught.value)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def aborting(error: DragomanError) -> Abort:
    return lambda context: context.abort_with_status(to_status(error))


def same(one: DragomanError, other: DragomanError) -> bool:
    def facts(error: DragomanError) -> tuple[object, ...]:
        return (
            *(error.reason, error.code, error.message, dict(error.metadata)),
            *(tuple(error.violations), error.retry_after_s),
        )

    return facts(one) == facts(other)


# --- the table


@pytest.mark.parametrize("reason", Reason)
def test_reasons_are_named_as_they_are_written(reason: Reason) -> None:
    assert reason.name == reason.value
    assert DragomanError(reason, "x").code is reason.status


# --- there and back


EXAMPLES = {
    "plain": DragomanError(Reason.RUN_NOT_FOUND, "run run-1 is not known here"),
    "with metadata": DragomanError(Reason.SLOW_CONSUMER, "too slow", {"last_sequence": "17", "run_id": "run-1"}),
    "with a delay": DragomanError(Reason.TOO_MANY_RUNS, "later", retry_after_s=1.5),
    "one field": invalid("config.maxTurns", "must be a whole number above 0, is 'many'"),
    "two fields": invalid_fields([FieldViolation("a", "b"), FieldViolation("c", "d")]),
    "not supported": not_supported("fallback", "only routers fall back"),
    "other letters": DragomanError(Reason.ADAPTER_NOT_FOUND, "größe 大きさ 🙂 100 %\nline", {"near": "naïve"}),
}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_what_is_raised_here_arrives_there(peer: Peer, name: str) -> None:
    error = EXAMPLES[name]
    assert same(peer.error(aborting(error)), error)
    assert same(await peer.error_by_aio(aborting(error)), error)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_arrives(peer: Peer, reason: Reason) -> None:
    arrived = peer.error(aborting(DragomanError(reason, "because")))
    assert arrived.reason is reason
    assert arrived.code is reason.status


HUGE = DragomanError(
    Reason.INVALID_REQUEST,
    "語" * 5000,
    {f"key-{number}-" + "k" * 500: "語" * 600 for number in range(30)},
    [FieldViolation("p" * 900, "語" * 900) for _ in range(200)],
    retry_after_s=2,
)


async def test_an_error_of_any_size_arrives_with_its_reason(peer: Peer) -> None:
    for arrived in (peer.error(aborting(HUGE)), await peer.error_by_aio(aborting(HUGE))):
        assert arrived.reason is Reason.INVALID_REQUEST
        assert arrived.message.startswith("語語語")
        assert arrived.violations
        assert arrived.retry_after_s == 2


def test_many_small_violations_are_all_reported(peer: Peer) -> None:
    violations = [FieldViolation(f"config.key{number}", "unknown key") for number in range(50)]
    assert len(peer.error(aborting(invalid_fields(violations))).violations) == 50


@given(
    message=st.text(max_size=3000),
    metadata=st.dictionaries(st.text(max_size=300), st.text(max_size=1000), max_size=20),
    violations=st.lists(st.builds(FieldViolation, st.text(max_size=500), st.text(max_size=900)), max_size=20),
)
def test_no_text_makes_trailers_too_large_or_suppresses_an_error(
    message: str, metadata: dict[str, str], violations: list[FieldViolation]
) -> None:
    status = to_status(DragomanError(Reason.INTERNAL, message, metadata, violations))
    ((key, value),) = status.trailing_metadata
    assert key == "grpc-status-details-bin"
    percent_encoded = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in status.details.encode())
    assert percent_encoded + len(value) * 4 / 3 <= MAX_TRAILER_BYTES + 4


def test_a_lone_surrogate_in_a_name_becomes_a_question_mark(peer: Peer) -> None:
    error = DragomanError(Reason.INVALID_REQUEST, "no directory \udce4", {"path": "\udce4"})
    arrived = peer.error(aborting(error))
    assert (arrived.message, arrived.metadata) == ("no directory ?", {"path": "?"})


# --- what peers may send


def test_a_status_without_details_is_its_code_and_text(peer: Peer) -> None:
    arrived = peer.error(lambda context: context.abort(grpc.StatusCode.NOT_FOUND, "no such thing"))
    assert (arrived.reason, arrived.code, str(arrived)) == (None, grpc.StatusCode.NOT_FOUND, "no such thing")
    arrived = peer.error(lambda context: context.abort(grpc.StatusCode.ABORTED, ""))
    assert (arrived.code, arrived.message) == (grpc.StatusCode.ABORTED, "ABORTED")


def with_details(code: grpc.StatusCode, value: bytes) -> Abort:
    def fail(context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", value),))
        context.abort(code, "text")

    return fail


def info(reason: str, domain: str = DOMAIN) -> bytes:
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata={"a": "b"}))
    data: bytes = status_pb2.Status(code=5, details=[packed]).SerializeToString()
    return data


def broken_detail() -> bytes:
    bad = any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\x0a\xff")
    good = any_pb2.Any()
    good.Pack(error_details_pb2.ErrorInfo(reason="RUN_NOT_FOUND", domain=DOMAIN))
    data: bytes = status_pb2.Status(code=5, details=[bad, good]).SerializeToString()
    return data


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xff\xff", None),  # no message at all
        (broken_detail(), Reason.RUN_NOT_FOUND),  # the readable one counts
        (info("RUN_NOT_FOUND"), Reason.RUN_NOT_FOUND),
        (info("RUN_NOT_FOUND", domain="other.example"), None),  # not our reason
        (info("FROM_A_LATER_REVISION"), None),
        (info("SLOW_CONSUMER"), None),  # contradicts the status
    ],
)
async def test_a_peers_details_are_taken_as_far_as_they_make_sense(
    peer: Peer, value: bytes, reason: Reason | None
) -> None:
    fail = with_details(grpc.StatusCode.NOT_FOUND, value)
    for arrived in (peer.error(fail), await peer.error_by_aio(fail)):
        assert arrived.reason is reason
        assert arrived.code is grpc.StatusCode.NOT_FOUND
        assert arrived.message == "text"


def test_a_peers_error_is_passed_on_with_details_unknown_here(peer: Peer) -> None:
    help_detail, later = any_pb2.Any(), any_pb2.Any()
    help_detail.Pack(error_details_pb2.Help(links=[error_details_pb2.Help.Link(url="https://example.invalid")]))
    later.Pack(error_details_pb2.ErrorInfo(reason="OF_A_LATER_REVISION", domain=DOMAIN))
    status = status_pb2.Status(code=9, message="not now", details=[help_detail, later])

    received = peer.error(lambda context: context.abort_with_status(rpc_status.to_status(status)))
    heard = peer.error(lambda context: context.abort_with_status(to_status(received)))

    assert heard.code is grpc.StatusCode.FAILED_PRECONDITION
    assert heard.message == "not now"
    assert list(heard.details) == [help_detail, later]


def test_an_error_that_is_no_call_is_unknown() -> None:
    arrived = from_rpc_error(grpc.RpcError())
    assert (arrived.reason, arrived.code) == (None, grpc.StatusCode.UNKNOWN)


# --- for people


def test_the_text_names_every_wrong_field() -> None:
    error = invalid_fields(
        [FieldViolation("config.a", "is not known"), FieldViolation("workspace.cwd", "is relative")]
    )
    assert str(error) == "config.a: is not known\n  workspace.cwd: is relative", "nothing is there twice"
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
