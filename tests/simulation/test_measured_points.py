"""The simulation reproduces what was measured with one and two workers, with and without a kill."""

from __future__ import annotations

import pytest

from bench.simulation.comparison import FIRST, IDLE, LAST, MODELLED, TAKEN, Comparison, compare, report
from bench.simulation.measured import POINTS


def test_each_measured_point_is_reproduced() -> None:
    comparisons = compare()

    assert all(one.is_close for one in comparisons), report(comparisons)


@pytest.mark.parametrize("workers", [1, 2])
def test_points_are_measured_idle_busy_and_after_a_kill(workers: int) -> None:
    measured = {point.what for point in POINTS if point.workers == workers}

    assert measured == MODELLED.keys()
    assert {IDLE, TAKEN, FIRST, LAST} <= measured
    assert all(point.how for point in POINTS)


def test_a_figure_that_is_off_is_reported() -> None:
    point = POINTS[0]

    assert Comparison(point, point.value * 1.19).is_close
    far = Comparison(point, point.value * 1.21)
    assert not far.is_close
    assert "more than 20%" in report([far])
