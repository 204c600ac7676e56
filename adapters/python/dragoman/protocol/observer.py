"""What a server reports of itself to those who measure it; nothing by default.

A server has one ``Observer``. It is called when a call or a run ends, never for an event, and
``dragoman.protocol.metrics`` has the one that counts. Numbers that a server knows
anyway are read as ``Level`` when they are asked for.
"""

from collections.abc import Mapping

from msgspec import Struct, field


class Level(Struct, frozen=True):
    """A number, or one for each adapter, that is read when it is asked for.

    Attributes:
        name: as in ``dragoman_NAME``, with its unit last.
        documentation: what it says.
        values: the numbers by adapter; by ``""`` the one of the whole server.
        is_total: whether it only grows while the server lives.
    """

    name: str
    documentation: str
    values: Mapping[str, float] = field(default_factory=dict)
    is_total: bool = False


class Observer:
    """Takes note of calls and runs that have ended: of none."""

    def call_ended(self, rpc: str, code: str, reason: str) -> None:
        """Note a call.

        Args:
            rpc: its name, e.g. ``Execute``.
            code: the status, e.g. ``OK``.
            reason: the contract's reason for a status that is not OK; empty for none.
        """

    def run_ended(self, adapter: str, outcome: str, duration_s: float) -> None:
        """Note a run.

        Args:
            adapter: the last adapter that had it.
            outcome: e.g. ``SUCCEEDED``; ``REJECTED`` if no adapter took it.
            duration_s: seconds since it was accepted.
        """
