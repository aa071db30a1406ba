"""A page as a browser has it: parsed, and changed by live rows in the way of static/js/rows.js.

May import the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"input", "link", "meta", "br", "hr", "img", "use"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.attributes.get("id", "")

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())

    @property
    def elements(self) -> list[Element]:
        return [child for child in self.children if isinstance(child, Element)]

    def walk(self) -> Iterator[Element]:
        yield self
        for child in self.elements:
            yield from child.walk()

    def find(self, id_: str) -> Element | None:
        return next((element for element in self.walk() if element.id == id_), None)

    def all(self, *classes: str) -> list[Element]:
        return [element for element in self.walk() if element.classes >= set(classes)]

    @property
    def text(self) -> str:
        """What can be read, but for what counts on by itself."""
        if "tick" in self.classes:
            return ""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("#root")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parse(html: str) -> Element:
    """The tree; a tag that is not closed where it should be is an error."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder._open == [builder.root], f"not closed: {builder._open[-1].tag}"
    return builder.root


class Page:
    """A timeline, and the places beside it that live rows replace."""

    def __init__(self, html: str) -> None:
        self.root = parse(html)
        #: Elements by their ids, each with what it stands in.
        self._known: dict[str, tuple[Element, Element]] = {}
        self._learn(self.root)

    def _learn(self, within: Element, outside: Element | None = None) -> None:
        for parent in within.walk():
            place = outside if parent is within and outside else parent
            self._known.update((child.id, (child, place)) for child in parent.elements if child.id)

    @property
    def timeline(self) -> Element:
        return self._known["timeline"][0]

    @property
    def rows(self) -> list[Element]:
        return [child for child in self.timeline.elements if child.tag == "li" and child.id != "older"]

    def receive(self, rows: str) -> None:
        """The pieces of one message, in order; see static/js/rows.js."""
        for piece in parse(rows).elements:
            self._place(piece, piece.attributes.pop("hx-swap-oob", None))

    def _place(self, piece: Element, how: str | None) -> None:
        wanted = piece.id if how in (None, "true") else how.partition(":#")[2]
        target, parent = self._known.get(wanted, (None, None))
        if target is None or parent is None:
            if how is None or "data-append" in piece.attributes:
                self.timeline.children.append(piece)
                self._learn(Element("", {}, [piece]), self.timeline)
        elif how is not None and how.startswith("beforeend:"):
            target.children.extend(piece.children)
        elif how is not None:
            for gone in target.walk():
                self._known.pop(gone.id, None)
            at = next(place for place, child in enumerate(parent.children) if child is target)
            parent.children[at] = piece
            self._learn(Element("", {}, [piece]), parent)

    def seen(self) -> dict[str, tuple[str, frozenset[str]]]:
        """Every row by its id: what it says, and how it looks."""
        ids = [row.id for row in self.rows]
        assert len(ids) == len(set(ids)), "an id that is there twice"
        return {row.id: (row.words, frozenset(row.classes - {"is-target"})) for row in self.rows}
