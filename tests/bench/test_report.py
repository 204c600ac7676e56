"""The pure parts of the benchmark; nothing is measured."""

from xml.etree import ElementTree as ET

import pytest

from tests.bench.measures import FIGURES, MEASURES, TITLES, selected
from tests.bench.report import (
    Figure,
    broken_floors,
    goals_table,
    hops_table,
    number,
    plot,
    replaced,
    spread,
)

RATIO = Figure("CPU", "x", "flat.router.us", "flat.relay.us", goal=1.3, floor=3)
RATE = Figure("rate", "x", "many.router.per_s", "many.relay.per_s", goal=0.6, at_least=True, floor=0.1)
SAMPLES = {
    "flat.relay.us": [10.0, 20.0, 10.0],
    "flat.router.us": [20.0, 30.0, 30.0],
    "many.relay.per_s": [1000.0],
    "many.router.per_s": [200.0],
}


def test_a_ratio_is_taken_within_each_round() -> None:
    assert RATIO.values(SAMPLES) == [2.0, 1.5, 3.0]


def test_without_another_quantity_a_figure_is_the_quantity() -> None:
    assert Figure("CPU", "us", "flat.router.us").values(SAMPLES) == [20.0, 30.0, 30.0]


@pytest.mark.parametrize("samples", [{}, {"flat.router.us": [1.0]}, {**SAMPLES, "flat.relay.us": [0.0] * 3}])
def test_what_was_not_measured_has_no_values(samples: dict[str, list[float]]) -> None:
    assert RATIO.values(samples) == []


def test_a_round_whose_base_is_nothing_does_not_shift_the_others() -> None:
    assert RATIO.values({**SAMPLES, "flat.relay.us": [0.0, 20.0, 10.0]}) == [1.5, 3.0]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.12345, "0.123"), (12.345, "12.3"), (123.4, "123"), (45000, "45 000")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "text"), [([], "-"), ([2.0], "2"), ([2.0, 2.0], "2"), ([3.0, 1.0, 2.0], "2 (1 to 3)")]
)
def test_the_spread_is_median_and_range(values: list[float], text: str) -> None:
    assert spread(values) == text


def test_the_goals_have_a_column_per_run_and_a_verdict_on_the_last() -> None:
    better = {**SAMPLES, "flat.router.us": [10.0, 20.0, 10.0]}
    lines = goals_table(
        [RATIO, RATE, Figure("no goal", "x", "a.b.c")],
        [{"name": "one", "samples": SAMPLES}, {"name": "two", "samples": better}],
    ).splitlines()
    assert lines == [
        "| measure | goal | one | two | reached |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| CPU | ≤ 1.3 x | 2 (1.5 to 3) | 1 | yes |",
        "| rate | ≥ 0.6 x | 0.2 | 0.2 | **no** |",
    ]


def test_what_the_last_run_did_not_measure_is_not_called_reached() -> None:
    assert goals_table([RATIO], [{"name": "one", "samples": {}}]).splitlines()[-1] == "| CPU | ≤ 1.3 x | - | - |"


def test_a_measure_has_a_row_per_hop() -> None:
    assert hops_table("flat", {**SAMPLES, "flat.router.per_s": [7.0]}).splitlines() == [
        "|  | us | per_s |",
        "| --- | ---: | ---: |",
        "| relay | 10 (10 to 20) | - |",
        "| router | 30 (20 to 30) | 7 |",
    ]
    assert not hops_table("other", SAMPLES)


def test_floors_are_kept_by_the_median() -> None:
    assert broken_floors([RATIO, RATE], SAMPLES) == []


def test_a_floor_breaks_on_the_wrong_side_only() -> None:
    slower = {**SAMPLES, "flat.router.us": [40.0, 80.0, 40.0], "many.router.per_s": [50.0]}
    assert broken_floors([RATIO, RATE], slower) == [
        "CPU: 4 x; at most 3 is required",
        "rate: 0.05 x; at least 0.1 is required",
    ]


def test_a_floor_of_what_was_not_measured_is_broken() -> None:
    assert broken_floors([RATIO], {}) == ["CPU: not measured"]


def test_the_plot_is_a_picture_with_a_bar_per_goal() -> None:
    picture = ET.fromstring(plot([RATIO, RATE, Figure("a < b", "x", "a.b.c", goal=1)], SAMPLES))
    bars = [bar for bar in picture.iter("{http://www.w3.org/2000/svg}rect") if bar.get("height") == "14"]
    assert len(bars) == 2
    assert all(float(bar.get("width") or 0) > 2 for bar in bars)


def test_what_stands_between_marks_is_replaced() -> None:
    page = "a\n<!-- bench: goals -->\nold\n<!-- end -->\nb\n<!-- bench: other -->\n<!-- end -->\n"
    assert replaced(page, "goals", "new") == (
        "a\n<!-- bench: goals -->\n\nnew\n\n<!-- end -->\nb\n<!-- bench: other -->\n<!-- end -->\n"
    )
    with pytest.raises(ValueError, match="marks"):
        replaced(page, "none", "new")


def test_each_figure_is_of_a_measure_that_exists_and_each_floor_is_no_stricter_than_its_goal() -> None:
    for figure in FIGURES:
        assert figure.of.partition(".")[0] in TITLES, figure
        assert figure.of.count(".") == 2, figure
        if figure.floor is not None and figure.goal is not None:
            assert figure.keeps(figure.floor, figure.goal), figure


def test_what_is_checked_on_any_machine_is_a_ratio() -> None:
    assert all(figure.unit == "x" for figure in FIGURES if figure.floor is not None)


def test_a_check_measures_all_that_has_a_floor_and_no_more() -> None:
    checked = selected("", check=True)
    assert {
        figure.title for figure in FIGURES if figure.floor is not None and figure.of.split(".")[0] not in checked
    } == {
        "`dragoman run process`, CPU against `import grpc.aio`"  # which the measure `start` notes
    }
    assert "start" in checked
    assert "many_paced" not in checked
    assert selected("", check=False) == {one.name for one in MEASURES}
    assert selected("many_paced", check=True) == {"many_paced"}
