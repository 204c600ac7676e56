"""Budgets of the operator that many runs share: added up, refused when spent, exceeded by runs that live."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.duties import ALL_DUTIES
from dragoman.protocol.errors import Reason
from dragoman.router.model.spending import Account, Spent
from dragoman.router.storage.spending_table import SpendingTable
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, Caller, Stream, config, failure, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_duties import codes
from tests.router.test_processes import program
from tests.router.test_takeover import attached

FEATURES = [event_pb2.FEATURE_TOOL_START, event_pb2.FEATURE_COST, event_pb2.FEATURE_PER_CALL_USAGE]
ACME = '[[budgets]]\nname = "monthly"\nfield = "company_id"\nperiod = "total"\ncost = "1"\n'
DONE = {"end": "SUCCEEDED"}


@contextlib.asynccontextmanager
async def under(folder: Path, policy: str, **fields: Any) -> AsyncIterator[tuple[Caller, Sidecar]]:
    """A router with this policy in front of an adapter that is said to keep budgets, and keeps none."""
    (folder / "policy.toml").write_text(policy)
    sidecar, address = Sidecar("fake", **{"features": FEATURES, **fields}), f"unix:{folder}/a.sock"
    configured = config(folder, addresses=(address,), policy=folder / "policy.toml")
    async with serving(sidecar, address), routing(configured) as (_router, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield caller, sidecar


def run(caller: Caller, *steps: Any, company: str = "acme", **fields: Any) -> Stream:
    """Start a run of a company."""
    return caller.execute("fake", *steps, agent=pb.Agent(id="a", company_id=company), **fields)


async def budgets(caller: Caller, **fields: Any) -> list[router_pb2.BudgetStatus]:
    return list((await caller.router.ListBudgets(router_pb2.ListBudgetsRequest(**fields))).budgets)


async def test_a_spent_budget_refuses_runs_of_its_value_alone_also_after_a_restart(folder: Path) -> None:
    async with under(folder, ACME) as (caller, sidecar):
        await run(caller, {"spent": "0.75"}, DONE).rest()
        await run(caller, {"spent": "0.5"}, DONE).rest()
        first, second = sidecar.requests("Execute")
        assert first.limits.budget == event_pb2.Budget(cost="1", currency="USD")
        assert second.limits.budget == event_pb2.Budget(cost="0.25", currency="USD")
    async with under(folder, ACME) as (caller, sidecar):
        error = await run(caller, DONE).error()
        assert (error.reason, error.code.name) == (Reason.BUDGET_SPENT, "RESOURCE_EXHAUSTED")
        assert error.metadata == {
            "budget": "monthly",
            "field": "company_id",
            "value": "acme",
            "cap": "cost",
            "spent": "1.25 USD",
            "limit": "1 USD",
        }
        assert sidecar.requests("Execute") == []
        await run(caller, DONE, company="other").rest()
        acme, other = await budgets(caller)
        assert (acme.name, acme.field, acme.value) == ("monthly", "company_id", "acme")
        assert (acme.limit.cost, acme.spent.cost, acme.left.cost) == ("1", "1.25", "0")
        assert (acme.period, acme.HasField("resets_at")) == (router_pb2.BUDGET_PERIOD_TOTAL, False)
        assert (other.value, other.spent.cost, other.left.cost) == ("other", "0", "1")
        listed = await caller.router.ListRuns(router_pb2.ListRunsRequest())
        assert len(listed.runs) == 3  # one that is refused never was


async def test_a_live_run_ends_when_others_have_used_what_was_left(folder: Path) -> None:
    async with under(folder, ACME) as (caller, sidecar):
        steps = ({"set": "s"}, {"spent": "0.4"}, {"gate": "go"}, {"spent": "0.1"}, {"gate": "never"})
        live = run(caller, *steps)
        before = await live.until("usage")
        await run(caller, {"spent": "0.8"}, DONE).rest()
        sidecar.open("go")
        events = [*before, *await live.rest()]
        check_stream(events)
        result = events[-1].result
        assert result.outcome == event_pb2.OUTCOME_FAILED
        assert result.failure.kind == event_pb2.FAILURE_KIND_BUDGET_EXCEEDED
        assert result.failure.code == "router_budget_cost"
        # Its first report may be compared as late as that.
        found = re.search("'monthly' of company_id 'acme': they used (1.[23]) USD of 1 USD", result.failure.message)
        assert found is not None, result.failure.message
        assert result.session.handle.native_id == "s"
        assert "budget_warning" in codes(events)
        (cancelled,) = sidecar.requests("Cancel")
        assert cancelled.reason == result.failure.message
        assert (await budgets(caller))[0].spent.cost in {"1.2", "1.3"}


async def test_a_run_that_succeeds_nevertheless_has_succeeded(folder: Path) -> None:
    async with under(folder, ACME) as (caller, _sidecar):
        events = await run(caller, {"spent": "3"}, DONE).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_failure_of_the_agents_own_budget_names_the_routers(folder: Path) -> None:
    async with under(folder, ACME) as (caller, _sidecar):
        events = await run(caller, {"failed": "BUDGET_EXCEEDED"}).rest()
        (text,) = events[-1].result.failure.errors
        assert "'monthly' of company_id 'acme'" in text


async def test_runs_are_counted_one_after_another(folder: Path) -> None:
    policy = '[[budgets]]\nname = "few"\nlabel = "team"\nvalue = "red"\nperiod = "total"\nruns = 3\n'
    async with under(folder, policy) as (caller, sidecar):
        started = [run(caller, {"gate": "g"}, DONE, labels={"team": "red"}) for _ in range(8)]
        firsts = await asyncio.gather(*(stream.until("started") for stream in started), return_exceptions=True)
        refused = [first for first in firsts if isinstance(first, BaseException)]
        assert len(refused) == 5
        assert len(sidecar.requests("Execute")) == 3
        assert not any(request.limits.HasField("budget") for request in sidecar.requests("Execute"))
        await run(caller, DONE, labels={"team": "blue"}).rest()
        (few,) = await budgets(caller)
        assert (few.field, few.value, few.spent.runs, few.left.runs) == ("label:team", "red", 3, 0)
        sidecar.open("g")


async def test_an_agent_that_never_reports_cost_gets_a_notice_and_is_not_refused(folder: Path) -> None:
    async with under(folder, ACME, features=[event_pb2.FEATURE_TOOL_START]) as (caller, sidecar):
        events = await run(caller, DONE).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert codes(events) == ["budget_unknown"]
        own = event_pb2.Limits(budget=event_pb2.Budget(cost="1"))  # for the adapter to refuse
        await run(caller, DONE, limits=own).rest()
        first, second = sidecar.requests("Execute")
        assert not first.limits.HasField("budget")
        assert second.limits == own


async def test_an_agent_that_reports_cost_in_another_currency_gets_a_notice(folder: Path) -> None:
    tools = '[[budgets]]\nname = "tools"\nperiod = "total"\ntool_calls = 9\n'
    for policy, expected in ((ACME + 'currency = "EUR"\n', ["budget_unknown"]), (tools, [])):
        async with under(folder, policy) as (caller, _sidecar):
            events = await run(caller, {"spent": "0.1"}, {"spent": "0.1"}, DONE).rest()
            assert codes(events) == expected


async def test_a_run_has_the_policys_budget_and_may_narrow_it(folder: Path) -> None:
    policy = "[limits.budget]\ncost = 2\ntool_calls = 10\n"
    async with under(folder, policy) as (caller, sidecar):
        await run(caller, DONE).rest()
        own = event_pb2.Limits(budget=event_pb2.Budget(cost="1", turns=3))
        await run(caller, DONE, limits=own).rest()
        more = event_pb2.Limits(budget=event_pb2.Budget(cost="1.5", tool_calls=11, ask=True))
        error = await run(caller, DONE, limits=more).error()
        assert error.reason is Reason.POLICY_DENIED
        assert [one.path for one in error.violations] == ["limits.budget.cost", "limits.budget.tool_calls"]
        default, narrowed = (request.limits.budget for request in sidecar.requests("Execute"))
        assert default == event_pb2.Budget(cost="2", currency="USD", tool_calls=10)
        assert narrowed == event_pb2.Budget(cost="1", tool_calls=10, turns=3)


async def test_caps_that_cannot_be_kept_for_an_adapter_refuse_no_run_that_sets_none(folder: Path) -> None:
    fields = {
        "features": [event_pb2.FEATURE_TOOL_START, event_pb2.FEATURE_QUEUE],
        "duties": [duty for duty in ALL_DUTIES if duty != pb.DUTY_BUDGETS],
    }
    async with under(folder, "[limits.budget]\nturns = 2\ntool_calls = 1\n", **fields) as (caller, sidecar):
        events = await run(caller, DONE).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert codes(events) == ["budget_unknown"]
        own = await run(caller, DONE, limits=event_pb2.Limits(budget=event_pb2.Budget(turns=1))).error()
        assert own.reason is Reason.NOT_SUPPORTED
        more = await run(caller, {"tool": "1"}, {"tool": "2"}, {"gate": "never"}).rest()
        assert more[-1].result.failure.kind == event_pb2.FAILURE_KIND_BUDGET_EXCEEDED
        sidecar.open("never")


async def test_sums_are_read_only_when_more_is_used_of_what_a_budget_caps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = SpendingTable.spent, list[Account]()

    async def noted(table: SpendingTable, account: Account) -> Spent:
        reads.append(account)
        return await read(table, account)

    monkeypatch.setattr(SpendingTable, "spent", noted)
    steps = [step for number in range(4) for step in ({"spent": "0.1"}, {"gate": str(number)})]
    async with under(folder, '[[budgets]]\nname = "tools"\nperiod = "total"\ntool_calls = 9\n') as (caller, sidecar):
        stream = run(caller, *steps, DONE)
        for number in range(4):
            await stream.until("usage")
            await budgets(caller, name="none")  # waits for nothing, but has the router do what is due
            sidecar.open(str(number))
        await stream.rest()
    assert len(reads) <= 2  # as it starts, and once that it has


async def test_all_attempts_share_what_is_left(folder: Path) -> None:
    (folder / "policy.toml").write_text(ACME)
    first, second = Sidecar("fake", features=FEATURES), Sidecar("two", features=FEATURES)
    addresses = (f"unix:{folder}/1.sock", f"unix:{folder}/2.sock")
    configured = config(folder, addresses=addresses, policy=folder / "policy.toml")
    async with serving(first, addresses[0]), serving(second, addresses[1]), routing(configured) as (_router, caller):
        for name in ("fake", "two"):
            await caller.until(name, router_pb2.ADAPTER_STATE_READY)
        fallback = pb.Fallback(adapters=["two"], on=[event_pb2.FAILURE_KIND_AUTH_REQUIRED])
        steps = json.dumps(
            {"fake": [[{"spent": "0.3"}, {"failed": "AUTH_REQUIRED"}]], "two": [[{"spent": "0.2"}, DONE]]}
        )
        request = pb.ExecuteRequest(adapter="fake", prompt=steps, fallback=fallback)
        await Stream(caller.adapter.Execute(request)).rest()
        (got,) = second.requests("Execute")
        assert got.limits.budget == event_pb2.Budget(cost="0.7", currency="USD")
        (spent,) = await budgets(caller)
        assert (spent.value, spent.spent.cost) == ("", "0.5")


async def test_a_router_that_takes_a_run_over_goes_on_counting(folder: Path) -> None:
    named, policy = manifest(folder, "fake"), folder / "policy.toml"
    policy.write_text(ACME)
    async with program(folder, manifests=[str(named)], policy=str(policy)) as (process, caller):
        steps = ({"spent": "0.5"}, {"gate": "g"}, {"spent": "0.25"}, DONE)
        stream = run(caller, *steps, run_id="r")
        before = await stream.until("usage")
        assert [one.spent.cost for one in await budgets(caller)] == ["0.5"]
        process.kill()
        await process.wait()
        await stream.rest_or_error()
    async with routing(config(folder, manifests=(named,), policy=policy)) as (_router, caller):
        following = asyncio.ensure_future(attached(caller, "r", before[-1].sequence))
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        await following
        assert [one.spent.cost for one in await budgets(caller)] == ["0.75"]


async def test_pages_go_over_budgets_and_their_values(folder: Path) -> None:
    more = ('name = "all"\nperiod = "month"', 'name = "x"\nlabel = "x"\nvalue = "y"\nperiod = "day"')
    policy = ACME + "".join(f"[[budgets]]\n{text}\nruns = 9\n" for text in more)
    async with under(folder, policy) as (caller, _sidecar):
        for company in ("b", "", "a"):
            await run(caller, DONE, company=company).rest()
        seen, token = [], ""
        for _ in range(3):
            page = await caller.router.ListBudgets(router_pb2.ListBudgetsRequest(page_size=2, page_token=token))
            seen += [(one.name, one.value) for one in page.budgets]
            token = page.next_page_token
        assert seen == [("monthly", ""), ("monthly", "a"), ("monthly", "b"), ("all", ""), ("x", "y")]
        assert not token
        assert [one.name for one in await budgets(caller, name="all")] == ["all"]
        assert await budgets(caller, name="none") == []
        wrong = await failure(caller.router.ListBudgets(router_pb2.ListBudgetsRequest(page_token="zz")))
        assert wrong.reason is Reason.INVALID_PAGE_TOKEN
        everything = (await budgets(caller, name="all"))[0]
        assert everything.resets_at.seconds > everything.starts_at.seconds > 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name = "a"\nperiod = "day"', "budgets.a: sets no cap"),
        ('name = "a"\nperiod = "week"\nruns = 1', "is not one of"),
        ('name = "a"\nperiod = "day"\nruns = 1\nvalue = "x"', "budgets.a.value: goes with field or label"),
        ('name = "a"\nperiod = "day"\nruns = 1\nfield = "task_key"\nlabel = "x"', "should not be valid under"),
        ('name = "a"\nperiod = "day"\ncost = "0"', "budgets.a.cost: must be a plain decimal number above zero"),
        ('name = "a"\nperiod = "day"\ncost = "0.00000000001"', "budgets.a.cost: must"),
        ('name = "a"\nperiod = "day"\ncost = "9999999999"', "budgets.a.cost: must have at most 9 digits"),
        ('name = "a"\nperiod = "day"\nruns = 1\n[[budgets]]\nname = "a"\nperiod = "day"\nruns = 1', "is given twice"),
        ('name = "a"\nperiod = "day"\ncurrency = "EUR"', "budgets.a.currency: goes with cost"),
    ],
)
def test_what_is_wrong_in_a_budget_is_named(text: str, problem: str) -> None:
    from dragoman.router.policy.operator_policy import PolicyError, parse_policy

    with pytest.raises(PolicyError) as error:
        parse_policy(f"[[budgets]]\n{text}\n".encode())
    assert problem in str(error.value)
