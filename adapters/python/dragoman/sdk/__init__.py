"""What an adapter author imports.

Subclass ``CommandLineAdapter`` for an agent that is a program, ``InProcessAdapter`` for one that is called over a
network, ``Adapter`` for anything else, and serve it::

    from dragoman.sdk import serve
    from my_adapter import MyAdapter

    serve(MyAdapter(), ["unix:/run/user/1000/my.sock"])

More is in the modules beside this one:

``acp``        the Agent Client Protocol
``detection``  looking for an agent's program, its login and who pays for it
``failures``   failure kinds from error texts and HTTP responses
``fields``     reading JSON from an untrusted source
``jsonrpc``    JSON-RPC 2.0
``parsing``    what parsers use besides the types that they return
``registration``  announcing an adapter at routers
``rules``      checks of a request that many adapters share
``run``        what an adapter uses of a run besides the run itself and its job
``skills``     the skills of a run, and the ways in which they reach an agent
``spec``       what an adapter says about itself

What is in a package with an underscore may change at any time.
"""

from dragoman.sdk._agents.agent import AgentAdapter
from dragoman.sdk._agents.command_line import CommandLineAdapter
from dragoman.sdk._agents.hooks import AgentHooks
from dragoman.sdk._agents.in_process import InProcessAdapter, Turn
from dragoman.sdk._encoding.lines import Line
from dragoman.sdk._output.outcome import Evidence
from dragoman.sdk._output.parser import (
    Answer,
    Ask,
    CloseInput,
    FailureInfo,
    Output,
    Parser,
    Report,
    Stream,
    Terminal,
    Withdraw,
    Write,
    log_event,
    outputs_of,
)
from dragoman.sdk._request.job import CancelStep, Job, Plan
from dragoman.sdk._request.sessions import SessionPlan
from dragoman.sdk._request.settings import Settings
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.supervision import FailureError
from dragoman.sdk._serving.server import AdapterServer, serve
from dragoman.sdk.adapter import Adapter
from dragoman.sdk.spec import AdapterInfo, AgentSpec, Model, agent_spec, capabilities

__all__ = [
    "Adapter",
    "AdapterInfo",
    "AdapterServer",
    "AgentAdapter",
    "AgentHooks",
    "AgentSpec",
    "Answer",
    "Ask",
    "CancelStep",
    "CloseInput",
    "CommandLineAdapter",
    "Evidence",
    "FailureError",
    "FailureInfo",
    "InProcessAdapter",
    "Job",
    "Line",
    "Model",
    "Output",
    "Parser",
    "Plan",
    "Report",
    "Run",
    "SessionPlan",
    "Settings",
    "Stream",
    "Terminal",
    "Turn",
    "Withdraw",
    "Write",
    "agent_spec",
    "capabilities",
    "log_event",
    "outputs_of",
    "serve",
]
