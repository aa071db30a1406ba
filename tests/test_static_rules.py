"""What the policy and the browser forbid stands in no template and no script, before a browser ever says so.

No inline script, style or handler, no way around autoescape, no file that nobody loads, no address of another host.
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
#: The report of a run is a file of its own, with its style sheet inside and a policy that allows no other.
REPORT = ROOT / "templates/runs/report/head.html"
SCRIPTS = sorted((STATIC / "js").glob("*.js"))
#: Code that makes HTML: the templates, and the Python that fills them.
PYTHON = sorted(path for package in ("agentops", "timeline", "runs") for path in (ROOT / package).rglob("*.py"))

#: Characters in a line of a template.
TEMPLATE_WIDTH = 160
#: Names of things, never fetched.
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
#: What scripts must not decide by, as tests/browser/test_every_page.py loads each page once for all looks.
BY_WIDTH = {"the width": re.compile(r"matchMedia|\b(?:inner|outer)Width\b|\bscreen\.width|[\"']resize[\"']")}
WIDE_STYLES = {"run.css", "tabs.css"}
BY_SCHEME = {"a query for the colour scheme": re.compile(r"prefers-color-scheme")}
#: The documentation page of the API, somebody else's program, knows dark colours by a class only.
FOLLOWS_SCHEME = STATIC / "js/docs.js"


def faults(paths: Iterable[Path], rules: dict[str, re.Pattern[str]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1} has {what}"
        for path in paths
        for text in [path.read_text()]
        for what, rule in rules.items()
        for match in rule.finditer(text)
    ]


def test_templates_leave_scripts_styles_and_escaping_alone() -> None:
    assert TEMPLATES
    assert faults(TEMPLATES, IN_TEMPLATES) == faults([REPORT], {"an inline style": IN_TEMPLATES["an inline style"]})


def test_no_line_of_a_template_is_too_long_to_be_read() -> None:
    """The formatter (djade) breaks none: a space between two elements may be seen, and it does not know where."""
    lines = ((path, number, line) for path in TEMPLATES for number, line in enumerate(path.read_text().split("\n"), 1))

    assert not [f"{path.relative_to(ROOT)}:{number}" for path, number, line in lines if len(line) > TEMPLATE_WIDTH]


def test_python_marks_no_text_as_safe() -> None:
    """But for what has passed the sanitiser, in one place."""
    [*marked] = faults(PYTHON, {"a text marked as safe": IN_PYTHON})

    assert marked
    assert {fault.partition(":")[0] for fault in marked} == {"runs/pages/content/markup.py"}


def test_scripts_run_no_text() -> None:
    assert not faults(SCRIPTS, IN_SCRIPTS)


def test_scripts_leave_the_width_and_the_scheme_to_the_style_sheet() -> None:
    """A page that gets narrow or dark is then what it would have been if it had been loaded so."""
    assert not faults([path for path in SCRIPTS if path != FOLLOWS_SCHEME], BY_WIDTH | BY_SCHEME)


def test_only_runs_use_more_width_than_1280_pixels() -> None:
    """A wider window is looked at with the pages of runs only."""
    queries = {path.name: re.findall(r"@media[^{]*width: (\d+)rem", path.read_text()) for path in STATIC.rglob("*.css")}

    assert {name for name, widths in queries.items() if any(int(width) > 80 for width in widths)} == WIDE_STYLES


def test_a_dark_page_differs_from_a_light_one_in_its_colours_only() -> None:
    """All that the style sheet has for it is `light-dark()`, which takes colours."""
    sheets = sorted(STATIC.glob("*.css")) + sorted((STATIC / "css").glob("*.css"))

    assert sheets
    assert not faults(sheets, BY_SCHEME)


def test_html_is_parsed_in_one_place_only() -> None:
    """`innerHTML` is how a row becomes an element; nothing else needs it."""
    users = [path.name for path in SCRIPTS if ".innerHTML" in path.read_text()]

    assert users == ["edges.js"]


def test_every_script_is_loaded_by_a_template() -> None:
    markup = "\n".join(path.read_text() for path in TEMPLATES)

    for script in [*SCRIPTS, *VENDOR.glob("*.js")]:
        assert f"{{% static '{script.relative_to(STATIC).as_posix()}' %}}" in markup


def test_every_icon_that_is_shown_is_drawn() -> None:
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
def test_it_catches_a_planted_fault(markup: str, what: str) -> None:
    assert IN_TEMPLATES[what].search(markup)


@pytest.mark.parametrize("markup", ['<script defer src="a.js"></script>', '<p data-style="x">', "{{ a|safename }}"])
def test_it_lets_pass_what_is_allowed(markup: str) -> None:
    assert not any(rule.search(markup) for rule in IN_TEMPLATES.values())
