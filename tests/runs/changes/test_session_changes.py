"""Changes of files by the calls of several programs: whole texts, parts, moves, and edits that do not fit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runs.changes.call_facts import CallReader, FileCall
from runs.changes.edit_tools import NotDeclared, read_declarations
from runs.changes.git_patch import patch_portions
from runs.changes.session_changes import FileChange, SessionFiles

PATCH = """*** Begin Patch
*** Update File: src/app.py
@@ def main():
-    print("a")
+    print("b")
*** Add File: notes.txt
+first
+second
*** Delete File: old.txt
*** Update File: name.txt
*** Move to: other name.txt
*** End Patch"""


def calls_of(*calls: tuple[Any, ...]) -> list[FileCall]:
    """Return calls, each a tool with its arguments and output, in a step each."""
    return [
        FileCall(f"call-{step}", step, tool, arguments, *output)
        for step, (tool, arguments, *output) in enumerate(calls, start=1)
    ]


def changes_of(calls: list[FileCall], **options: Any) -> dict[str, FileChange]:
    files = SessionFiles(CallReader(options.pop("declared", {})), "/work")
    for call in calls:
        files.add(call)
    return {change.path: change for change in files.changes(lambda text: text)}


def apply_to(folder: Path, before: dict[str, str], changes: dict[str, FileChange]) -> dict[str, str]:
    """Apply the patch of the changes in a repository with these files by git, and return its files."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    for path, text in before.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    patch = "".join(patch_portions(list(changes.values())))
    done = subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr + patch
    files = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def numbered(text: str) -> str:
    """Return a text as Claude Code's Read returns it."""
    lines = [f"{number:6}→{line}" for number, line in enumerate(text.split("\n"), start=1)]
    return "\n".join(lines) + "\n\n<system-reminder>\nA note.\n</system-reminder>\n"


def test_an_edit_of_a_file_that_was_read_is_a_whole_diff(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(1, 21))
    edit = {"file_path": "/work/a.txt", "old_string": "line 10\n", "new_string": "line ten\nmore\n"}
    calls = calls_of(("Read", {"file_path": "/work/a.txt"}, numbered(text)), ("Edit", edit, "The file was updated."))

    [change] = changes_of(calls).values()
    assert (change.status, change.is_whole, change.additions, change.deletions) == ("modified", True, 2, 1)
    [hunk] = change.hunks
    assert (hunk.old_start, hunk.new_start, len(hunk.hidden), len(change.rest)) == (7, 7, 6, 7)
    assert [line.old for line in hunk.lines if line.sign == "-"] == [10]
    after = text.replace("line 10\n", "line ten\nmore\n")
    assert apply_to(tmp_path, {"a.txt": text}, changes_of(calls)) == {"a.txt": after}


def test_an_edit_of_an_unknown_file_shows_what_the_call_says() -> None:
    edit = {"file_path": "/work/a.txt", "old_string": "one", "new_string": "two"}
    part = ("Read", {"file_path": "/work/a.txt", "offset": 1, "limit": 2}, "     1→one\n     2→more")

    [change] = changes_of(calls_of(part, ("Edit", edit))).values()
    assert not change.is_whole
    assert [f"{line.sign}{line.text}" for line in change.hunks[0].lines] == ["-one", "+two"]
    assert (change.hunks[0].old_start, change.hunks[0].step) == (None, 2)
    assert change.why_no_patch.startswith("Its whole text is not known")


def test_a_file_that_something_else_changed_says_so() -> None:
    write = ("Write", {"file_path": "a.txt", "content": "one\n"}, "File created successfully at: a.txt")
    edit = ("Edit", {"file_path": "a.txt", "old_string": "missing", "new_string": "two"})

    [change] = changes_of(calls_of(write, edit)).values()
    assert change.notes == ["The edit in step 2 does not fit the known text: something else changed the file."]
    assert change.why_no_patch == "Its text after the last change is not known."

    [change] = changes_of(calls_of(write, ("Read", {"file_path": "a.txt"}, numbered("two\n")))).values()
    assert "Before step 2, something other than these calls changed the file" in change.notes[0]
    assert change.after == "two\n"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("apply_patch", PATCH),
        ("apply_patch", {"input": PATCH}),
        ("shell", {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF"]}),
        ("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF", "workdir": "/work"}),
        ("shell", {"command": ["bash", "-lc", f"cd /work && apply_patch <<'EOF'\n{PATCH}\nEOF"]}),
    ],
)
def test_a_patch_of_codex_applies(tmp_path: Path, tool: str, arguments: Any) -> None:
    app = 'import os\n\ndef other():\n    print("a")\n\ndef main():\n    print("a")\n'
    reads = [("read_file", {"path": path}, text) for path, text in (("src/app.py", app), ("old.txt", "gone\n"))]

    changes = changes_of(calls_of(*reads, (tool, arguments, "Success. Updated the following files:")))
    assert {path: change.status for path, change in changes.items()} == {
        "src/app.py": "modified",
        "notes.txt": "added",
        "old.txt": "deleted",
        "other name.txt": "renamed",
    }
    before = {"src/app.py": app, "old.txt": "gone\n", "name.txt": "kept"}
    assert apply_to(tmp_path, before, changes) == {
        "src/app.py": app[::-1].replace('"a"', '"b"', 1)[::-1],
        "notes.txt": "first\nsecond\n",
        "other name.txt": "kept",
    }


