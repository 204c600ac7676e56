"""``dragoman budgets``, and what ``dragoman run`` says when a budget of the operator is spent."""

import json
import tempfile
from pathlib import Path

from dragoman.testkit.fakes.adapter import FakeAdapter, serving
from dragoman.v1 import router_pb2

from tests.cli.program import dragoman
from tests.router.test_label_budgets import ACME, DONE, run, under

POLICY = f"""{ACME}input_tokens = 5000
[[budgets]]
name = "few"
label = "team"
value = "red"
period = "total"
runs = 1
[[budgets]]
name = "all"
period = "day"
runs = 9
"""


async def test_budgets_are_listed_with_what_is_left() -> None:
    with tempfile.TemporaryDirectory(prefix="dr-") as folder:  # short enough for sockets
        async with under(Path(folder), POLICY) as (caller, _sidecar):
            env = {"DRAGOMAN_ROUTER": f"unix:{folder}/r.sock"}
            await run(caller, {"spent": "1.5"}, {"used": 40}, DONE, company="acme\x1b[2J").rest()
            done = await dragoman("budgets", env=env)
            assert done.code == 0, done.err
            rows = [line.split("  ") for line in done.out.splitlines()]
            cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
            assert [row[:6] for row in cells[:3]] == [
                ["monthly", "company_id acme␛[2J", "total", "1.5 USD", "1 USD", "0 USD"],
                ["monthly", "company_id acme␛[2J", "total", "40", "5,000 input tokens", "4,960"],
                ["few", "label:team red", "total", "0", "1 run", "1"],
            ]
            assert cells[0][6] == "-"
            assert cells[3][:3] == ["all", "all runs", "day"]
            assert cells[3][6].endswith(" 00:00")
            one = await dragoman("budgets", "few", "--json", env=env)
            assert json.loads(one.out)["left"] == {"runs": "1"}
            await run(caller, DONE, labels={"team": "red"}).rest()
            spent = await dragoman("run", "fake", json.dumps([DONE]), "--label", "team=red", env=env)
            assert spent.code == 1, spent.err
            assert (
                "The router's budget 'few' of label:team 'red' is spent: 1 of 1 run. It does not reset." in spent.err
            )
            assert "ask the router's operator for a larger one" in spent.err


async def test_a_budget_of_a_later_revisions_period_is_listed() -> None:
    budget = router_pb2.BudgetStatus(name="later")
    budget.limit.runs = 2
    budget.MergeFromString(bytes([router_pb2.BudgetStatus.PERIOD_FIELD_NUMBER << 3, 99]))
    answers = {"ListBudgets": router_pb2.ListBudgetsResponse(budgets=[budget])}
    async with serving(FakeAdapter(answers=answers)) as address:
        done = await dragoman("budgets", "--router", address)
    assert done.code == 0, done.err
    assert "kind 99" in done.out
