"""Templates and scripts contain nothing that the CSP or a browser would block.

No inline script, style or handler, no bypass of autoescape, no unused file, no URL of another host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from runs.statuses import RunStatus, ToolStatus

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "static"
VENDOR = STATIC / "vendor"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
#: The run report is a standalone file with an inline stylesheet and a policy for it.
REPORT = ROOT / "templates/runs/report/head.html"
SCRIPTS = sorted((STATIC / "js").glob("*.js"))
#: Code that creates HTML: the templates, and the Python code that fills them.
PYTHON = sorted(path for package in ("agentops", "timeline", "runs") for path in (ROOT / package).rglob("*.py"))

#: Maximum length of a template line, in characters.
TEMPLATE_WIDTH = 160
#: XML namespaces, which are never fetched.
NAMESPACES = ("http://www.w3.org/2000/svg",)
HOST = re.compile(r"""(?:\bhttps?:|["'(\s])//[\w-]+\.[\w.-]+""")

IN_TEMPLATES = {
    "an inline script": re.compile(r"<script(?![^>]*\bsrc=)", re.IGNORECASE),
    "an inline style": re.compile(r"<style\b|<[^>]*\sstyle\s*=", re.IGNORECASE),
    "a handler": re.compile(r"<[^>]*\s(?:on[a-z]+|hx-on[\w:-]*|data-hx-on[\w:-]*)\s*=", re.IGNORECASE),
    "code for htmx": re.compile(r"""(?:hx-vals|hx-headers|hx-vars)\s*=\s*["']?\s*(?:js|javascript):|hx-vars"""),
    "an address that runs code": re.compile(r"javascript:", re.IGNORECASE),
    "unescaped text": re.compile(r"\|\s*safe\b|\|\s*safeseq\b|\{%\s*autoescape\s+off"),
}
IN_PYTHON = re.compile(r"\bmark_safe\b|\bSafe(?:String|Text)\(")
IN_SCRIPTS = {
    "code from text": re.compile(r"\beval\s*\(|\bnew Function\b|setTimeout\s*\(\s*[\"'`]"),
    "HTML from text": re.compile(r"\.outerHTML\s*=|insertAdjacentHTML|document\.write"),
}
#: Conditions that scripts must not use, because tests/browser/test_every_page.py loads each page once for all layouts.
BY_WIDTH = {"the width": re.compile(r"matchMedia|\b(?:inner|outer)Width\b|\bscreen\.width|[\"']resize[\"']")}
WIDE_STYLES = {"run.css", "tabs.css"}
BY_SCHEME = {"a query for the colour scheme": re.compile(r"prefers-color-scheme")}
#: The API documentation page is a third-party program whose dark scheme needs a class.
FOLLOWS_SCHEME = STATIC / "js/docs.js"


def faults(paths: Iterable[Path], rules: dict[str, re.Pattern[str]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1} has {what}"
        for path in paths
        for text in [path.read_text()]
        for what, rule in rules.items()
        for match in rule.finditer(text)
    ]


def test_templates_have_no_inline_code_and_keep_autoescape() -> None:
    assert TEMPLATES
    assert faults(TEMPLATES, IN_TEMPLATES) == faults([REPORT], {"an inline style": IN_TEMPLATES["an inline style"]})


def test_no_template_line_is_too_long() -> None:
    """The formatter (djade) breaks no lines, because a space between two elements may be visible."""
    lines = ((path, number, line) for path in TEMPLATES for number, line in enumerate(path.read_text().split("\n"), 1))

    assert not [f"{path.relative_to(ROOT)}:{number}" for path, number, line in lines if len(line) > TEMPLATE_WIDTH]


def test_python_marks_no_text_as_safe() -> None:
    """Except for sanitized text, in one module."""
    [*marked] = faults(PYTHON, {"a text marked as safe": IN_PYTHON})

    assert marked
    assert {fault.partition(":")[0] for fault in marked} == {"runs/pages/content/markup.py"}


def test_scripts_do_not_evaluate_text() -> None:
    assert not faults(SCRIPTS, IN_SCRIPTS)


def test_scripts_do_not_depend_on_width_or_colour_scheme() -> None:
    """A page that is resized or switches to the dark scheme then looks the same as after a reload."""
    assert not faults([path for path in SCRIPTS if path != FOLLOWS_SCHEME], BY_WIDTH | BY_SCHEME)


def test_only_run_pages_use_more_than_1280_pixels() -> None:
    """Wider windows are tested only with run pages."""
    queries = {path.name: re.findall(r"@media[^{]*width: (\d+)rem", path.read_text()) for path in STATIC.rglob("*.css")}

    assert {name for name, widths in queries.items() if any(int(width) > 80 for width in widths)} == WIDE_STYLES


def test_the_dark_scheme_changes_only_colours() -> None:
    """The stylesheet uses only `light-dark()` for it, which accepts colours only."""
    sheets = sorted(STATIC.glob("*.css")) + sorted((STATIC / "css").glob("*.css"))

    assert sheets
    assert not faults(sheets, BY_SCHEME)


def test_html_is_parsed_in_one_script() -> None:
    """`innerHTML` turns a row into an element; no other script needs it."""
    users = [path.name for path in SCRIPTS if ".innerHTML" in path.read_text()]

    assert users == ["edges.js"]


def test_every_script_is_loaded_by_a_template() -> None:
    markup = "\n".join(path.read_text() for path in TEMPLATES)

    for script in [*SCRIPTS, *VENDOR.glob("*.js")]:
        assert f"{{% static '{script.relative_to(STATIC).as_posix()}' %}}" in markup


def test_every_icon_used_in_a_template_exists() -> None:
    drawn = set(re.findall(r'<symbol id="([\w-]+)"', (STATIC / "icons.svg").read_text()))
    shown = {name for path in TEMPLATES for name in re.findall(r"""\{% icon ["']([\w-]+)["'] %\}""", path.read_text())}

    assert shown
    assert shown <= drawn


def test_every_status_has_a_colour_and_an_icon() -> None:
    drawn, styled = (STATIC / "icons.svg").read_text(), (STATIC / "css/status.css").read_text()

    for status in [*RunStatus, *ToolStatus]:
        assert f'<symbol id="{status}"' in drawn
        assert re.search(rf"\.status-{status}\b", styled)


def test_no_file_refers_to_a_host() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".svg"}]
    for path in [*TEMPLATES, *files]:
        text = path.read_text()
        for namespace in NAMESPACES:
            text = text.replace(namespace, "")
        assert not HOST.search(text), path.relative_to(ROOT)


@pytest.mark.parametrize(
    ("markup", "what"),
    [
        ("<script>alert(1)</script>", "an inline script"),
        ('<p class="a" style="color: red">', "an inline style"),
        ("<style>", "an inline style"),
        ('<a href="#" onclick="x()">', "a handler"),
        ('<div hx-on:click="x()">', "a handler"),
        ("<div hx-vals='js:{a: 1}'>", "code for htmx"),
        ('<a href="JavaScript:x()">', "an address that runs code"),
        ("{{ text|safe }}", "unescaped text"),
        ("{% autoescape off %}", "unescaped text"),
    ],
)
def test_a_planted_fault_is_detected(markup: str, what: str) -> None:
    assert IN_TEMPLATES[what].search(markup)


@pytest.mark.parametrize("markup", ['<script defer src="a.js"></script>', '<p data-style="x">', "{{ a|safename }}"])
def test_allowed_markup_is_accepted(markup: str) -> None:
    assert not any(rule.search(markup) for rule in IN_TEMPLATES.values())
