"""Calls of any shape: whatever a model asks for and a program answers, the changes of the other files are shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runs.changes.call_facts import CallReader, FileCall
from runs.changes.git_patch import patch_portions
from runs.changes.session_changes import SessionFiles

#: Characters of a long text.
SIZE = 4_000_000
TOOLS = (
    *("Edit", "MultiEdit", "Write", "Read", "NotebookEdit", "apply_patch", "shell", "exec_command", "replace"),
    *("write_file", "read_file", "str_replace_based_edit_tool", "edit", "patch", "move_file", "delete_file"),
)
NAMES = (
    *("file_path", "path", "filePath", "old_string", "new_string", "oldString", "newString", "content", "edits"),
    *("command", "input", "patch", "replace_all", "expected_replacements", "offset", "limit", "view_range", "to"),
    *("insert_line", "insert_text", "old_str", "new_str", "originalFile", "structuredPatch", "lines", "oldStart"),
    *("newStart", "file", "startLine", "numLines", "totalLines", "text", "output", "cell_id", "new_source"),
)
TEXTS = st.one_of(
    st.sampled_from(
        [
            *("a.txt", "/work/b.py", "../c", "", "view", "create", "str_replace", "insert", "undo_edit"),
            *("     1→one\n     2→two", "one\ntwo", "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+three\n"),
            *("*** Begin Patch\n*** Move to: x\n*** End Patch", "apply_patch <<'EOF'\n*** Begin Patch", "{", "\r\n"),
        ]
    ),
    st.text(max_size=20),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)),
    max_leaves=12,
)
ARGUMENTS = st.one_of(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=8), VALUES)

EDIT = {"file_path": "a.txt", "old_string": "a", "new_string": "b"}


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@example([("Edit", EDIT, {"filePath": "a.txt", "structuredPatch": [1]})])
@example([("Edit", EDIT, {"filePath": "a.txt", "structuredPatch": 5})])
@given(st.lists(st.tuples(st.sampled_from(TOOLS), ARGUMENTS, VALUES), max_size=5))
def test_odd_calls_do_not_hide_the_other_files(calls: list[tuple[str, Any, Any]]) -> None:
    files = SessionFiles(CallReader(), "/work")
    for step, (tool, arguments, output) in enumerate(calls):
        files.add(FileCall(str(step), step, tool, arguments, output))
    files.add(FileCall("last", 9, "Write", {"file_path": "/work/last.txt", "content": "x\n"}, "File created"))

    changes = files.changes(lambda text: text)

    assert "last.txt" in {change.path for change in changes}
    assert "".join(patch_portions(changes))


@pytest.mark.parametrize(
    ("tool", "arguments", "output"),
    [
        ("Read", {"file_path": "a.txt"}, "\n" * SIZE + "x"),
        ("Read", {"file_path": "a.txt"}, "<system-reminder>" * (SIZE // 17)),
        ("shell", {"command": "\n" * SIZE + "*** Begin Patch\n*** End Patch"}, ""),
        ("shell", {"command": "cd '" * (SIZE // 4) + "*** Begin Patch\n*** End Patch"}, ""),
        ("shell", {"command": ";cd '" * (SIZE // 5) + "*** Begin Patch\n*** End Patch"}, ""),
    ],
)
def test_megabytes_of_repeated_texts_are_read(tool: str, arguments: dict[str, str], output: str) -> None:
    """In quadratic time, each would take over an hour."""
    files = SessionFiles(CallReader(), "/work")
    files.add(FileCall("1", 1, tool, arguments, output))
    files.add(FileCall("2", 2, "Write", {"file_path": "a.txt", "content": "y\n"}, ""))
    assert [change.path for change in files.changes(lambda text: text)] == ["a.txt"]
