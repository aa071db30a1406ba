"""HTML as a tree of elements: the text of a page, and the rows of its timeline.

Imports the standard library only.
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
        """Yield this element and its descendants, in document order."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.elements)

    def find(self, id_: str) -> Element | None:
        return next((element for element in self.walk() if element.id == id_), None)

    def all(self, *classes: str) -> list[Element]:
        return [element for element in self.walk() if element.classes >= set(classes)]

    @property
    def text(self) -> str:
        """The visible text, without running counters."""
        pieces: list[str] = []
        waiting: list[Element | str] = [self]
        while waiting:
            piece = waiting.pop()
            if isinstance(piece, str):
                pieces.append(piece)
            elif "tick" not in piece.classes:
                waiting += reversed(piece.children)
        return "".join(pieces)

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("#root")
        self.open_elements = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open_elements[-1].children.append(element)
        if tag not in VOID:
            self.open_elements.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open_elements[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open_elements[-1].tag == tag, f"</{tag}> closes <{self.open_elements[-1].tag}>"
        self.open_elements.pop()

    def handle_data(self, data: str) -> None:
        self.open_elements[-1].children.append(data)


def parse(html: str) -> Element:
    """Parse HTML into a tree. Fail if a tag is not closed correctly."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder.open_elements == [builder.root], f"not closed: {builder.open_elements[-1].tag}"
    return builder.root


class Page:
    """A timeline, and the rest of its page."""

    def __init__(self, html: str) -> None:
        self.root = parse(html)

    def element(self, id_: str) -> Element:
        found = self.root.find(id_)
        assert found is not None, f"there is no #{id_}"
        return found

    @property
    def timeline(self) -> Element:
        return self.element("timeline")

    @property
    def rows(self) -> list[Element]:
        return [child for child in self.timeline.elements if child.tag == "li" and child.id != "older"]

    def seen(self) -> dict[str, tuple[str, frozenset[str]]]:
        """Return the text and the classes of every row, by its ID."""
        ids = [row.id for row in self.rows]
        assert len(ids) == len(set(ids)), "an id that is there twice"
        return {row.id: (row.words, frozenset(row.classes - {"is-target"})) for row in self.rows}
