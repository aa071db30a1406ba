"""Which module may import which, and how large each may grow: reads the code of agentops, timeline and runs.

Imports point down only, inside functions and under TYPE_CHECKING too. A new module fails until it stands below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

IDENTITY, RECORD, PARTS, STATE, WORK, DOORS, ROOF = range(1, 8)
FLOOR_NAMES = ["", "identity", "record", "parts", "state", "work", "doors", "roof"]

#: Prefix of a module's name → its floor. The longest prefix wins.
FLOORS = {
    # Roof: wiring. Nothing below imports it; it names what it wires by dotted string, or imports it.
    "agentops.apps": ROOF,
    "agentops.asgi": ROOF,
    "agentops.body_limit": ROOF,
    "agentops.celery": ROOF,
    "agentops.checks": ROOF,
    "agentops.cli": ROOF,
    "agentops.csp_report": ROOF,
    "agentops.env": ROOF,
    "agentops.error_pages": ROOF,
    "agentops.forwarded": ROOF,
    "agentops.health": ROOF,
    "agentops.http_protocol": ROOF,
    "agentops.management": ROOF,
    "agentops.middleware": ROOF,
    "agentops.one_charset": ROOF,
    "agentops.reference": ROOF,
    "agentops.request_id": ROOF,
    "agentops.settings": ROOF,
    "agentops.settings_reference": ROOF,
    "agentops.threaded": ROOF,
    "agentops.urls": ROOF,
    # Doors: authorise, parse, one call, answer. Never another door.
    "agentops.projects.admin": DOORS,
    "agentops.projects.management": DOORS,
    "agentops.projects.notification_views": DOORS,
    "agentops.projects.templatetags": DOORS,
    "agentops.projects.urls": DOORS,
    "agentops.projects.views": DOORS,
    "timeline.admin": DOORS,
    "timeline.api": DOORS,
    "timeline.management": DOORS,
    "timeline.templatetags": DOORS,
    "timeline.urls": DOORS,
    "timeline.views": DOORS,
    "runs.admin": DOORS,
    "runs.api": DOORS,
    "runs.management": DOORS,
    "runs.pages": DOORS,
    "runs.tasks": DOORS,
    # Work: what acts. Never each other.
    "runs.engine": WORK,
    "runs.flows.runner": WORK,
    "runs.importers": WORK,
    "runs.ingest": WORK,
    "runs.telemetry": WORK,
    "timeline.live": WORK,
    # State: the rows of a run and who may change them.
    "runs.access": STATE,
    "runs.agents": STATE,
    "runs.ancestry": STATE,
    "runs.apps": STATE,
    "runs.command_outcomes": STATE,
    "runs.causes": STATE,
    "runs.commits": STATE,
    "runs.contents": STATE,
    "runs.creation": STATE,
    "runs.day_budgets": STATE,
    "runs.demo": STATE,
    "runs.durations": STATE,
    "runs.families": STATE,
    "runs.folding": STATE,
    "runs.inbox": STATE,
    "runs.invariants": STATE,
    "runs.lifecycle": STATE,
    "runs.listings": STATE,
    "runs.masking": STATE,
    "runs.migrations": STATE,
    "runs.models": STATE,
    "runs.querysets": STATE,
    "runs.questions": STATE,
    "runs.restore": STATE,
    "runs.retention": STATE,
    "runs.reveal": STATE,
    "runs.rows_json": STATE,
    "runs.search": STATE,
    "runs.suspicion": STATE,
    "runs.summaries": STATE,
    "runs.transcript": STATE,
    "runs.wake": STATE,
    # Parts: pure decisions and adapters. No ORM, and nothing of the two floors below.
    "runs.alignment": PARTS,
    "runs.budgets": PARTS,
    "runs.chaos": PARTS,
    "runs.decisions": PARTS,
    "runs.environment": PARTS,
    "runs.errors": PARTS,
    "runs.fixtures": PARTS,
    "runs.gates": PARTS,
    "runs.flows.definition": PARTS,
    "runs.flows.kernel": PARTS,
    "runs.hooks": PARTS,
    "runs.json_columns": PARTS,
    "runs.limits": PARTS,
    "runs.message_text": PARTS,
    "runs.messages": PARTS,
    "runs.pause_notifications": STATE,
    "runs.policies": PARTS,
    "runs.provider_errors": PARTS,
    "runs.providers": PARTS,
    "runs.repeats": PARTS,
    "runs.resume_plan": PARTS,
    "runs.retries": PARTS,
    "runs.retry_limits": PARTS,
    "runs.statuses": PARTS,
    "runs.strict_json": PARTS,
    "runs.tools": PARTS,
    "runs.trimming": PARTS,
    # Record: the ledger. It does not know what a run is.
    "timeline.access": RECORD,
    "timeline.apps": RECORD,
    "timeline.dialects": RECORD,
    "timeline.doorbell": RECORD,
    "timeline.errors": RECORD,
    "timeline.events": RECORD,
    "timeline.fast": RECORD,
    "timeline.log": RECORD,
    "timeline.maintenance": RECORD,
    "timeline.migrations": RECORD,
    "timeline.models": RECORD,
    "timeline.preview": RECORD,
    "timeline.redact": RECORD,
    "timeline.redis_publisher": RECORD,
    "timeline.replay": RECORD,
    "timeline.rows": RECORD,
    "timeline.registered_secrets": RECORD,
    "timeline.secret_commands": RECORD,
    "timeline.secret_names": RECORD,
    "timeline.secret_shapes": RECORD,
    "timeline.token_shapes": RECORD,
    "timeline.vendor_tokens": RECORD,
    "timeline.shown": RECORD,
    "timeline.tombstones": RECORD,
    "timeline.windows": RECORD,
    # Identity: who may enter. The base of our commands belongs to it, so that every app's commands may build on it.
    "agentops.projects": IDENTITY,
    "agentops.projects.management.base": IDENTITY,
    # The base of our administration shows texts, so it stands above the record: doors of every app build on it.
    "agentops.projects.admin_base": RECORD,
}
PACKAGES = ("agentops", "timeline", "runs")

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_POSITIONAL = 5
FORBIDDEN_NAMES = {"utils", "helpers"}
NEED_NO_DOCSTRING = {"__init__", "apps", "urls"}
BARE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\[)")

ROOT = Path(__file__).resolve().parent.parent


# --- The rules of imports ---------------------------------------------------------------------------------------


def home_of(module: str) -> str | None:
    """The entry of FLOORS that a module, or a name in one, belongs to."""
    while module and module not in FLOORS:
        module = module.rpartition(".")[0]
    return module or None


def imports_of(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Every import with its line, as absolute dotted names; `from a import b` counts as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                here = module.split(".")
                base = here[: len(here) - node.level + is_package] + base
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def refusal(module: str, target: str) -> str | None:
    """Why `module`, which stands in FLOORS, may not import `target`; None if it may."""
    app, target_app = module.partition(".")[0], target.partition(".")[0]
    home, target_home = home_of(module), home_of(target)
    floor = FLOORS[home or ""]
    if floor == PARTS and f"{target}.".startswith("django.db."):
        return "parts know no database"
    if app == "timeline" and target_app == "runs":
        return "the ledger does not know what a run is"
    if floor == ROOF or target_home is None or home == target_home:
        return None
    target_floor = FLOORS[target_home]
    if floor == PARTS and target_floor < PARTS:
        return f"parts are pure: nothing of {FLOOR_NAMES[target_floor]}"
    if floor == target_floor == DOORS and not (module.endswith(".urls") and app == target_app):
        return "a door never imports another door"
    if floor == target_floor == WORK:
        return "work modules do not import each other"
    if target_floor > floor:
        return f"imports point down only: {FLOOR_NAMES[floor]} is below {FLOOR_NAMES[target_floor]}"
    return None


def floor_faults(module: str, source: str, *, is_package: bool = False) -> list[str]:
    tree = ast.parse(source)
    if home_of(module) is None:
        if module in PACKAGES and is_package:
            # What stands in a root package runs before everything in it.
            return [] if module == "agentops" or not tree.body else [f"{module}/__init__.py must stay empty"]
        return [f"{module}: say on which floor it lives (FLOORS in tests/test_floors.py)"]
    return [
        f"{module}:{line} imports {target}: {why}"
        for line, target in imports_of(tree, module, is_package=is_package)
        if (why := refusal(module, target))
    ]


# --- Budgets ----------------------------------------------------------------------------------------------------


def positional_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def function_faults(module: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield f"{module}:{node.lineno} {node.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"
        if (count := positional_of(node)) > MAX_POSITIONAL:
            yield f"{module}:{node.lineno} {node.name} takes {count} positional arguments, more than {MAX_POSITIONAL}"


def budget_faults(module: str, source: str, *, is_package: bool = False) -> list[str]:
    tree = ast.parse(source)
    name = "__init__" if is_package else module.rpartition(".")[2]
    lines = source.splitlines()
    faults = [
        f"{module}:{number} '# type: ignore' without a code"
        for number, line in enumerate(lines, start=1)
        if BARE_IGNORE.search(line)
    ]
    if name in FORBIDDEN_NAMES:
        faults.append(f"{module}: name it after what it holds")
    if ".migrations" in module:
        return faults
    if len(lines) > MAX_FILE_LINES:
        faults.append(f"{module} has {len(lines)} lines, more than {MAX_FILE_LINES}")
    if name not in NEED_NO_DOCSTRING and not ast.get_docstring(tree):
        faults.append(f"{module} says nowhere what lives in it: a docstring of two lines")
    return faults + list(function_faults(module, tree))


# --- The code as it is ------------------------------------------------------------------------------------------


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def faults_of(path: Path, check: Callable[..., list[str]]) -> list[str]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return check(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package=is_package)


@pytest.mark.parametrize("check", [floor_faults, budget_faults])
def test_the_house_stands(check: Callable[..., list[str]]) -> None:
    faults = [fault for path in modules() for fault in faults_of(path, check)]

    assert not faults, "\n" + "\n".join(faults)


def test_it_reads_all_three_packages() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in modules()} == set(PACKAGES)


# --- The checker itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("runs.engine.step", "from runs import lifecycle, transcript\nfrom timeline import log"),
        ("runs.engine.step", "from . import lease\nfrom .lease import claim"),
        ("runs.engine.step", "from django.db import transaction\nimport runs.providers.registry"),
        ("runs.tools.base", "from runs.errors import Fault\nimport django.utils.timezone"),
        ("runs.api.runs", "from runs.api.pagination import Page\nfrom runs.engine import resume"),
        ("timeline.urls", "from timeline import views"),
        ("agentops.projects.views", "from agentops.projects.models import Project\nfrom timeline import log"),
        ("agentops.urls", "from runs.pages import detail"),
    ],
)
def test_it_lets_imports_pass_that_point_down(module: str, source: str) -> None:
    assert floor_faults(module, source) == []


@pytest.mark.parametrize(
    ("module", "source", "why"),
    [
        ("timeline.log", "import runs", "does not know what a run is"),
        ("timeline.log", "from runs.models import Run", "does not know what a run is"),
        ("timeline.views", "from runs import models", "does not know what a run is"),
        ("runs.lifecycle", "from runs.engine import step", "state is below work"),
        ("runs.lifecycle", "def move():\n    from runs.engine.step import advance", "state is below work"),
        ("runs.lifecycle", "if TYPE_CHECKING:\n    from .engine.step import Step", "state is below work"),
        ("runs.models.run", "from ..tasks import advance", "state is below doors"),
        ("runs.engine.step", "import runs.ingest.batch", "do not import each other"),
        ("runs.flows.runner", "from runs.engine import step", "do not import each other"),
        ("runs.engine.step", "from timeline.live import bus", "do not import each other"),
        ("runs.api.runs", "from runs.pages import detail", "another door"),
        ("runs.pages.urls", "from timeline.views import rows", "another door"),
        ("runs.tasks", "from agentops.celery import app", "doors is below roof"),
        ("runs.statuses", "from django.db import models", "no database"),
        ("runs.statuses", "import django.db", "no database"),
        ("runs.hooks.base", "from timeline import log", "nothing of record"),
        ("runs.tools.base", "from agentops.projects.models import Project", "nothing of identity"),
        ("agentops.projects.access", "from timeline.models import Log", "identity is below record"),
        ("runs.misc", "", "say on which floor it lives"),
    ],
)
def test_it_catches_a_planted_import(module: str, source: str, why: str) -> None:
    [fault] = floor_faults(module, source)

    assert why in fault


def test_it_catches_code_in_a_root_package() -> None:
    assert floor_faults("runs", "", is_package=True) == []
    assert floor_faults("runs", "import os", is_package=True)


LONG_FUNCTION = "def work():\n" + "    pass\n" * MAX_FUNCTION_LINES


@pytest.mark.parametrize(
    ("module", "source", "what"),
    [
        ("runs.wake", '"""Doc."""\n' * (MAX_FILE_LINES + 1), "401 lines"),
        ("runs.wake", f'"""Doc."""\n{LONG_FUNCTION}', "work has 51 lines"),
        ("runs.wake", '"""Doc."""\ndef f(a, b, c, d, e, f): ...', "6 positional arguments"),
        ("runs.wake", '"""Doc."""\nx = f()  # type: ignore', "without a code"),
        ("runs.wake", "x = 1", "says nowhere"),
        ("runs.tools.helpers", '"""Doc."""', "name it after what it holds"),
    ],
)
def test_it_catches_a_broken_budget(module: str, source: str, what: str) -> None:
    [fault] = budget_faults(module, source)

    assert what in fault


def test_it_counts_neither_self_nor_keywords() -> None:
    source = '"""Doc."""\nclass A:\n    def f(self, a, b, c, d, e, *, g, h): ...\nx = f()  # type: ignore[misc]'

    assert budget_faults("runs.wake", source) == []
