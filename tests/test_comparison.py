"""The page that compares agentops with other systems has the tables of the recorded run, and of nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bench.compare import record
from bench.compare.facts import Facts, Row
from bench.compare.programs import task
from bench.compare.systems import SYSTEMS


def test_the_tables_of_the_page_equal_the_recorded_run() -> None:
    page = record.PAGE.read_text(encoding="utf-8")

    assert record.updated(page) == page


def test_what_is_recorded_are_systems_of_the_command() -> None:
    rows = record.recorded()
    titles = [row.title for row in rows]

    assert titles == [system.title for system in SYSTEMS if system.title in titles]
    assert all((row.facts is None) == bool(row.failure) for row in rows)


def test_the_columns_that_the_page_names_exist() -> None:
    rows = record.recorded()
    page = record.PAGE.read_text(encoding="utf-8")
    heads = {cell for table in record.tables(rows).values() for cell in table.splitlines()[0].strip("| ").split(" | ")}
    named = {name for sentence in re.findall(r"\((\*[^)]+\*)\)", page) for name in re.findall(r"\*([^*]+)\*", sentence)}

    assert named
    assert {" ".join(name.split()) for name in named} <= heads


def test_what_the_page_says_about_all_systems_is_recorded() -> None:
    rows = record.recorded()
    seen = {row.title: row.facts for row in rows if row.facts is not None}

    for title, facts in seen.items():
        if title.startswith("LangGraph, local server"):
            continue
        repeated = {name for name, count in facts.calls.items() if count != 1}
        assert repeated <= {task.KILLED}, title
        # A call that was made once was decided by a person.
        assert (facts.calls[task.KILLED] == 1) == facts.asked, title
    assert all(facts.asked for title, facts in seen.items() if title.startswith("agentops"))


def test_a_repeated_call_with_the_same_key_is_seen() -> None:
    lines = [{"what": "tool_1", "key": "a"}, {"what": task.KILLED, "key": "b"}, {"what": task.KILLED, "key": "b"}]

    facts = facts_of(lines)

    assert (facts.calls, facts.same_key) == ({"tool_1": 1, task.KILLED: 2}, True)


@pytest.mark.parametrize(("keys", "same"), [(["b"], None), (["b", "c"], False), (["", ""], False)])
def test_keys_are_compared_only_if_a_call_was_repeated(keys: list[str], same: bool | None) -> None:
    assert facts_of([{"what": task.KILLED, "key": key} for key in keys]).same_key is same


def test_rows_are_read_back_as_they_were_recorded() -> None:
    row = Row(
        "Some", "2026-11-29", "some 1.0", "nothing", "a signal", facts_of([{"what": task.KILLED, "key": "b"}]), "", {}
    )
    failed = replace(row, facts=None, failure="not installed")

    assert [Row.from_json(one.as_json()) for one in (row, failed)] == [row, failed]
    assert record.tables([failed])["not run here"].splitlines()[-1] == "| Some | not installed |"


def facts_of(lines: list[dict[str, str]]) -> Facts:
    return Facts.read(
        lines,
        interrupted="RUNNING",
        continued_by="the start of the program",
        rescued=False,
        continued_s=1.0,
        asked=False,
        interrupted_page=None,
        waiting="WAITING",
        waiting_page=["Signal"],
        kept_without_process=True,
    )
