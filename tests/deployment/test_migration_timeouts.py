"""Only a connection that migrates may be idle in a transaction for longer than a lease."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models.signals import pre_migrate

from agentops.base.database import vendor_sql

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        return str(cursor.fetchone()[0])


def test_migrations_may_be_idle_for_longer_than_a_lease() -> None:
    """On an overloaded machine Django pauses for longer between two statements, and the server ends the session."""
    usual, seen = timeout(), []

    def look(**_: Any) -> None:
        seen.append(timeout())

    pre_migrate.connect(look)
    try:
        call_command("migrate", verbosity=0)
    finally:
        pre_migrate.disconnect(look)

    assert seen[-1] == f"{vendor_sql.IDLE_S // 60}min"
    assert timeout() == usual
