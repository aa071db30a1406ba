"""Before every test: no project has redaction rules, none is in scope, and nobody looks for any until one is added; the
site's own secrets are read again.

A plugin of the suite (tests/conftest.py names it). Processes of their own look as ever.
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
