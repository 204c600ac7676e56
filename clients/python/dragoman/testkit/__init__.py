"""Tools to test coding agents and their clients, offline and without cost.

`ModelServer` is a model that follows a script, `isolate` lays out an agent's private home, `FakeAdapter` is a
scripted server of the contract, and `check_stream` checks the invariants of every run of every adapter.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.testkit.fakes.adapter import FakeAdapter
    from dragoman.testkit.isolation import Isolation, isolate, log_in
    from dragoman.testkit.model_server import ModelServer, RecordedRequest, ServerInThread, serving
    from dragoman.testkit.model_server.script import Scenario
    from dragoman.testkit.profiles import PROFILES
    from dragoman.testkit.profiles.agent_profile import AgentProfile
    from dragoman.testkit.streams import StreamChecker, StreamProblem, check_stream

_MODULES = {
    "AgentProfile": "profiles.agent_profile",
    "FakeAdapter": "fakes.adapter",
    "Isolation": "isolation",
    "ModelServer": "model_server",
    "PROFILES": "profiles",
    "RecordedRequest": "model_server",
    "Scenario": "model_server.script",
    "ServerInThread": "model_server",
    "StreamChecker": "streams",
    "StreamProblem": "streams",
    "check_stream": "streams",
    "isolate": "isolation",
    "log_in": "isolation",
    "serving": "model_server",
}

__all__ = [
    "PROFILES",
    "AgentProfile",
    "FakeAdapter",
    "Isolation",
    "ModelServer",
    "RecordedRequest",
    "Scenario",
    "ServerInThread",
    "StreamChecker",
    "StreamProblem",
    "check_stream",
    "isolate",
    "log_in",
    "serving",
]


def __getattr__(name: str) -> Any:
    # Late: pytest loads this package with the plug-in in every run, also where nothing of it is used.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
