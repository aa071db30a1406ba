"""Test the drawing of a flow: boxes do not overlap, and no line crosses an unrelated box."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from runs.flows.definition import examine
from runs.flows.kernel.graph import Graph, graph_of
from runs.pages.flows.graph_drawing import drawing_of
from runs.pages.flows.graph_layout import BOX_HEIGHT, BOX_WIDTH, MAX_DRAWN, Point, layout


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Return graphs that the checks of a definition accept: forward edges, and loops."""
    count = draw(st.integers(1, 9))
    names = [f"n{number}" for number in range(count)]
    pairs = [(a, b) for a, b in combinations(names, 2) if draw(st.booleans())]
    edges = [{"from": a, "to": b} for a, b in pairs]
    loops = [{"from": b, "to": a, "maxIterations": 2} for a, b in pairs if draw(st.integers(0, 4)) == 0]
    loops += [{"from": name, "to": name, "maxIterations": 2} for name in names if draw(st.integers(0, 5)) == 0]
    nodes = [{"id": name, "type": "constant", "value": 1} for name in names]
    while True:  # overlapping loops are invalid: remove the last one until the graph is valid
        definition = {"flow_id": "drawn", "nodes": nodes, "edges": [*edges, *loops]}
        fields, problems = examine(definition)
        if fields is not None and not problems:
            return graph_of(fields)
        loops.pop()


def is_inside(point: Point, box: Point) -> bool:
    return box.x + 1 < point.x < box.x + BOX_WIDTH - 1 and box.y + 1 < point.y < box.y + BOX_HEIGHT - 1


def on_the_way(a: Point, b: Point) -> list[Point]:
    """Return points on the line or curve between two points."""
    steps = [number / 24 for number in range(25)]
    if a.x == b.x or a.y == b.y:
        return [Point(a.x + (b.x - a.x) * t, a.y + (b.y - a.y) * t) for t in steps]
    middle = (a.y + b.y) / 2
    return [
        Point(
            a.x * (1 - t) ** 3 + 3 * a.x * t * (1 - t) ** 2 + 3 * b.x * t**2 * (1 - t) + b.x * t**3,
            a.y * (1 - t) ** 3 + 3 * middle * t * (1 - t) ** 2 + 3 * middle * t**2 * (1 - t) + b.y * t**3,
        )
        for t in steps
    ]


@settings(max_examples=60)
@given(graph=graphs())
def test_boxes_and_lines_do_not_overlap(graph: Graph) -> None:
    placed = layout(graph)

    assert placed.boxes.keys() == graph.nodes.keys()
    assert placed.lines.keys() == {edge.key for edge in graph.edges}
    for a, b in combinations(placed.boxes.values(), 2):
        assert abs(a.x - b.x) >= BOX_WIDTH or abs(a.y - b.y) >= BOX_HEIGHT
    for line in placed.lines.values():
        for a, b in pairwise(line.points):
            for point in on_the_way(a, b):
                assert not any(is_inside(point, box) for box in placed.boxes.values())
                assert 0 <= point.x <= placed.width
                assert 0 <= point.y <= placed.height


def test_an_unreadably_large_graph_is_not_drawn() -> None:
    nodes = [{"id": f"n{number}", "type": "constant", "value": 1} for number in range(MAX_DRAWN + 1)]
    chain = [{"from": f"n{number}", "to": f"n{number + 1}"} for number in range(MAX_DRAWN - 1)]
    # Few nodes with edges from each to all later ones: a drawing of megabytes that takes seconds on each update.
    dense = [{"from": a["id"], "to": b["id"]} for a, b in combinations(nodes[:40], 2)]

    assert drawing_of({"flow_id": "large", "nodes": nodes}).is_too_large
    assert drawing_of({"flow_id": "dense", "nodes": nodes[:40], "edges": dense}).is_too_large
    assert not drawing_of({"flow_id": "long", "nodes": nodes[:MAX_DRAWN], "edges": chain}).is_too_large
