"""What issues tokens for the runs of a router, if its trust file names a key."""

from typing import TYPE_CHECKING

from dragoman.protocol.trust import TrustFile

if TYPE_CHECKING:
    from dragoman.protocol.run_tokens import RunTokens


class Issuing:
    """What issues tokens for runs, by a trust file.

    Args:
        trust: the file.

    Raises:
        AddressError: the key in it cannot be used.
    """

    def __init__(self, trust: TrustFile) -> None:
        self._trust = trust
        self._tokens: RunTokens | None = None
        self.current()

    def current(self) -> "RunTokens | None":
        """Return what issues tokens now; ``None`` if the file names no key."""
        rule = self._trust.current().run_tokens
        if rule is None:
            self._tokens = None
        elif self._tokens is None or self._tokens.rule != rule:
            from dragoman.protocol.run_tokens import RunTokens  # noqa: PLC0415 - needs an extra

            self._tokens = RunTokens(rule)
        return self._tokens
