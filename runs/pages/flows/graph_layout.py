"""Place the nodes of a flow in layers from top to bottom, and route each edge.

An edge that crosses layers gets a lane in each of them, so that no line crosses a box. The nodes of a layer are sorted
by the mean position of their neighbours, which reduces line crossings (Sugiyama's method). All lengths are in units of
the SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from runs.flows.kernel.graph import Graph

BOX_WIDTH, BOX_HEIGHT = 208, 52
#: The width of the lane of a passing edge.
LANE = 24
#: The distance between two slots of a layer, and between two layers.
GAP, LAYER_GAP = 28, 58
#: The distance between the boxes and the edge of a loop.
LOOP_GAP = 36
MARGIN = 24
#: The distance between a box and the edge of a loop above or below it.
CHANNEL = 16
#: Half of the label at the edge of a loop.
LABEL_ROOM = 56
#: Number of passes over the layers, alternately down and up, that reduce line crossings.
SWEEPS = 4
#: Graphs with more nodes, or more lanes for passing edges, are not drawn: they would be unreadable, and an open page
#: requests its drawing repeatedly.
MAX_DRAWN, MAX_LANES = 120, 300


@dataclass(frozen=True)
class Point:
    """A point; `y` grows downwards."""

    x: float
    y: float


@dataclass(frozen=True)
class Line:
    """The path of an edge as points from source to target, and the position of its label."""

    points: Sequence[Point]
    label: Point
    is_loop: bool = False


@dataclass(frozen=True)
class Layout:
    """A drawing: its size, the upper left corner of each box, and the line of each edge by its key."""

    width: float
    height: float
    boxes: Mapping[str, Point]
    lines: Mapping[str, Line]


@dataclass(frozen=True)
class _Slot:
    """A slot in a layer: a node, or the lane of a passing edge."""

    #: The ID of the node, or the key of the edge and the number of the layer.
    name: str
    width: int


def is_drawable(graph: Graph) -> bool:
    """Return whether a graph is small enough to be drawn. Each of its cycles must contain a loop edge."""
    if len(graph.nodes) > MAX_DRAWN:
        return False
    layer_of = _layers(graph)
    lanes = (layer_of[edge.target] - layer_of[edge.source] - 1 for edge in graph.edges if not edge.is_loop)
    return sum(lanes) <= MAX_LANES


def layout(graph: Graph) -> Layout:
    """Return the layout of a drawable graph."""
    layer_of = _layers(graph)
    layers, chains = _slots(graph, layer_of)
    _order(layers, chains)
    centres = _centres(layers)
    boxes = {name: Point(centres[name].x - BOX_WIDTH / 2, centres[name].y - BOX_HEIGHT / 2) for name in graph.nodes}
    lines = {key: _forward(centres, chain) for key, chain in chains.items()}
    # The right end of each layer. Loop edges pass there: inner loops first, so that outer ones enclose them.
    ends = [max(centres[slot.name].x + slot.width / 2 for slot in layer) for layer in layers]
    width = max(ends) + MARGIN
    for loop in sorted(graph.loops, key=lambda loop: len(graph.bodies[loop.key])):
        passed = range(layer_of[loop.target], layer_of[loop.source] + 1)
        outside = max(ends[layer] for layer in passed) + LOOP_GAP
        is_free = [layers[layer_of[node]][-1].name == node for node in (loop.source, loop.target)]
        lines[loop.key] = _backward(boxes[loop.source], boxes[loop.target], outside, is_free)
        for layer in passed:
            ends[layer] = outside + LABEL_ROOM * 0.75
        width = max(width, outside + LABEL_ROOM)
    height = max(point.y for point in boxes.values()) + BOX_HEIGHT + MARGIN
    return Layout(width, height, boxes, lines)


def _layers(graph: Graph) -> dict[str, int]:
    """Return the layer of each node, which is the length of the longest path to it. Loop edges do not count."""
    layer_of: dict[str, int] = {}
    for name in graph.order:
        layer_of[name] = max((layer_of[edge.source] + 1 for edge in graph.incoming[name]), default=0)
    return layer_of


def _slots(graph: Graph, layer_of: Mapping[str, int]) -> tuple[list[list[_Slot]], dict[str, list[str]]]:
    """Return the slots of each layer, and the names of the slots on each forward edge, from source to target."""
    layers: list[list[_Slot]] = [[] for _ in range(max(layer_of.values()) + 1)]
    for name in graph.order:
        layers[layer_of[name]].append(_Slot(name, BOX_WIDTH))
    chains: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.is_loop:
            continue
        chain = [edge.source]
        for layer in range(layer_of[edge.source] + 1, layer_of[edge.target]):
            chain.append(f"{edge.key} {layer}")
            layers[layer].append(_Slot(chain[-1], LANE))
        chains[edge.key] = [*chain, edge.target]
    return layers, chains


def _order(layers: list[list[_Slot]], chains: Mapping[str, Sequence[str]]) -> None:
    """Sort each layer in place by the mean position of its neighbours: those above, then those below, a few times."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for chain in chains.values():
        for upper, lower in pairwise(chain):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    for sweep in range(SWEEPS):
        neighbours, in_order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        at = {slot.name: float(index) for layer in layers for index, slot in enumerate(layer)}
        for layer in in_order:
            # A slot without neighbours keeps its position.
            means = {slot.name: fmean(at[name] for name in neighbours.get(slot.name, [slot.name])) for slot in layer}
            layer.sort(key=lambda slot: means[slot.name])
            at.update((slot.name, float(index)) for index, slot in enumerate(layer))


