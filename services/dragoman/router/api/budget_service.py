"""The RPC of ``RouterService`` for the budgets of its operator."""

from collections.abc import Iterator

from dragoman.protocol.server import Context
from dragoman.router.api.paging import decode_token, encode_token, page_size
from dragoman.router.model.errors import log_unavailable
from dragoman.router.model.ports import Clock, RequestPolicy
from dragoman.router.model.spending import Account, LabelBudget
from dragoman.router.policy.spending import span, status
from dragoman.router.storage.database import StoreError, in_time
from dragoman.router.storage.run_log import READ_S, RunLog
from dragoman.v1 import router_pb2 as pb


class BudgetServicer:
    """Serves budgets.

    Args:
        requests: has the budgets.
        run_log: adds up what is spent.
        clock: the time.
    """

    def __init__(self, requests: RequestPolicy, run_log: RunLog, clock: Clock) -> None:
        self._requests = requests
        self._run_log = run_log
        self._clock = clock

    async def ListBudgets(self, request: pb.ListBudgetsRequest, _context: Context) -> pb.ListBudgetsResponse:  # noqa: N802 - the contract's name
        """List budgets with what is left of them."""
        first, after = decode_token(request.page_token, int, str) if request.page_token else (0, "")
        size, response, last = page_size(request.page_size), pb.ListBudgetsResponse(), first
        for number, budget in self._budgets(request.name, first):
            from_value = after if number == first and request.page_token else None
            try:
                await self._run_log.settled()
                entries = await in_time(self._entries(budget, from_value, size + 1), READ_S)
            except StoreError as error:
                raise log_unavailable(error) from error
            for entry in entries:
                if len(response.budgets) == size:
                    response.next_page_token = encode_token([last, response.budgets[-1].value])
                    return response
                response.budgets.append(entry)
                last = number
        return response

    def _budgets(self, name: str, first: int) -> Iterator[tuple[int, LabelBudget]]:
        for number, budget in enumerate(self._requests.budgets()):
            if number >= first and name in {"", budget.name}:
                yield number, budget

    async def _entries(self, budget: LabelBudget, after: str | None, size: int) -> list[pb.BudgetStatus]:
        """Return what some values have left of a budget, in order.

        Args:
            budget: the budget.
            after: only values that follow this one; ``None`` for all.
            size: at most so many.
        """
        since, until = span(budget.period, self._clock.time())
        table = self._run_log.store.spending
        if budget.field and budget.value is None:
            rows = await table.values(budget.key, since, after, size)
            return [status(budget, Account(budget.key, value, since, until), spent) for value, spent in rows]
        if after is not None:
            return []
        account = Account(budget.key, budget.value or "", since, until)
        return [status(budget, account, await table.spent(account))]
