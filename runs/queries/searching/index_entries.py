"""The entries of the search index: the parts of a long text, and conditions on their project and their runs.

A search reads, ranks and masks entries, so no entry may be large. One entry has the beginning and the end of a text,
and further entries have its middle. Parts overlap by the maximum length of a term, so that each term is whole in at
least one part. The keys of the parts of a text begin with the key of the text. In the conditions, `e` is an entry, `r`
its run and `f` its flow run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from runs.queries.json_lists import Where, id_param
from runs.queries.searching.search_terms import MAX_TEXT

#: Characters of the beginning and of the end of a text in the first part. Tools report errors at the end.
HEAD, TAIL = 6000, 2000
#: Characters of each other part, and of its overlap with the preceding part.
PART, OVERLAP = HEAD + TAIL, MAX_TEXT
#: Characters from the beginning of a text that are indexed, in addition to its end. Searches do not find the rest.
LIMIT = 256 * 1024
#: An upper bound of the number of parts.
MAX_PARTS = LIMIT // (PART - OVERLAP) + 2
#: Stands between the beginning and the end in the first part.
GAP = " … "
_UUID_LENGTH = 36


def split(line: str, end: str) -> list[str]:
    """Return the parts of a text. `line`: its first `LIMIT` characters. `end`: its last `TAIL` characters."""
    parts = [f"{line[:HEAD]}{GAP}{end}"]
    begin = HEAD - OVERLAP
    while begin + OVERLAP < len(line):
        parts.append(line[begin : begin + PART])
        begin += PART - OVERLAP
    return parts


def part_key(key: str, number: int) -> str:
    """Return the key of a part. Part 0 has the key of its text. Keys have at most the 36 characters of their column."""
    return f"{key.replace('-', '')}.{number}" if number else key


def text_key(key: str) -> str:
    """Return the key of the text that a part belongs to."""
    text, dot, _ = key.partition(".")
    return str(UUID(text)) if dot and len(text) == _UUID_LENGTH - 4 else text


def part_number(key: str) -> int:
    """Return the number of a part in its text, from 0."""
    return int(key.partition(".")[2] or 0)


#: Maximum number of runs whose IDs SQLite compares in a list, instead of reading the run of each entry.
FEW_RUNS = 1000


def project_tag(project_id: UUID) -> str:
    """Return the tag of a project's entries."""
    return f"p{project_id}"


def of_project(project_id: UUID) -> Where:
    """Return the conditions for the entries of a project, without entries of runs that are being removed."""
    conditions = ("e.project_id = %s", "r.removed_at IS NULL", "f.removed_at IS NULL")
    return Where(conditions, (id_param(project_id),))


def with_status(where: Where, project_id: UUID, statuses: Sequence[str]) -> Where:
    """Return `where` and the condition that the run or flow run has one of these statuses. Takes two statements."""
    placeholders = ", ".join(["%s"] * len(statuses))

    def ids_in(table: str, limit: int) -> list[Any]:
        statement = f"SELECT id FROM {table} WHERE project_id = %s AND status IN ({placeholders}) LIMIT {limit}"  # noqa: S608 - constants only
        with connection.cursor() as cursor:
            cursor.execute(statement, [id_param(project_id), *statuses])
            return [row_id for (row_id,) in cursor.fetchall()]

    is_sqlite = connection.vendor == "sqlite"
    run_ids, has_flow_runs = ids_in("agent_runs", FEW_RUNS + 1 if is_sqlite else 1), bool(ids_in("flow_runs", 1))
    if not run_ids and not has_flow_runs:
        return where.also("FALSE")
    if is_sqlite and len(run_ids) <= FEW_RUNS:
        # SQLite reads the texts before the runs, so it compares the IDs first. Flow runs have only event entries.
        is_event = "e.kind = 'event'" if has_flow_runs else "FALSE"
        where = where.also(f"(+e.run_id IN (SELECT value FROM JSON_EACH(%s)) OR {is_event})", json.dumps(run_ids))  # noqa: S608 - constants only
    # Without flow runs, PostgreSQL can start from the runs, if few have the status.
    status = "COALESCE(r.status, f.status)" if has_flow_runs else "r.status"
    return where.also(f"{status} IN ({placeholders})", *statuses)
