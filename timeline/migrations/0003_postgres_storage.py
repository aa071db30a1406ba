"""What PostgreSQL alone has of the tables: half-filled pages for logs."""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

# The counter's updates stay HOT: the new row version fits beside the old one.
STORAGE = "ALTER TABLE timeline_log SET (fillfactor = 50)"
UNDO = "ALTER TABLE timeline_log RESET (fillfactor)"


class Migration(migrations.Migration):
    dependencies = [("timeline", "0002_append_only")]

    operations = [VendorSQL("postgresql", [STORAGE], [UNDO])]
