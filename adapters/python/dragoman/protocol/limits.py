"""Sizes and times of the protocol, and the gRPC options that follow from them, in one place.

Sizes are bytes, times are seconds. The comments of ``proto/`` repeat those that are part of the contract.
"""

MIB = 1024 * 1024

MAX_REQUEST_BYTES = 16 * MIB
MAX_EVENT_BYTES = 1 * MIB
MAX_BATCH_BYTES = 256 * 1024
MAX_BATCH_EVENTS = 1024
"""So that no batch of tiny events holds up its receiver."""
MAX_TRAILER_BYTES = 8 * 1024
"""gRPC turns the real status into RESOURCE_EXHAUSTED above 16 KiB and may do so above 8."""

MAX_LINE_BYTES = 16 * MIB
"""The longest line read from an agent; more is cut, counted and reported."""
MAX_NATIVE_BYTES = 64 * 1024

RUN_BUFFER_BYTES = 16 * MIB
"""What one run keeps in memory for readers that attach."""
BACKLOG_BYTES = 4 * MIB
"""How much of a run may wait for its readers before the agent's output is read no further."""
READER_LAG_BYTES = 8 * MIB
"""How far one reader may fall behind before its stream is ended."""

HEARTBEAT_AFTER_S = 15.0
SERVER_ENDED_GRACE_S = 30.0
"""How long a stream that the server ended still counts as open."""
CLIENT_ORPHAN_AFTER_S = 30.0
"""What SDK clients ask for when the caller says nothing."""
ROUTER_ORPHAN_AFTER_S = 60.0
"""What a router asks of adapters; it applies the caller's own value itself."""
MAX_ORPHAN_AFTER_S = 24 * 3600.0
LONGEST_WAIT_S = 3600.0
"""How long a run may wait for a slot at a router."""
MOST_SECONDS = 315_576_000_000
"""The longest time that a protobuf Duration can hold: about 10,000 years."""
REATTACH_S = 30.0
"""How long a router tries to attach again before a run is LOST."""
DEFAULT_GRACE_S = 15.0
DEFAULT_INPUT_TIMEOUT_S = 600.0
RETAIN_FINISHED_S = 600.0
"""How long a finished run can still be attached to."""
MAX_RETAINED_RUNS = 256

KEEPALIVE_S = 30.0
PING_TIMEOUT_S = 10.0

ChannelOption = tuple[str, int | str]
"""One gRPC channel argument."""

_MESSAGE_SIZES: tuple[ChannelOption, ...] = (
    # Above the protocol's own limits, so that ours are the ones that speak (with a reason).
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES + MIB),
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES + MIB),
)
_REFUSED_WITHOUT_REASON_BYTES = 2 * MAX_REQUEST_BYTES
"""From here on gRPC itself refuses a request, and has no hook for a reason."""


def server_options() -> list[ChannelOption]:
    """Return the gRPC options every Dragoman server uses."""
    return [
        ("grpc.max_receive_message_length", _REFUSED_WITHOUT_REASON_BYTES),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES + MIB),
        # On by default, and then two servers share a port in silence.
        ("grpc.so_reuseport", 0),
        # Agents are silent for minutes; without these a client's pings end the connection.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(PING_TIMEOUT_S * 1000)),
        # By default a burst of 5000 new streams sees nearly half refused.
        ("grpc.server.max_pending_requests", 20_000),
        ("grpc.server.max_pending_requests_hard_limit", 40_000),
    ]


def channel_options(address: str, *, local: bool = False) -> list[ChannelOption]:
    """Return the gRPC options for a channel to ``address``.

    Args:
        address: ``unix:/path`` or ``host:port``.
        local: True towards an adapter on the same machine. Bandwidth probing is then off, as it lets a slow
            reader make this side buffer tens of megabytes per stream.
    """
    options: list[ChannelOption] = [
        *_MESSAGE_SIZES,
        # A proxy variable in the environment would catch loopback addresses too.
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(PING_TIMEOUT_S * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # One failed connection must not make the next attempts wait for up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name: how long one attempt may take, until the other side has said its first word. On a busy
        # machine, or from far away, a shorter one fails again and again.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", 1),
        # Execute must not run twice because a library tried again.
        ("grpc.enable_retries", 0),
    ]
    if address.startswith("unix:"):
        # Otherwise the authority is the percent-encoded path, which some servers refuse.
        options.append(("grpc.default_authority", "localhost"))
    if local:
        options.append(("grpc.http2.bdp_probe", 0))
    return options
