"""Render Markdown. Raw HTML stays text, images become links, and the time is bounded by the length of the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from urllib.parse import urlsplit

from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from runs.pages.content.code_colours import coloured
from runs.pages.content.markup import SCHEMES, sanitised

#: Maximum characters that are rendered as Markdown; longer texts are displayed as plain text.
MAX_MARKDOWN = 64 * 1024
#: Characters at which the parser looks for inline syntax, at a cost of 10 to 30 µs each. A text may have _SYNTAX_FREE
#: of them, and one more for each _CHARACTERS_PER_SYNTAX characters: three times as many as models write. The rest of a
#: text is displayed as plain text.
_SYNTAX = re.compile(r"[$%&*+\-:<=>@\[\\\]^_`{}~!#]")
_SYNTAX_FREE, _CHARACTERS_PER_SYNTAX = 512, 6
#: The same limits for lines, at 50 µs each, and for cells of tables. The parser adds missing cells to short rows.
_LINES_FREE, _CHARACTERS_PER_LINE = 512, 16
_CELLS_FREE, _CHARACTERS_PER_CELL = 1024, 8
#: The line below the header of a table, such as "| --- |".
_TABLE = re.compile(r"^[ \t|:>-]*-[ \t|:-]*\|[ \t|:-]*$", re.MULTILINE)
#: The key that `_inline` sets in the parser's environment if a text has more characters of _SYNTAX than allowed.
_IS_CUT = "is cut"
#: A text of paragraphs without any syntax, which needs no parser.
_PLAIN = re.compile(r"(?![ \t>+-])[^*_`#<\[\]|~&\\\n]+(?:\n{1,2}(?![ \t>+=-]|\d+[.)])[^*_`#<\[\]|~&\\\n]+)*\n?")
#: The start of a numbered list.
_NUMBER = re.compile(r"\d+[.)]")
#: The white space before the lines of a paragraph, which appears when people paste code without a fence.
_INDENTATION = re.compile(r"(?<=\n)[ \t]+")
#: Maximum columns of indentation that are kept.
_MAX_INDENTATION = 40
#: Levels added to headings, because the page has headings above the text's headings.
_HEADINGS_BELOW = 2
_ALIGNMENT = re.compile(r"text-align:(\w+)")


#: Why a part of a text is plain, as the end of a sentence.
TOO_MUCH_MARKDOWN = "it has more Markdown than a page renders"


def why_not_markdown(text: str) -> str:
    """Return why `text` is not rendered, as the end of a sentence; empty if it is."""
    if len(text) > MAX_MARKDOWN:
        return f"it is longer than {MAX_MARKDOWN:,} characters"
    lines = text.count("\n")
    return "it has too many short lines" if lines > _LINES_FREE + len(text) // _CHARACTERS_PER_LINE else ""


def markdown_html(text: str) -> tuple[SafeString, bool]:
    """Return a text as HTML of this site, and whether all of it was rendered, without reaching a limit.

    The text must be redacted, and `why_not_markdown` must have no objection to it.
    """
    if _PLAIN.fullmatch(text) and not _NUMBER.match(text):
        return _paragraphs(text), True
    has_tables = _cells(text) <= _CELLS_FREE + len(text) // _CHARACTERS_PER_CELL
    environment: dict[str, bool] = {}
    html = (_WITH_TABLES if has_tables else _PARSER).render(text, environment)
    is_complete = _IS_CUT not in environment and (has_tables or not _TABLE.search(text))
    return sanitised(html), is_complete


def _paragraphs(text: str) -> SafeString:
    paragraphs = escape(text.strip("\n"), quote=False).split("\n\n")
    return sanitised("".join(f"<p>{paragraph.replace(chr(10), '<br>' + chr(10))}</p>\n" for paragraph in paragraphs))


def _cells(text: str) -> int:
    """Return an upper bound of the table cells of a text."""
    lines = text.split("\n")
    return max(line.count("|") + 1 for line in lines) * len(lines) if "|" in text else 0


def _inline(state: StateCore) -> None:
    """Parse the inline syntax of each block, until the text has reached its limit; the rest stays plain."""
    left = _SYNTAX_FREE + len(state.src) // _CHARACTERS_PER_SYNTAX
    for token in state.tokens:
        if token.type != "inline":
            continue
        token.children = []
        token.content = _INDENTATION.sub(_unbreakable, token.content)
        left -= len(_SYNTAX.findall(token.content))
        if left >= 0:
            state.md.inline.parse(token.content, state.md, state.env, token.children)
        else:
            state.env[_IS_CUT] = True
            token.children.append(Token("text", "", 0, content=token.content))


def _unbreakable(spaces: re.Match[str]) -> str:
    """Return white space that neither the parser nor the browser removes."""
    return "\u00a0" * min(len(spaces[0].expandtabs(4)), _MAX_INDENTATION)


def _rewrite(state: StateCore) -> None:
    """Lower headings, turn images into links, and make tables scrollable."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + _HEADINGS_BELOW, 6)}"
        elif token.type in ("th_open", "td_open"):
            _class_for_alignment(token)
        elif token.children:
            token.children = list(_links(token.children))


