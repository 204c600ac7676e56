"""The module ``signal`` of the standard library, without the enumerations that it makes of its constants.

They are a third of what a guard does until it starts its command: https://docs.python.org/3/library/signal.html
"""

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

__all__ = ["signal"]
