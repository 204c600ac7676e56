"""What an adapter author imports.

Subclass ``CommandLineAdapter`` for an agent that is a program, ``InProcessAdapter`` for one that is asked over a
network, ``Adapter`` for anything else, and serve it::

    from dragoman.sdk import serve
    from my_adapter import MyAdapter

    serve(MyAdapter(), ["unix:/tmp/my.sock"])

Besides: ``fields`` reads JSON that nobody vouches for, ``jsonrpc`` speaks JSON-RPC, ``acp`` the Agent Client
Protocol, and ``rules`` has what many agents refuse, in one set of words.
"""

from dragoman.sdk._adapter import Adapter, AdapterInfo, Model, capabilities, shipped_documents
from dragoman.sdk._agent_adapter import AgentAdapter
from dragoman.sdk._checks import Checks
from dragoman.sdk._command_line import CommandLineAdapter
from dragoman.sdk._config import (
    adapter_schema,
    as_bool,
    as_int,
    as_number,
    as_object,
    as_string,
    as_string_list,
    common_properties,
    print_schema,
)
from dragoman.sdk._detection import probe
from dragoman.sdk._failures import classify_http, classify_text, unknown_session
from dragoman.sdk._in_process import InProcessAdapter, Turn
from dragoman.sdk._inputs import Resolution
from dragoman.sdk._job import TERMINATE, CancelStep, Job, Plan
from dragoman.sdk._json import JsonValue, compact, parse_json_object, read_json_object
from dragoman.sdk._lines import Line, LineSplitter
from dragoman.sdk._login import AuthFinding
from dragoman.sdk._outcome import Evidence, failure_from_hint
from dragoman.sdk._parser import (
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
    words_event,
)
from dragoman.sdk._permissions import decide
from dragoman.sdk._run import Run
from dragoman.sdk._server import AdapterServer, serve
from dragoman.sdk._sessions import SessionPlan, is_uuid
from dragoman.sdk._settings import Instructions, Settings
from dragoman.sdk._skill_strategy import SkillStrategy
from dragoman.sdk._skills import SkillSource, skill_prompt
from dragoman.sdk._supervision import FailureError
from dragoman.sdk._template import render
from dragoman.sdk._usage import add_call

__all__ = [
    "TERMINATE",
    "Adapter",
    "AdapterInfo",
    "AdapterServer",
    "AgentAdapter",
    "Answer",
    "Ask",
    "AuthFinding",
    "CancelStep",
    "Checks",
    "CloseInput",
    "CommandLineAdapter",
    "Evidence",
    "FailureError",
    "FailureInfo",
    "InProcessAdapter",
    "Instructions",
    "Job",
    "JsonValue",
    "Line",
    "LineSplitter",
    "Model",
    "Output",
    "Parser",
    "Plan",
    "Report",
    "Resolution",
    "Run",
    "SessionPlan",
    "Settings",
    "SkillSource",
    "SkillStrategy",
    "Stream",
    "Terminal",
    "Turn",
    "Withdraw",
    "Write",
    "adapter_schema",
    "add_call",
    "as_bool",
    "as_int",
    "as_number",
    "as_object",
    "as_string",
    "as_string_list",
    "capabilities",
    "classify_http",
    "classify_text",
    "common_properties",
    "compact",
    "decide",
    "failure_from_hint",
    "is_uuid",
    "log_event",
    "outputs_of",
    "parse_json_object",
    "print_schema",
    "probe",
    "read_json_object",
    "render",
    "serve",
    "shipped_documents",
    "skill_prompt",
    "unknown_session",
    "words_event",
]
