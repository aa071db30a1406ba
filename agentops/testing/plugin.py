"""The pytest plugin: the fixture `agentops`, an `AgentTester` with a separate database.

pytest loads the plugin wherever agentops is installed, so nothing is imported or set up before the first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentops.testing.tester import AgentTester, TestingSite


@pytest.fixture(scope="session")
def agentops_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestingSite]:
    """A site for the tests of this process: SQLite in a temporary directory, no broker, a worker without threads."""
    from agentops.testing.tester import TestingSite

    site = TestingSite(tmp_path_factory.mktemp("agentops"))
    yield site
    site.close()


@pytest.fixture
def agentops(request: pytest.FixtureRequest, agentops_site: TestingSite) -> AgentTester:
    """Runs agents on fixtures, in a project of this test."""
    from agentops.testing.tester import AgentTester

    if agentops_site.is_foreign:
        # The test suite already has a database, and decides when tests may use it.
        request.getfixturevalue("transactional_db")
    return AgentTester(agentops_site.worker, agentops_site.fixtures)
