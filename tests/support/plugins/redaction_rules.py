"""Before every test, resets redaction: no project has rules, no rules are in scope, no look-up runs until a rule is
added, and the site's secrets are read again.

A plugin of the suite (tests/conftest.py names it). Other processes look up rules as usual.
"""

from __future__ import annotations

import pytest

from agentops.accounts.redaction_rules.rule_cache import CACHE
from agentops.base.redaction import project_scope, redact


@pytest.fixture(autouse=True)
def no_redaction_rules() -> None:
    CACHE.assume_none()
    redact.site_secrets.cache_clear()
    project_scope.clear()