def _class_for_alignment(token: Token) -> None:
    alignment = _ALIGNMENT.match(str(token.attrs.pop("style", "")))
    if alignment and alignment[1] in ("center", "right"):
        token.attrSet("class", f"align-{alignment[1]}")


def _links(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens of a block. The host follows each link, unless the link's text is the address."""
    address, words = "", ""
    for token in tokens:
        if token.type == "image":
            yield from _image_link(token, inside=bool(address))
            continue
        if token.type == "link_open":
            address, words = str(token.attrs.get("href", "")), ""
            token.attrs = {"href": address, "target": "_blank"}
        elif address:
            words += token.content
        yield token
        if token.type == "link_close":
            host = _host(address)
            if host and host not in words:
                yield Token("html_inline", "", 0, content=f' <span class="host">({escape(host)})</span>')
            address = ""


def _image_link(token: Token, *, inside: bool) -> Iterator[Token]:
    """Yield an image as a link: loading the image would tell its server who reads the run."""
    address = str(token.attrs.get("src", ""))
    words = Token("text", "", 0, content=f"[image: {token.content or 'no description'}]")
    if inside:
        yield words
        return
    yield Token("link_open", "a", 1, attrs={"href": address, "target": "_blank"})
    yield words
    yield Token("link_close", "a", -1)
    yield Token("html_inline", "", 0, content=f' <span class="host">({escape(_host(address))})</span>')


def _host(address: str) -> str:
    """Return the host of a URL, or the domain of an e-mail address."""
    try:
        parts = urlsplit(address)
        return parts.netloc or parts.path.rpartition("@")[2]
    except ValueError:
        return address


def _is_link(url: str) -> bool:
    """Return whether a link keeps its address: absolute, with a scheme that runs no code."""
    scheme, colon, rest = url.strip().partition(":")
    return bool(colon) and scheme.lower() in SCHEMES and (scheme.lower() == "mailto" or rest.startswith("//"))


def _fence(_renderer: RendererHTML, tokens: Sequence[Token], index: int, _o: OptionsDict, _env: EnvType) -> str:
    token = tokens[index]
    language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
    return f'<pre class="code-block" tabindex="0"><code>{coloured(token.content, language)}</code></pre>\n'


def _table_open(_renderer: RendererHTML, *_: object) -> str:
    return '<div class="table-scroll" tabindex="0"><table>\n'


def _table_close(_renderer: RendererHTML, *_: object) -> str:
    return "</table></div>\n"


def _make_parser(*extensions: str) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["strikethrough", *extensions])
    parser.validateLink = _is_link  # type: ignore[method-assign]
    parser.core.ruler.at("inline", _inline)
    parser.core.ruler.push("agentops", _rewrite)
    rules: dict[str, Callable[..., str]] = {
        "fence": _fence,
        "code_block": _fence,
        "table_open": _table_open,
        "table_close": _table_close,
    }
    for name, rule in rules.items():
        parser.add_render_rule(name, rule)
    return parser


_PARSER, _WITH_TABLES = _make_parser(), _make_parser("table")
