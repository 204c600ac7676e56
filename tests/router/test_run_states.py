"""The table of a run's states: whole, and what the README shows."""

import re
from pathlib import Path

from dragoman.router._domain.run_states import BEGINNINGS, TABLE, RunState, Step, after, diagram
from hypothesis import given
from hypothesis import strategies as st

README = Path(__file__).parents[2] / "README.md"
LAST = {RunState.ENDED, RunState.REFUSED, RunState.ELSEWHERE}


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(TABLE) == set(RunState)
    reached = set(BEGINNINGS)
    while more := {target for state in reached for target in TABLE[state].values()} - reached:
        reached |= more
    assert reached == set(RunState)


def test_every_step_is_taken_somewhere() -> None:
    assert {step for steps in TABLE.values() for step in steps} == set(Step)


@given(st.sampled_from(BEGINNINGS), st.lists(st.sampled_from(Step)))
def test_nothing_comes_after_the_end(state: RunState, steps: list[Step]) -> None:
    for step in steps:
        following = after(state, step)
        if state in LAST:
            assert following is None
        state = following or state


def test_every_state_that_is_no_end_leads_to_one_by_a_loss_or_a_refusal() -> None:
    for state in set(RunState) - LAST:
        assert {Step.LOST, Step.REFUSED} & set(TABLE[state]), state
        assert after(state, Step.TAKEN) is RunState.ELSEWHERE


def test_the_readme_shows_the_table() -> None:
    shown = re.search(r"<!-- states -->\n```mermaid\n(.*?)\n```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown.group(1) == diagram(), "put dragoman.router._domain.run_states.diagram() there"
