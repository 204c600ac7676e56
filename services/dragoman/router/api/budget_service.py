"""The RPC of ``RouterService`` for the budgets of its operator."""

from dragoman.protocol.server import Context
from dragoman.v1 import router_pb2 as pb


class BudgetServicer:
    """Serves budgets."""

    async def ListBudgets(self, _request: pb.ListBudgetsRequest, _context: Context) -> pb.ListBudgetsResponse:  # noqa: N802 - the contract's name
        """List budgets with what is left of them."""
        return pb.ListBudgetsResponse()
