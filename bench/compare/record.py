"""The recorded facts, and their tables in docs/comparison.md."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.compare.facts import Facts, Row
from bench.compare.programs import task
from bench.compare.registries import found_in
from bench.compare.systems import SYSTEMS, System

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "comparison.md"
RESULT = Path(__file__).with_name("result.json")
NONE = "–"
#: Texts between these lines of the page are tables, by name.
BEGIN, END = "<!-- table: {} -->", "<!-- end of the table -->"
Cell = Callable[[Facts], str]

KILLED: Mapping[str, Cell] = {
    "Calls of tools 1, 2, 3": lambda facts: ", ".join(str(facts.calls.get(name, 0)) for name in task.TOOLS),
    "Calls of the model": lambda facts: ", ".join(str(facts.calls.get(f"model_{number}", 0)) for number in (1, 2)),
    "Key of the repeated call": lambda facts: {None: NONE, True: "the same", False: "another"}[facts.same_key],
    "Shown before it continued": lambda facts: _code(facts.interrupted),
    "Continued by": lambda facts: facts.continued_by,
    "Continues or asks after": lambda facts: f"{facts.continued_s:.1f} s",
}
WAITING: Mapping[str, Cell] = {
    "Shown while it waits": lambda facts: _code(facts.waiting),
    "Actions on the page of the run": lambda facts: _actions(facts.waiting_page),
    "The same, after the kill": lambda facts: _actions(facts.interrupted_page) if facts.rescued else NONE,
    "Approved while no process executes it": lambda facts: "yes" if facts.kept_without_process else "no",
}


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the tables as Markdown, by name."""
    return {
        "after the kill": _table(KILLED, rows),
        "the wait for a person": _table(WAITING, rows),
        "what runs": _lines(
            ["System", "Run on", "Versions", "Runs besides the program", "Approved with", "Releases on PyPI", "On npm"],
            [
                [
                    row.title,
                    row.date,
                    row.versions,
                    row.servers,
                    row.approval,
                    *(row.registries.get(name, NONE) for name in ("pypi", "npm")),
                ]
                for row in rows
                if row.facts is not None
            ],
        ),
        "not run here": _lines(["System", "Reason"], [[row.title, row.failure] for row in rows if row.facts is None]),
    }


def write(rows: Sequence[Row]) -> None:
    """Record rows, replace earlier rows of the same systems, and update the tables of the page."""
    known = {row.title: row for row in [*(recorded() if RESULT.exists() else []), *rows]}
    kept = [known[system.title].as_json() for system in SYSTEMS if system.title in known]
    RESULT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def recorded() -> list[Row]:
    """Return the recorded rows."""
    return [Row.from_json(row) for row in json.loads(RESULT.read_text(encoding="utf-8"))]


def updated(page: str) -> str:
    """Return the page with the tables of the recorded rows."""
    for name, table in tables(recorded()).items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"the page has no place for the table {name!r}")
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return page


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def versions(system: System, python: Path) -> str:
    """Return the names and versions of the packages that the table shows."""
    script = "import sys\nfrom importlib.metadata import version\nprint(*map(version, sys.argv[1:]))"
    done = subprocess.run([python, "-c", script, *system.packages], capture_output=True, text=True, check=True)
    pairs = list(zip(system.packages, done.stdout.split(), strict=True))
    for package in system.npm:
        manifest = python.parent.parent / "node_modules" / package / "package.json"
        pairs.append((package, json.loads(manifest.read_text(encoding="utf-8"))["version"]))
    return ", ".join(map(" ".join, pairs))


def registries(system: System) -> dict[str, str]:
    """Return the system's libraries in the registries, by registry."""
    return {registry: found_in(registry, package) for registry, package in system.libraries}


def _table(cells: Mapping[str, Cell], rows: Sequence[Row]) -> str:
    lines = [[row.title, *(cell(row.facts) for cell in cells.values())] for row in rows if row.facts is not None]
    return _lines(["System", *cells], lines)


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def _code(text: str) -> str:
    return f"`{text.replace('|', '/').replace('`', '')}`" if text else NONE


def _actions(names: Sequence[str] | None) -> str:
    if names is None:
        return "no page on this machine"
    return ", ".join(names).replace("|", "/") or "none"
