"""What an adapter uses of a run besides the run itself and its job."""

from dragoman.protocol.templates import render
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk._process.shared_program import SharedProgram
from dragoman.sdk._request.job import INTERRUPT, TERMINATE, options
from dragoman.sdk._request.sessions import is_uuid
from dragoman.sdk._request.settings import Instructions
from dragoman.sdk._run.inputs import Resolution
from dragoman.sdk._run.permissions import decide, may_offer, offered_tools

__all__ = [
    "INTERRUPT",
    "TERMINATE",
    "AttachedFile",
    "Instructions",
    "Resolution",
    "SharedProgram",
    "decide",
    "is_uuid",
    "may_offer",
    "offered_tools",
    "options",
    "render",
]
