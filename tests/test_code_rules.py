"""Rules that no linter checks: sizes, docstrings, class names, modules without database access; and rules for tests.

`lint-imports` checks which package may import which (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import repository

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agentops", "timeline", "runs")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_POSITIONAL = 5
FORBIDDEN_NAMES = {"utils", "helpers"}
NEED_NO_DOCSTRING = {"apps", "urls"}
#: Public classes.
CLASS = re.compile(r"^class ([^\W_]\w*)", re.MULTILINE)
BARE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\[)")
#: The class name that every management command has.
SHARED_CLASSES = {"Command"}
#: Separate programs that run elsewhere: their class names may repeat names of the product.
ELSEWHERE = ("agentops/client", "agentops/durable")
#: Modules that read no table (runs.providers and others: see the contracts in pyproject.toml).
PARTS = ("runs/agents", "runs/fixtures", "runs/tools", "runs/providers")
#: The only module that calls Django's `on_commit`.
AFTER_COMMIT = "agentops/base/database/statements.py"
#: The package that all tests may import, and the rigs: each is a package that only its own modules may import.
SHARED_BY_TESTS, RIGS = "tests.support", ("tests.chaos", "tests.newest")


def positional_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def function_faults(path: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield f"{path}:{node.lineno} {node.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"
        if (count := positional_count(node)) > MAX_POSITIONAL:
            yield f"{path}:{node.lineno} {node.name} takes {count} positional arguments, more than {MAX_POSITIONAL}"


def faults_of(path: str, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    name = Path(path).stem
    lines = source.splitlines()
    for number, line in enumerate(lines, start=1):
        if BARE_IGNORE.search(line):
            yield f"{path}:{number} '# type: ignore' without a code"
    if name in FORBIDDEN_NAMES:
        yield f"{path}: name it after what it holds"
    if any(part in path for part in ("/migrations/", "/templatetags/__init__", "/commands/__init__")):
        return
    if len(lines) > MAX_FILE_LINES:
        yield f"{path} has {len(lines)} lines, more than {MAX_FILE_LINES}"
    if name not in NEED_NO_DOCSTRING and not ast.get_docstring(tree):
        yield f"{path} has no docstring"
    if path.startswith(PARTS) and re.search(r"^\s*(from|import) django\.db\b", source, re.MULTILINE):
        yield f"{path} is a part and imports django.db"
    if path != AFTER_COMMIT and "on_commit(" in source:
        # Django's robust calls cannot log the error of a functools.partial: formatting the message fails.
        yield f"{path} calls on_commit, not after_commit"
    yield from function_faults(path, tree)


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def program_of(path: Path) -> str:
    return next((program for program in ELSEWHERE if path.is_relative_to(program)), "site")


def test_every_module_follows_the_rules() -> None:
    faults = [fault for path in modules() for fault in faults_of(path.as_posix(), (ROOT / path).read_text())]

    assert not faults, "\n" + "\n".join(faults)


def test_class_names_are_unique() -> None:
    paths_of = defaultdict(list)
    for path in modules():
        for name in CLASS.findall((ROOT / path).read_text()):
            if name not in SHARED_CLASSES and "migrations" not in path.parts:
                paths_of[program_of(path), name].append(path.as_posix())

    assert {name: paths for name, paths in paths_of.items() if len(paths) > 1} == {}


LONG_FUNCTION = "def work():\n" + "    pass\n" * MAX_FUNCTION_LINES


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("runs/lifecycle/wake.py", '"""Doc."""\n' * (MAX_FILE_LINES + 1), "401 lines"),
        ("runs/lifecycle/wake.py", f'"""Doc."""\n{LONG_FUNCTION}', "work has 51 lines"),
        ("runs/lifecycle/wake.py", '"""Doc."""\ndef f(a, b, c, d, e, f): ...', "6 positional arguments"),
        ("runs/lifecycle/wake.py", '"""Doc."""\nx = f()  # type: ignore', "without a code"),
        ("runs/lifecycle/wake.py", "x = 1", "no docstring"),
        ("runs/lifecycle/__init__.py", "", "no docstring"),
        ("runs/tools/helpers.py", '"""Doc."""', "name it after what it holds"),
        ("runs/tools/base.py", '"""Doc."""\nfrom django.db import models', "imports django.db"),
        ("runs/lifecycle/wake.py", '"""Doc."""\ntransaction.on_commit(f)', "not after_commit"),
    ],
)
def test_a_broken_rule_is_reported(path: str, source: str, fault: str) -> None:
    [reported] = faults_of(path, source)

    assert fault in reported


def test_self_and_keyword_arguments_are_not_counted() -> None:
    source = '"""Doc."""\nclass A:\n    def f(self, a, b, c, d, e, *, g, h): ...\nx = f()  # type: ignore[misc]'

    assert list(faults_of("runs/lifecycle/wake.py", source)) == []


def test_synchronous_client_is_generated_from_the_asynchronous_one() -> None:
    assert repository.SYNC_CLIENT.read_text() == repository.generated_client(), f"run {repository.CLIENT_COMMAND}"


# --- Migrations -------------------------------------------------------------------------------------------------

#: Product modules that migrations may import, because the parts they use never change.
USED_BY_MIGRATIONS = {"agentops.base.database.vendor_sql", "runs.conversation.long_outputs"}


@pytest.mark.parametrize("roots", [PACKAGES, ("tests",), ("bench", "examples")], ids=["product", "tests", "bench"])
def test_docstrings_and_comments_are_plain_english(roots: tuple[str, ...]) -> None:
    """`python -m tests.support.repository wording DIRECTORY --worst 20` lists the files with most of what counts."""
    assert repository.WordingCount(*(ROOT / root for root in roots)).total <= repository.WORDING_LIMIT


def test_released_migrations_are_not_edited() -> None:
    """Existing databases have applied them; after an edit, new databases would have a different schema."""
    assert repository.migration_faults(repository.current_digests(), repository.landed_digests()) == []

    landed = {"runs/migrations/0001_initial.py": "1", "runs/migrations/0002_records.py": "2"}
    current = {"runs/migrations/0002_records.py": "3", "runs/migrations/0003_next.py": "4"}
    assert repository.migration_faults(current, landed) == [
        "runs/migrations/0001_initial.py was removed: put it back",
        "runs/migrations/0002_records.py was edited: undo that, and write a new migration",
        f"runs/migrations/0003_next.py is new: {repository.DIGESTS_COMMAND}",
    ]


def test_migrations_do_not_import_code_that_may_change() -> None:
    imports = {
        f"{path} imports {module}"
        for path in repository.current_digests()
        for _, module in imported_modules(ast.parse((ROOT / path).read_text()))
        if module.split(".")[0] in PACKAGES and module not in USED_BY_MIGRATIONS
    }

    assert imports == set()


# --- Tests ------------------------------------------------------------------------------------------------------


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from tests import support` names the modules after the keyword import.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "tests" else [module]
            yield from ((node.lineno, name) for name in names)


def faults_of_test_module(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield the violations of the rules for imports and file names in a test module."""
    rigs = {rig for rig in RIGS if path.startswith(f"{rig.replace('.', '/')}/")}
    allowed = {SHARED_BY_TESTS, *rigs}
    for line, module in imported_modules(tree):
        package = ".".join(module.split(".")[:2])
        if module.startswith(".") or (module.split(".")[0] == "tests" and package not in allowed):
            yield f"{path}:{line} imports {module}: what tests share belongs into tests/support"
    if rigs or path.startswith("tests/support/"):
        return
    name = Path(path).name
    if not name.startswith("test_") and name != "conftest.py":
        yield f"{path} is neither a test module nor a conftest.py: move it into tests/support"


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("tests/web/test_pages.py", "from tests.crash.rig import check", "imports tests.crash.rig"),
        ("tests/web/test_pages.py", "from tests.live.conftest import Scene", "imports tests.live.conftest"),
        ("tests/web/test_pages.py", "from tests.web.test_forms import post", "imports tests.web.test_forms"),
        ("tests/web/test_pages.py", "from tests import web", "imports tests.web"),
        ("tests/web/test_pages.py", "import tests.web.forms", "imports tests.web.forms"),
        ("tests/web/test_pages.py", "from .forms import post", "imports .forms"),
        ("tests/web/test_pages.py", "from tests.chaos.player import main", "imports tests.chaos.player"),
        ("tests/support/factories.py", "from tests.chaos.player import main", "imports tests.chaos.player"),
        ("tests/web/forms.py", "x = 1", "neither a test module nor a conftest.py"),
    ],
)
def test_a_forbidden_import_in_a_test_module_is_reported(path: str, source: str, fault: str) -> None:
    [reported] = faults_of_test_module(path, ast.parse(source))

    assert fault in reported


