"""Test that formatted texts are inert and complete, and that the time to format them is bounded, for any content."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from django.template.loader import render_to_string

from runs.pages.content.call_arguments import show_arguments
from runs.pages.content.code_colours import LANGUAGES, coloured
from runs.pages.content.markup import CODE_CLASSES, TERMINAL_CLASSES, sanitised
from runs.pages.content.shown_text import (
    MAX_DEPTH,
    MAX_VALUES,
    ShownText,
    json_tree,
    show_file,
    show_json,
    show_markdown,
    show_output,
    show_tree,
)
from runs.pages.content.terminal_text import MAX_SPANS, colours_of
from tests.support.pages import HOSTILE, WHOLE, Element, parse
from timeline.display import Clip, clip

KIB = 1024
#: Limit in seconds of processor time for a text of 8 KiB on a busy machine. The slowest text takes a twentieth of this.
LIMIT_S = 1.5

FOREIGN_TAGS = {"script", "img", "svg", "iframe", "style", "base", "form", "math", "object", "meta", "link", "button"}


def outputs(text: str) -> ShownText:
    cut = clip(text, 8 * KIB)
    return show_output(cut, colours_of(text, cut.text))


def edits(text: str) -> ShownText:
    return show_arguments({"file_path": text[:50], "old_string": text, "new_string": text[::-1]}, 8 * KIB)[0]


FORMS: dict[str, Callable[[str], ShownText | None]] = {
    "markdown": lambda text: show_markdown(clip(text, 8 * KIB)),
    "code": lambda text: show_file(clip(text, 8 * KIB), "html"),
    "output": outputs,
    "arguments": lambda text: show_arguments({text: [text, {text: text}]}, 8 * KIB, as_tree=True)[0],
    "tree": lambda text: show_tree(clip(json.dumps({text: text}), 64 * KIB)),
    "edit": edits,
}
#: Texts that make parsers backtrack.
SLOW = [
    *("[", ">", "*", "_", "`", "~", "<", "&", "\\", "#", "|", "(", "{", "'", '"', "/", "-", ":", "=", "\n", " ", "\t"),
    *("![", "[a](", "[a][b", "*a ", "a**b", "_*", "a~~", "[](", "- ", "> ", "> - ", "1) ", "|a", "| a |\n", "<!--"),
    *("&a", "<a ", "<http:", "[a]: ", '[](x "', "x\n", "|x|y|\n|-|-|\n|\n", "```\n", "\x1b[31mx", "\x1b[", "{[", "/*"),
    *("\x1b]8;;", '"\\', "${", "<!", "<![CDATA[", "#{", "a=b;", "--\n++\n", "@@ -1 +1 @@\n-a\n", "0x", "r#", "\u202e"),
]


def elements_of(shown: ShownText) -> list[Element]:
    return list(parse(str(shown.html)).walk()) if shown.html else []


@pytest.mark.parametrize("form", FORMS)
def test_hostile_texts_are_inert(form: str) -> None:
    classes = CODE_CLASSES | TERMINAL_CLASSES | {"host", "table-scroll", "code-block", "json", "json-more"}
    classes |= {"align-center", "align-right"}
    for text in [*HOSTILE, WHOLE, *(each * 3 for each in HOSTILE)]:
        shown = FORMS[form](text)
        assert shown is not None
        for element in elements_of(shown):
            assert element.tag not in {
                "script",
                "img",
                "svg",
                "iframe",
                "style",
                "base",
                "form",
                "math",
                "object",
                "meta",
            }
            assert set(element.attributes) <= {"class", "href", "rel", "target", "tabindex", "open", "start"}
            assert element.classes <= classes
            if "href" in element.attributes:
                assert element.attributes["href"].startswith(("http://", "https://", "mailto:"))
                assert "nofollow" in element.attributes["rel"]
        assert not set("\x1b\x9b\x08\u202e\u200b\x00") & set(str(shown.html or shown.text))


@pytest.mark.parametrize("form", FORMS)
def test_the_time_is_bounded(form: str) -> None:
    slow = {}
    for text in SLOW:
        start = time.thread_time()
        FORMS[form]((text * (8 * KIB))[: 8 * KIB])
        if (took := time.thread_time() - start) > LIMIT_S:
            slow[text] = took

    assert slow == {}


def test_no_lexer_is_slow_for_a_single_token() -> None:
    """Run each language of the list on texts that would reveal backtracking."""
    slow = {}
    for language in LANGUAGES:
        for text in SLOW:
            start = time.thread_time()
            coloured((text * 256)[:256], language)
            if (took := time.thread_time() - start) > LIMIT_S:
                slow[language, text] = took

    assert slow == {}


def test_the_time_for_a_whole_page_of_the_slowest_texts_is_bounded() -> None:
    for text in ("[", "&", "[a](", "|x|y|\n|-|-|\n|\n", "x\n", "```\n"):
        start = time.thread_time()
        show_markdown(clip(text * (256 * KIB), 60 * KIB))
        assert time.thread_time() - start < 4 * LIMIT_S, text


def test_markdown_is_rendered() -> None:
    text = (
        "# T\n\nSee [docs](https://x.test/a), ![p](https://evil.test/p.png?q=s), <script>.\n\n|a|b|\n|---|--:|\n|1|2|\n"
    )
    html = str(show_markdown(Clip(text)).html)
    root = parse(html)

    assert [element.words for element in root.walk() if element.tag == "h3"] == ["T"]
    assert "(x.test)" in root.words
    assert "[image: p] (evil.test)" in root.words
    assert "<script>" in root.text
    assert [element.words for element in root.all("align-right")] == ["b", "2"]
    assert root.all("table-scroll")[0].attributes["tabindex"] == "0"


def test_short_text_without_markdown_is_the_same_without_the_parser() -> None:
    for text in ("Let me look.", "One:\n\nTwo, three\nfour.", "a & b", "x" * 8192):
        assert parse(str(show_markdown(Clip(text)).html)).words == " ".join(text.split())


def test_pasted_text_keeps_its_lines_and_indentation() -> None:
    """Use a paragraph that is code, a list with broken lines, and very long indentation."""
    code = "Look at **this**:\ndef f(x):\n    if x:\n\treturn 1\n\n- one\n  more\n- two"
    root = parse(str(show_markdown(Clip(code)).html))
    far = parse(str(show_markdown(Clip("a_b_\n" + " " * 4000 + "c")).html))

    assert [element.text for element in root.walk() if element.tag == "p"] == [
        "Look at this:\ndef f(x):\n\u00a0\u00a0\u00a0\u00a0if x:\n\u00a0\u00a0\u00a0\u00a0return 1"
    ]
    assert len([element for element in root.walk() if element.tag == "br"]) == 4
    assert [element.text for element in root.walk() if element.tag == "li"] == ["one\nmore", "two"]
    assert far.text.count("\u00a0") == 40


PLAIN_BEGINNING = "Shown as plain text, without Markdown: "


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("**a** " * 11_000, f"{PLAIN_BEGINNING}it is longer than 65,536 characters."),
        ("a\n\n" * 5000, f"{PLAIN_BEGINNING}it has too many short lines."),
        ("*a* " * 5000, "Parts are shown as plain text, without Markdown: it has more Markdown than a page renders."),
        (
            "|a" * 500 + "\n" + "|-" * 500 + "\n" + "|b\n" * 400,
            "Parts are shown as plain text, without Markdown: it has more Markdown than a page renders.",
        ),
        ("**a** " * 100, ""),
        ("a | b - c\n" * 60, ""),
        ("word " * 13_000, ""),
    ],
)
def test_unformatted_text_shows_the_reason(text: str, note: str) -> None:
    shown = show_markdown(Clip(text))

    assert shown.note == note
    assert parse(render_to_string("timeline/_content.html", {"shown": shown})).all("content-note") or not note
    assert "".join((shown.text or parse(str(shown.html)).text).split()).count("a") == text.count("a")


def test_uncolored_code_and_output_show_the_reason() -> None:
    long, changes = "x = 1\n" * 11_000, "\x1b[31ma\x1b[0mb"
    without = "Shown without colours: it is longer than 65,536 characters."
    output = clip(changes * (MAX_SPANS + 10), 256 * KIB)
    few = clip(changes * 10, KIB)

    assert show_file(Clip(long), "python").note == show_json(Clip(f"[{'1, ' * 30_000}1]")).note == without
    assert show_file(Clip(long), "").note == show_file(Clip("x = 1"), "python").note == ""
    assert show_output(output, colours_of(changes * (MAX_SPANS + 10), output.text)).note == (
        "Shown without colours after the first 4,000 coloured parts."
    )
    assert show_output(few, colours_of(changes * 10, few.text)).note == ""


def test_code_loses_no_character() -> None:
    text = "\n\n  def f():\n\treturn '<é>'  # \ufeff\n\n"
    for language in LANGUAGES:
        assert parse(coloured(text, language)).text == text, language


def test_line_numbers_of_a_tool_are_not_part_of_the_code() -> None:
    shown = show_file(Clip("     1→def f():\n     2→    '''a\n     3→    b'''\n"), "python")
    root = parse(str(shown.html))

    assert [element.text for element in root.all("hl-l")] == ["     1→", "     2→", "     3→"]
    assert [element.text for element in root.all("hl-s")] == ["'''a", "    b'''"]


def test_terminal_colors_are_applied_except_within_a_secret() -> None:
    raw = "a\x1b[1;31mb\x1b[22mc\x1b[38;5;33md\x1b[38;2;0;200;0me\x1b[41mf\x1b[0mg\x1b[2Kh"
    cut = clip(raw, KIB)
    spans = [(cut.text[span.start : span.end], span.classes) for span in colours_of(raw, cut.text)]
    secret = "\x1b[31mkey\x1b[0m sk-ant-api03-" + "Ab1" * 30

    assert cut.text == "abcdefgh"
    assert spans == [
        ("b", "tty-red tty-bold"),
        ("c", "tty-red"),
        ("d", "tty-blue"),
        ("e", "tty-green"),
        ("f", "tty-on"),
    ]
    assert colours_of(secret, clip(secret, KIB).text) == ()
    assert len(colours_of("\x1b[31mx\x1b[0my" * 99_999, "xy" * 99_999)) <= MAX_SPANS


def test_json_is_bounded_in_depth_and_number() -> None:
    deep = json_tree("[" * 200 + "]" * 200, str)
    wide = json_tree(json.dumps([[1] * 300] * 300), str)

    assert str(deep).count("<ul") == MAX_DEPTH + 1
    assert str(wide).count("<li") <= MAX_VALUES + 1000
    assert "more" in str(wide)
    assert json_tree("[" * 100_000, str) is None
    assert json_tree('"text"', str) is None


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"edits": [{"old_string": "a", "new_string": "b"}] * 2}, ["−Removed: a", "+Added: b"] * 2),
        ({"path": "x", "old_str": "a", "new_str": ""}, ["−Removed: a"]),
        ({"input": "*** Begin Patch\n*** Update File: x\n@@\n-a\n+b\n*** End Patch"}, ["−Removed: a", "+Added: b"]),
        ({"command": ["apply_patch", "*** Begin Patch\n*** Add File: x\n+b\n*** End Patch"]}, ["+Added: b"]),
    ],
)
def test_edits_and_patches_are_diffs(arguments: dict[str, object], lines: list[str]) -> None:
    signs = {"only-a": "−Removed: ", "only-b": "+Added: "}
    found = [
        signs[line.kind] + "".join(piece.text for piece in line.pieces)
        for shown in show_arguments(arguments, 8 * KIB)
        if shown.difference
        for line in shown.difference.lines
        if line.kind in signs
    ]

    assert found == lines


def test_the_sanitizer_removes_everything_else() -> None:
    html = (
        '<p onclick="x" class="banner" id="head" hx-get="/x" style="x">a<a href="javascript:x" rel="opener">b</a></p>'
    )

    assert sanitised(html) == '<p>a<a rel="noopener noreferrer nofollow ugc">b</a></p>'