def _centres(layers: Sequence[Sequence[_Slot]]) -> dict[str, Point]:
    """Return the centre of each slot. Each layer is centred in the drawing."""
    widths = [sum(slot.width for slot in layer) + GAP * (len(layer) - 1) for layer in layers]
    widest = max(widths)
    centres: dict[str, Point] = {}
    for number, (layer, width) in enumerate(zip(layers, widths, strict=True)):
        x = MARGIN + (widest - width) / 2
        y = MARGIN + BOX_HEIGHT / 2 + number * (BOX_HEIGHT + LAYER_GAP)
        for slot in layer:
            centres[slot.name] = Point(x + slot.width / 2, y)
            x += slot.width + GAP
    return centres


def _forward(centres: Mapping[str, Point], chain: Sequence[str]) -> Line:
    """Return the path from the bottom of a box to the top of another one, through the lanes between them."""
    half = BOX_HEIGHT / 2
    first, last = centres[chain[0]], centres[chain[-1]]
    points = [Point(first.x, first.y + half)]
    for name in chain[1:-1]:
        # A lane passes straight down through its layer.
        points += [Point(centres[name].x, centres[name].y - half), Point(centres[name].x, centres[name].y + half)]
    points.append(Point(last.x, last.y - half))
    begin, end = points[0], points[1]
    return Line(points, Point((begin.x + end.x) / 2, (begin.y + end.y) / 2))


def _backward(source: Point, target: Point, outside: float, is_free: Sequence[bool]) -> Line:
    """Return the path of a loop edge from the box `source` up to the box `target`, to the right of the boxes between.

    The path rises at x = `outside`. It leaves or enters a box at its right side if `is_free` says that this side has no
    neighbour; otherwise it leaves below `source`, or enters above `target`.
    """
    at_side, at_edge = BOX_WIDTH, BOX_WIDTH * 0.75
    leaves_at_side, enters_at_side = is_free
    if leaves_at_side:
        y = source.y + BOX_HEIGHT * 0.75
        begin = [Point(source.x + at_side, y), Point(outside, y)]
    else:
        x, bottom = source.x + at_edge, source.y + BOX_HEIGHT
        begin = [Point(x, bottom), Point(x, bottom + CHANNEL), Point(outside, bottom + CHANNEL)]
    if enters_at_side:
        y = target.y + BOX_HEIGHT * 0.25
        end = [Point(outside, y), Point(target.x + at_side, y)]
    else:
        x = target.x + at_edge
        end = [Point(outside, target.y - CHANNEL), Point(x, target.y - CHANNEL), Point(x, target.y)]
    return Line([*begin, *end], Point(outside, (begin[-1].y + end[0].y) / 2), is_loop=True)
