"""Before every test: no project has redaction rules, none is in scope, and nobody looks for any until one is added.

A plugin of the suite (tests/conftest.py names it). Processes of their own look as ever.
"""

from __future__ import annotations

import pytest

from agentops.projects.redaction_rules.rule_cache import CACHE
from timeline.redaction import project_scope


@pytest.fixture(autouse=True)
def no_redaction_rules() -> None:
    CACHE.assume_none()
    project_scope.clear()
