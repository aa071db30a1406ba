"""The documentation: valid links, a README of one page, and settings that exist in the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agentops.settings import env
from tests.support.repository import Page, anchor_of

ROOT = Path(__file__).resolve().parent.parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
#: Limit for a decision page.
MAX_DECISION_LINES = 60
MAX_README_LINES = 150
MAX_IMAGE_BYTES = 200_000
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
VARIABLE = re.compile(r"\b(AGENTOPS_[A-Z_]+)\b(?!…)")
#: Variables of programs that use a site: agentops.durable reads them elsewhere.
OF_PROGRAMS = {"AGENTOPS_URL"}
#: Prefixes of setting names, such as "AGENTOPS_RATE_…".
PARTIAL = re.compile(r"`AGENTOPS_[A-Z_]*…`|`AGENTOPS_…`")
#: The bare package name in install commands. A package index has an unrelated project with the same name.
FROM_INDEX = re.compile(r"(?<![\w./-])agentops\[|pip install [^\n`]*(?<![\w./-])agentops(?![\w./-])")
#: A module of the product or a benchmark, named by its path.
MODULE = re.compile(r"(?<![\w./])((?:agentops|runs|timeline|bench)(?:/\w+)+\.py)\b")
#: A module of the paragraph's package, named without it.
MODULE_NAME = re.compile(r"`(\w+\.py)`")


def test_every_named_module_exists() -> None:
    """Migrations are left out: they are never changed, so they name modules as they were."""
    tops = [ROOT / name for name in ("agentops", "runs", "timeline", "bench")]
    sources = [path for top in tops for path in top.rglob("*.py") if path.parent.name != "migrations"]
    named = {name for path in [*PAGES, *sources] for name in MODULE.findall(path.read_text(encoding="utf-8"))}
    in_architecture = MODULE_NAME.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    tests = [path.name for path in (ROOT / "tests").rglob("*.py")]

    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    assert set(in_architecture) <= {*(path.name for path in sources), *tests}


def test_every_link_is_valid() -> None:
    assert [fault for path in PAGES for fault in Page.read(path).faults()] == []


def test_every_documented_setting_exists() -> None:
    for path in PAGES:
        documented = set(VARIABLE.findall(PARTIAL.sub("", path.read_text(encoding="utf-8"))))
        assert documented - env.registered.keys() - OF_PROGRAMS == set(), path


def test_no_command_installs_the_unrelated_package_of_the_same_name() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        lines = [text[match.start() :].partition("\n")[0] for match in FROM_INDEX.finditer(text)]
        assert lines == [], path


def test_the_readme_is_one_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert len(text.splitlines()) <= MAX_README_LINES
    assert "\nmake up " in text
    assert "\nmake test " in text
    # The introduction and the commands come first, the pictures later.
    assert text.index("\nmake test ") < text.index("(docs/images/run.png)")


def test_images_are_small_and_used() -> None:
    pictures = sorted((ROOT / "docs" / "images").iterdir())
    shown = {(page.parent / link).resolve() for page in PAGES for link in PICTURE.findall(page.read_text())}

    assert set(pictures) == shown
    assert [path.name for path in pictures if path.stat().st_size > MAX_IMAGE_BYTES] == []


def test_the_readme_links_to_every_guide_and_reference() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in Page.read(ROOT / "README.md").links}
    wanted = {path for folder in ("guides", "reference") for path in (ROOT / "docs" / folder).glob("*.md")}

    assert wanted - linked == set()


def test_the_site_has_every_page() -> None:
    navigation = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    tomllib.loads(navigation)

    missing = [path for path in PAGES if path not in TOP and f'"{path.relative_to(ROOT / "docs")}"' not in navigation]

    assert missing == []


def test_a_decision_is_one_page() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    architecture = Page.read(ROOT / "docs" / "architecture.md").links

    for path in decisions:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= MAX_DECISION_LINES, path.name
        assert {"## Context", "## Decision", "## Consequences"} <= set(lines), path.name
        assert f"decisions/{path.name}" in architecture
    assert decisions


# --- The checker itself -----------------------------------------------------------------------------------------


def test_a_broken_link_is_reported(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## `agentops up`\n\n## Same\n\n## Same\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#agentops-up) [`b`](other.md#same-1) ![c](none.png) [d](other.md#gone) [e](#page) `[f](x.md)`\n"
        "```text\n[g](y.md)\n```\n[h](https://example.org/none)\n# Page\n"
    )

    assert [fault.partition(": ")[2] for fault in Page.read(page).faults()] == [
        "none.png: no such file",
        "other.md#gone: no such heading",
    ]


def test_anchors_equal_the_anchors_of_github() -> None:
    for heading, anchor in {
        "What happens when a worker dies": "what-happens-when-a-worker-dies",
        "agentops post_restore": "agentops-post_restore",
        "Without an `on_error` policy": "without-an-on_error-policy",
        "A lease, not Celery's acks": "a-lease-not-celerys-acks",
    }.items():
        assert anchor_of(heading) == anchor