def test_texts_without_a_last_line_break_empty_files_and_odd_names_apply(tmp_path: Path) -> None:
    calls = calls_of(
        ("Write", {"file_path": "/work/empty.txt", "content": ""}, "File created successfully"),
        ("write_file", {"file_path": 'a/in "quotes".txt', "content": "x"}, "Wrote to new file"),
        ("read_file", {"path": "end.txt"}, "one\ntwo"),
        ("replace", {"file_path": "end.txt", "old_string": "two", "new_string": "two\n"}),
        ("read_file", {"path": "all.txt"}, "gone"),
        ("delete_file", {"path": "all.txt"}),
    )

    files = apply_to(tmp_path, {"end.txt": "one\ntwo", "all.txt": "gone"}, changes_of(calls))
    assert files == {"empty.txt": "", 'a/in "quotes".txt': "x", "end.txt": "one\ntwo\n"}


def test_the_tools_of_other_programs_are_known() -> None:
    calls = calls_of(
        ("str_replace_based_edit_tool", {"command": "create", "path": "a.py", "file_text": "x\n"}, "File created"),
        ("str_replace_editor", {"command": "insert", "path": "a.py", "insert_line": 1, "new_str": "y"}),
        ("str_replace_editor", {"command": "str_replace", "path": "a.py", "old_str": "x", "new_str": "z"}),
        ("str_replace_editor", {"command": "view", "path": "b.py"}, "Here's the result of running `cat -n`"),
        ("edit", {"filePath": "c.py", "oldString": "1", "newString": "2", "replaceAll": True}),
        ("edit_file", {"path": "d.py", "old": "1", "new": "2"}),
        ("MultiEdit", {"file_path": "e.py", "edits": [{"old_string": "1", "new_string": "2"}]}),
        ("NotebookEdit", {"notebook_path": "f.ipynb", "new_source": "print()"}),
    )

    changes = changes_of(calls)
    assert list(changes) == ["a.py", "c.py", "d.py", "e.py", "f.ipynb"]
    assert changes["a.py"].after == "z\ny\n"
    assert [line.text for line in changes["f.ipynb"].hunks[0].lines] == ["print()"]


def test_a_result_of_claude_code_tells_the_text_before_the_edit() -> None:
    result = {
        "filePath": "/work/a.txt",
        "oldString": "b",
        "newString": "c",
        "originalFile": "a\nb\n",
        "structuredPatch": [{"oldStart": 1, "newStart": 1, "lines": [" a", "-b", "+c"]}],
    }
    edit = {"file_path": "/work/a.txt", "old_string": "b", "new_string": "c"}

    for output in (result, json.dumps(result)):
        [change] = changes_of(calls_of(("Edit", edit, output))).values()
        assert (change.before, change.after) == ("a\nb\n", "a\nc\n")
    [change] = changes_of(calls_of(("Edit", edit, result | {"originalFile": None}))).values()
    assert (change.is_whole, change.hunks[0].old_start) == (False, 1)


def test_a_call_of_unknown_outcome_is_no_fact() -> None:
    [write] = calls_of(("Write", {"file_path": "a.txt", "content": "one\n"}, None))
    edit = {"file_path": "a.txt", "old_string": "one", "new_string": "2"}
    unknown = FileCall("call-2", 2, "Edit", edit, is_unknown=True)

    [change] = changes_of([write, unknown]).values()
    assert change.notes == ["The outcome of the call in step 2 is unknown: the change may not have been made."]
    assert [hunk.is_uncertain for hunk in change.hunks] == [False, True]
    assert change.why_no_patch == "The outcome of a call that changes it is unknown."


def test_files_outside_the_working_directory_and_secrets_are_not_in_the_patch() -> None:
    calls = calls_of(
        ("Write", {"file_path": "/etc/hosts", "content": "x\n"}, "File created"),
        ("Write", {"file_path": "a.txt", "content": "key = [REDACTED:api_key:0123abcd]\n"}, "File created"),
    )

    changes = changes_of(calls)
    assert changes["/etc/hosts"].why_no_patch == "It is outside the working directory."
    assert changes["a.txt"].why_no_patch == "A masked secret is in it."
    assert "".join(patch_portions(list(changes.values()))).count("\n") == 2


def test_a_scope_begins_with_the_known_text() -> None:
    files = SessionFiles(CallReader())
    first, second = calls_of(
        ("Write", {"file_path": "a.txt", "content": "one\n"}, "File created"),
        ("Edit", {"file_path": "a.txt", "old_string": "one", "new_string": "two"}),
    )
    files.add(first)
    files.begin_scope()
    files.add(second)

    [change] = files.changes(lambda text: text)
    assert (change.status, change.before, change.after, change.steps) == ("modified", "one\n", "two\n", [2])


def test_a_declared_tool_is_read_by_its_own_names() -> None:
    declared = read_declarations('{"save_page": {"use": "write", "path": "page", "content": "html"}}')
    calls = calls_of(("save_page", {"page": "index.html", "html": "<p>\n"}, "created"), ("Write", {"page": "x"}))

    assert changes_of(calls, declared=declared)["index.html"].after == "<p>\n"


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"a": 1}', '{"a": {"use": "paint"}}', '{"a": {"use": "write", "path": "p"}}']
)
def test_an_invalid_declaration_is_refused(text: str) -> None:
    with pytest.raises(NotDeclared):
        read_declarations(text)


def test_a_removed_line_takes_its_line_break_with_it() -> None:
    calls = calls_of(
        ("Write", {"file_path": "a.txt", "content": "a\nb\nc\n"}, "File created"),
        ("Edit", {"file_path": "a.txt", "old_string": "b", "new_string": ""}),
    )

    assert changes_of(calls)["a.txt"].after == "a\nc\n"
