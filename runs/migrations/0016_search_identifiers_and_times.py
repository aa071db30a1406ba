"""Two indexes of searches: names with `_` are one word on PostgreSQL, and entries are found by their time.

PostgreSQL makes trigrams of letters and digits only, so that `read_file` was two words. The index has a letter of a script
that is hardly ever used instead of `_` (runs/queries/searching/text_index.py has the same expression).
"""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

INDEX = """
DO $migration$
BEGIN
  EXECUTE format(
    $index$CREATE INDEX search_entry_texts ON agent_run_search_entries USING gin (
      (ARRAY['a' || (id >> 12)::text, 'b' || (id >> 15)::text, 'c' || (id >> 18)::text, 'd' || (id >> 21)::text,
             'p' || project_id::text, 'k' || kind, 'n' || name, 'e' || is_error::text]) %s
    ) WITH (gin_pending_list_limit = 512)$index$,
    CASE WHEN EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm') THEN
      $texts$, (TEXTS) gin_trgm_ops$texts$
    ELSE '' END);
END $migration$
"""
FOLDED = 'COALESCE(folded, lower(text COLLATE "C") COLLATE "default")'
TEXTS = f"replace({FOLDED}, '_', '\ua000')"
DROP = "DROP INDEX search_entry_texts"
TIMES = "CREATE INDEX search_entry_times ON agent_run_search_entries (project_id, (id >> 12), at)"


class Migration(migrations.Migration):
    dependencies = [("runs", "0015_commit_cost_source")]

    operations = [
        VendorSQL("postgresql", [DROP, INDEX.replace("TEXTS", TEXTS)], [DROP, INDEX.replace("TEXTS", FOLDED)]),
        migrations.RunSQL(TIMES, "DROP INDEX search_entry_times"),
    ]
