"""Keeps a worker from work until the database has the schema of this version."""

from __future__ import annotations

import logging

from django.db import Error, connection

from agentops.schema.applied_migrations import UnusableSchema, missing_migrations

log = logging.getLogger(__name__)


def is_migrated() -> bool:
    """Return whether the database has all migrations of this version and no others. Logs why not."""
    try:
        missing = missing_migrations(connection)
    except Error as error:
        log.warning("the worker cannot read the database: %s", type(error).__name__)
    except UnusableSchema as error:
        log.error("the worker does not start: %s", error)
    except Exception:
        # If this thread ended, the worker would take no run, and nothing would say why.
        log.exception("the migrations of the database cannot be read")
    else:
        if not missing:
            return True
        log.warning(
            "the worker waits: %d migrations are missing, first %s: `agentops migrate`", len(missing), missing[0]
        )
    finally:
        if not connection.in_atomic_block:
            connection.close()
    return False