def test_support_and_the_chaos_rig_may_be_imported() -> None:
    sources = {
        "tests/web/test_pages.py": "from tests.support.factories import make_run\nfrom tests import support",
        "tests/web/test_forms.py": "import tests.support.machine",
        "tests/chaos/test_plans.py": "from tests.chaos import player",
        "tests/chaos/player.py": "from tests.chaos.verdict import checks",
        "tests/newest/task.py": "from tests.newest.programs import task",
    }

    for path, source in sources.items():
        assert list(faults_of_test_module(path, ast.parse(source))) == []


PRODUCT_NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})\.[\w.]*\b_(?!_)\w+")
#: Names with an underscore that libraries document or that have no public alternative.
OF_LIBRARIES = {
    *("_meta", "_base_manager", "_default_manager", "_raw_delete", "_registry"),  # Django
    *("_replace", "_asdict", "_exit", "_shutdown", "_run_exitfuncs"),  # Python
    *("_is_prefork", "_parts_manager"),  # Celery, pydantic-ai
}
#: Disables protections of the product one at a time, inside the functions that implement them.
REPLACES_FUNCTIONS = {"tests/chaos/environment/sabotage.py"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in OF_LIBRARIES


def called_name(call: ast.Call) -> str:
    """Return "setattr" for `setattr(…)` and for `monkeypatch.setattr(…)`."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names with an underscore that a test uses from other modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRODUCT_NAME.fullmatch(node.value):
            yield node.lineno, node.value
        elif isinstance(node, ast.Call) and "attr" in called_name(node):
            # monkeypatch.setattr(module, "_name", …), getattr(module, "_name")
            names = [each.value for each in node.args[1:2] if isinstance(each, ast.Constant)]
            yield from ((node.lineno, name) for name in names if is_private(name))


@pytest.mark.slow
def test_tests_share_code_only_through_tests_support_and_use_no_private_names() -> None:
    """One loop for both rules, because there are hundreds of files to parse."""
    faults = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        path, tree = file.relative_to(ROOT).as_posix(), ast.parse(file.read_text())
        faults += faults_of_test_module(path, tree)
        if path not in REPLACES_FUNCTIONS:
            faults += [f"{path}:{line} uses {name}" for line, name in private_names(tree)]

    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "from runs.lifecycle.wake import _send",
        "from runs.lifecycle import wake\nwake._send(run.pk)",
        'monkeypatch.setattr(wake, "_send", print)',
        'monkeypatch.setattr("runs.lifecycle.wake._send", print)',
        "assert worker._threads",
    ],
)
def test_a_private_name_in_a_test_is_reported(source: str) -> None:
    [(_, name)] = private_names(ast.parse(source))

    assert "_send" in name or name == "_threads"


def test_own_and_library_names_are_not_reported() -> None:
    source = "class A:\n    def f(self):\n        return self._own, urlsplit(url)._replace(path=''), model._meta"

    assert list(private_names(ast.parse(source))) == []
