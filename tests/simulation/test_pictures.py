"""Curves are well-formed SVG with axes, names and a text for screen readers."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.simulation.curves import CHARTS
from bench.simulation.pictures import Chart, Curve, draw

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("is_log", [True, False])
def test_a_chart_shows_its_curves_inside_the_picture(is_log: bool) -> None:
    curves = [Curve("a < b", [(1, 0.5), (10, 7), (1000, 42)]), Curve("flat", [(1, 3), (1000, 3)])]
    root = ElementTree.fromstring(
        draw(Chart("Title", "workers", "seconds", curves, is_log=is_log, limits=[(2, "two")]))
    )

    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 2
    for line in lines:
        places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
        assert all(0 <= x <= 720 and 0 <= y <= 360 for x, y in places)
    texts = {text.text for text in root.findall(f"{SVG}text")}
    assert {"Title", "workers", "seconds", "a < b", "flat", "two", "1,000"} <= texts
    assert root.findtext(f"{SVG}title") == "Title: a < b; flat"


@pytest.mark.parametrize("name", CHARTS)
def test_each_picture_is_in_the_documentation(name: str) -> None:
    guide = (IMAGES.parent / "guides" / "sizing.md").read_text()

    assert f"../images/{name}.svg" in guide
    assert ElementTree.parse(IMAGES / f"{name}.svg").getroot().tag == f"{SVG}svg"
