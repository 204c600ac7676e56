"""How a turn ended, and what it used. Pure."""

from typing import Final

from dragoman.sdk._encoding.fields import Fields, inner
from dragoman.sdk._output.parser import FailureInfo, Terminal
from dragoman.sdk.acp._options import AcpOptions, TurnEnd
from dragoman.sdk.acp._updates import Updates
from dragoman.sdk.acp._usage import SessionCost, read_tokens
from dragoman.v1 import event_pb2 as pb

_FAILURES: Final = {
    "max_tokens": (pb.FAILURE_KIND_OUTPUT_LIMIT, "The model's answer was cut at its limit of output tokens."),
    "max_turn_requests": (pb.FAILURE_KIND_MAX_TURNS, "The agent reached its limit of model calls in one turn."),
    "refusal": (pb.FAILURE_KIND_MODEL_REFUSED, "The agent refused to continue."),
}


def ending(reason: str, result: Fields, updates: Updates, options: AcpOptions, *, interrupted: bool) -> Terminal:
    """Return how the agent's turn ended.

    Args:
        reason: the stop reason.
        result: the prompt's whole result.
        updates: what came before.
        options: the agent's ways.
        interrupted: whether it was asked to stop.
    """
    if reason == "cancelled":
        message = "The agent says that its turn was cancelled, and not by this run."
        failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="acp_cancelled")
        return Terminal(succeeded=False, subtype=reason, failure=None if interrupted else failure, interrupted=True)
    if reason in _FAILURES:
        kind, message = _FAILURES[reason]
        errors = (updates.speech.last_words or reason,)  # what it refuses, or was about to say
        failure = FailureInfo(kind, message, code=f"acp_{reason}", errors=errors)
        return Terminal(succeeded=False, subtype=reason, failure=failure)
    reported = options.turn_failure(TurnEnd(reason, updates.speech.last_words, result))
    if reported is not None:
        return Terminal(succeeded=False, subtype=reason, failure=reported)
    if reason and reason != "end_turn":
        message = f"The agent ended its turn for a reason that is not known here: {reason}."
        failure = FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, code="acp_stop_reason")
        return Terminal(succeeded=False, subtype=reason, failure=failure)
    if options.empty_turn_fails and not updates.speech.has_spoken and not updates.has_acted:
        if interrupted:  # it stopped before it had said anything, and has no word for that
            return Terminal(succeeded=False, subtype=reason, interrupted=True)
        message = "The agent ended its turn without a word; agents do that when their model cannot be reached."
        failure = FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, code="acp_empty_turn")
        return Terminal(succeeded=False, subtype=reason, failure=failure)
    return Terminal(succeeded=True, subtype=reason)


def other_usage(result: Fields, options: AcpOptions) -> pb.Usage | None:
    """Return what the prompt's result counts where that is not this run; None if it says nothing of the sort."""
    tokens = _tokens(result) if options.usage != "turn" else None
    if tokens is None:
        return None
    if options.usage == "last_call":
        return pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA, tokens=tokens)
    return pb.Usage(scope=pb.USAGE_SCOPE_SESSION, semantics=pb.USAGE_SEMANTICS_CUMULATIVE, tokens=tokens)


def _tokens(result: Fields) -> pb.TokenCounts | None:
    return read_tokens(inner(result, "usage"))


def run_usage(result: Fields, options: AcpOptions, updates: Updates, cost: SessionCost) -> pb.Usage | None:
    """Return what the run used; None if nothing is known.

    Args:
        result: the prompt's result; empty if there is none.
        options: the agent's ways.
        updates: what came before.
        cost: the session's cost.
    """
    usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    tokens = options.tokens(result) or (_tokens(result) if options.usage == "turn" else None) or updates.tokens
    if tokens is not None:
        usage.tokens.CopyFrom(tokens)
        if updates.model:
            usage.models.add(model=updates.model).tokens.CopyFrom(tokens)
    spent = cost.of_run()
    if spent is not None:
        usage.cost.CopyFrom(spent)
    updates.add_context(usage)
    known = usage.HasField("tokens") or usage.HasField("cost") or usage.HasField("context_used")
    return usage if known else None
