"""The drawing of a flow for templates: boxes and arrows with their texts, and with their status in a flow run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from runs.flows.kernel.graph import Edge, Graph, Node, graph_of
from runs.flows.kernel.snapshot import Snapshot
from runs.pages.flows.graph_layout import BOX_HEIGHT, BOX_WIDTH, Line, Point, is_drawable, layout
from timeline.display import clean

#: Maximum characters of a line in a box, and of a label at an edge.
MAX_LINE, MAX_LABEL = 24, 30
#: Maximum characters of the name of an agent or a tool.
MAX_BY = 14
#: The radius of the rounded corners of a loop edge.
ROUND = 8
#: Kind of a node → label.
KINDS = {"agent": "Agent", "tool": "Tool", "human": "Person", "constant": "Constant"}


@dataclass(frozen=True)
class Box:
    """A node as it is drawn."""

    id: str
    kind: str
    x: float
    y: float
    title: str
    #: The executor, such as the name of its agent.
    by: str
    #: `pending`, `running`, `done`, `failed` or `skipped`; empty without a run.
    status: str = ""
    href: str = ""
    #: Such as "2 of 5 items"; empty without iterations.
    progress: str = ""

    @property
    def kind_label(self) -> str:
        return KINDS[self.kind]

    @property
    def description(self) -> str:
        """Return the content of the box in one sentence, for screen readers."""
        parts = [f"{self.kind_label} {self.title}", self.by, self.status, self.progress]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Arrow:
    """An edge as it is drawn."""

    key: str
    #: The `d` of an SVG path.
    path: str
    label: str
    label_x: float
    label_y: float
    #: The edge in one sentence, for screen readers.
    description: str
    is_loop: bool
    #: `pending`, `fired` or `skipped`; empty without a run.
    status: str = ""


@dataclass(frozen=True)
class Drawing:
    """The drawing of a flow. Empty if the graph is too large: then only the tables show it."""

    width: float = 0
    height: float = 0
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT
    is_too_large: bool = False


def drawing_of(
    definition: Mapping[str, Any], snapshot: Snapshot | None = None, hrefs: Mapping[str, str] | None = None
) -> Drawing:
    """Return the drawing of a valid definition.

    `snapshot` has the statuses of a flow run, and `hrefs` the links of nodes, by ID.
    """
    graph = graph_of(definition)
    if not is_drawable(graph):
        return Drawing(is_too_large=True)
    placed = layout(graph)
    links = hrefs or {}
    boxes = [
        _box(graph, node, placed.boxes[node.id], snapshot, links.get(node.id, "")) for node in graph.nodes.values()
    ]
    arrows = [_arrow(edge, placed.lines[edge.key], snapshot) for edge in graph.edges]
    return Drawing(placed.width, placed.height, boxes, arrows)


def executor_of(node: Node) -> str:
    """Return the executor of a node: its agent or its tool; empty for other nodes."""
    return clean(str(node.spec.get("agent") or node.spec.get("tool") or ""))


def title_of(node: Node) -> str:
    """Return the title of a node, or its ID without one."""
    return clean(str(node.spec.get("title") or node.id))


def progress_of(graph: Graph, snapshot: Snapshot, node: str) -> str:
    """Return the progress of a node with forEach or in a loop, in words; empty for other nodes."""
    parts = []
    output = snapshot["outputs"].get(node)
    entries = output.get("iterations") if isinstance(output, dict) and set(output) == {"iterations"} else None
    if isinstance(entries, list) and any(edge.each_in for edge in graph.incoming[node]):
        ended = sum(entry.keys() != {"item"} for entry in entries if isinstance(entry, dict))
        parts.append(f"{ended} of {len(entries)} items")
    iterations = sum(snapshot["loopCounters"][loop.key] for loop in graph.around[node])
    if iterations:
        parts.append(f"iteration {iterations + 1}")
    return ", ".join(parts)


def _box(graph: Graph, node: Node, at: Point, snapshot: Snapshot | None, href: str) -> Box:
    return Box(
        id=node.id,
        kind=node.kind,
        x=round(at.x, 1),
        y=round(at.y, 1),
        title=_clip(title_of(node), MAX_LINE),
        by=_clip(executor_of(node), MAX_BY),
        status=snapshot["nodeStatus"][node.id] if snapshot else "",
        href=href,
        progress=progress_of(graph, snapshot, node.id) if snapshot else "",
    )


def _arrow(edge: Edge, line: Line, snapshot: Snapshot | None) -> Arrow:
    return Arrow(
        key=edge.key,
        path=_path(line),
        label=_clip(_label(edge, snapshot), MAX_LABEL),
        label_x=round(line.label.x, 1),
        label_y=round(line.label.y, 1),
        description=f"{edge.source} to {edge.target}: {_label(edge, snapshot) or 'always'}",
        is_loop=line.is_loop,
        status=snapshot["edgeStatus"][edge.key] if snapshot else "",
    )


def _label(edge: Edge, snapshot: Snapshot | None) -> str:
    """Return the condition of an edge, its list, or how often a loop edge was followed."""
    if edge.max_iterations is not None:
        count = snapshot["loopCounters"][edge.key] if snapshot else None
        return f"at most {edge.max_iterations}×" if count is None else f"{count} of {edge.max_iterations}"
    if edge.each_in is not None:
        return f"each {edge.each_as}"
    return f"if {clean(edge.when)}" if edge.when else ""


def _path(line: Line) -> str:
    """Return the `d` of an SVG path: curves between the points, or straight lines with rounded corners for a loop."""
    begin = f"M{line.points[0].x:g} {line.points[0].y:g}"
    if not line.is_loop:
        return begin + "".join(_curve(a, b) for a, b in pairwise(line.points))
    last = line.points[-1]
    corners = zip(line.points, line.points[1:], line.points[2:], strict=False)
    return begin + "".join(_corner(a, b, c) for a, b, c in corners) + f"L{last.x:g} {last.y:g}"


def _corner(a: Point, corner: Point, b: Point) -> str:
    """Return the path of a rounded corner between `a` and `b`. Both segments are horizontal or vertical."""
    before, after = _next_to(corner, a), _next_to(corner, b)
    return f"L{before.x:g} {before.y:g}Q{corner.x:g} {corner.y:g} {after.x:g} {after.y:g}"


def _next_to(corner: Point, towards: Point) -> Point:
    """Return the point between a corner and `towards` at which the rounding of the corner begins."""
    dx, dy = towards.x - corner.x, towards.y - corner.y
    reach = min(ROUND, (abs(dx) + abs(dy)) / 2)
    return Point(corner.x + (dx > 0) * reach - (dx < 0) * reach, corner.y + (dy > 0) * reach - (dy < 0) * reach)


def _curve(a: Point, b: Point) -> str:
    """Return a curve that leaves `a` and enters `b` vertically."""
    middle = (a.y + b.y) / 2
    return f"C{a.x:g} {middle:g} {b.x:g} {middle:g} {b.x:g} {b.y:g}"


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
