"""Tokens for a run that is accepted: its agent's, which the caller asks for, and its adapter's."""

from dragoman.protocol.errors import invalid
from dragoman.protocol.run_tokens import ADAPTER_SCOPES, AGENT_SCOPES, LONGEST_S, RunOf, RunTokens
from dragoman.v1 import adapter_pb2 as pb


def agent_token(tokens: RunTokens, request: pb.ExecuteRequest, asked: pb.RunToken) -> str:
    """Return the token that a caller asks for.

    Args:
        tokens: issues it.
        request: the request, which has its run's ID.
        asked: what it says of the token.

    Raises:
        DragomanError: INVALID_REQUEST.
    """
    if request.auth_token:
        raise invalid("admission.run_token", "the request has an auth_token of its own; leave one of them out")
    if not request.api_url:
        # A token without a URL would count as the login of the agent, and each run have a circuit breaker of its own.
        raise invalid("admission.run_token", "needs api_url: where the agent uses the token")
    lifetime_s = asked.lifetime.ToNanoseconds() / 1e9 if asked.HasField("lifetime") else LONGEST_S
    if not 1 <= lifetime_s <= LONGEST_S:
        raise invalid("admission.run_token.lifetime", f"must be 1 to {LONGEST_S:.0f} s")
    return tokens.issue(_run(request), AGENT_SCOPES, asked.audience, lifetime_s)


def of_adapter(tokens: RunTokens, request: pb.ExecuteRequest) -> str:
    """Return the token for the adapter of a run."""
    return tokens.issue(_run(request), ADAPTER_SCOPES)


def _run(request: pb.ExecuteRequest) -> RunOf:
    return RunOf(request.run_id, request.agent.id, request.agent.company_id, request.task_key)
