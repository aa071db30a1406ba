"""References of runners to runs: by our ID, or by the runner's ID, which is unique within a project."""

from __future__ import annotations

import re
from uuid import UUID

from django.db.models import Q

from agentops.accounts.names import UUID_PATTERN


def references(reference: str) -> Q:
    """Return the condition for the run with this reference."""
    by_external_id = Q(external_id=reference)
    return by_external_id | Q(pk=UUID(reference)) if re.match(UUID_PATTERN, reference) else by_external_id


def sql_references(reference: str) -> tuple[str, list[object]]:
    """Return the same condition in SQL, on agent_runs, with its values."""
    if re.match(UUID_PATTERN, reference):
        return "(external_id = %s OR agent_runs.id = %s)", [reference, UUID(reference)]
    return "external_id = %s", [reference]
