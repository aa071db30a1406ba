"""The index over the folded texts of search entries: trigrams, on both databases, for literal parts of words.

On PostgreSQL it also holds the windows of IDs and the filters, so that a search reads a bounded part of it
(runs/queries/search_sql.py has the same expressions). pg_trgm is a trusted extension: the owner of the database may
create it. Where that is refused, the index is made without trigrams, and a search reads the texts of a window.
"""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

POSTGRES = """
DO $migration$
BEGIN
  BEGIN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
  EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported THEN
    RAISE NOTICE 'pg_trgm is not available: searches for rare texts will be slower';
  END;
  EXECUTE format(
    $index$CREATE INDEX search_entry_texts ON agent_run_search_entries USING gin (
      (ARRAY['a' || (id >> 12)::text, 'b' || (id >> 15)::text, 'c' || (id >> 18)::text, 'd' || (id >> 21)::text,
             'p' || project_id::text, 'k' || kind, 'n' || name, 'e' || is_error::text]) %s
    ) WITH (gin_pending_list_limit = 512)$index$,
    CASE WHEN EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm') THEN
      $texts$, (COALESCE(folded, lower(text COLLATE "C") COLLATE "default")) gin_trgm_ops$texts$
    ELSE '' END);
END $migration$
"""
# Starting a parallel worker takes longer than a window.
NOT_PARALLEL = "ALTER TABLE agent_run_search_entries SET (parallel_workers = 0)"
POSTGRES_UNDO = ["DROP INDEX search_entry_texts", "ALTER TABLE agent_run_search_entries RESET (parallel_workers)"]
NEW, OLD = ("{0}.id, COALESCE({0}.folded, LOWER({0}.text))".format(row) for row in ("new", "old"))
ADD = f"INSERT INTO agent_run_search_grams (rowid, folded) VALUES ({NEW})"
# The full-text table stores no texts, so that a deletion has to name the deleted text.
REMOVE = f"INSERT INTO agent_run_search_grams (agent_run_search_grams, rowid, folded) VALUES ('delete', {OLD})"
SQLITE = [
    """CREATE VIRTUAL TABLE agent_run_search_grams
    USING fts5(folded, content='', detail='none', tokenize='trigram case_sensitive 1')""",
    f"CREATE TRIGGER search_entry_added AFTER INSERT ON agent_run_search_entries BEGIN {ADD}; END",
    f"CREATE TRIGGER search_entry_removed AFTER DELETE ON agent_run_search_entries BEGIN {REMOVE}; END",
    f"""CREATE TRIGGER search_entry_changed AFTER UPDATE OF text, folded ON agent_run_search_entries
    BEGIN {REMOVE}; {ADD}; END""",
]
SQLITE_UNDO = [
    "DROP TRIGGER search_entry_changed",
    "DROP TRIGGER search_entry_removed",
    "DROP TRIGGER search_entry_added",
    "DROP TABLE agent_run_search_grams",
]


class Migration(migrations.Migration):
    dependencies = [("runs", "0008_search_entries")]

    operations = [
        VendorSQL("postgresql", [NOT_PARALLEL, POSTGRES], POSTGRES_UNDO),
        VendorSQL("sqlite", SQLITE, SQLITE_UNDO),
    ]
