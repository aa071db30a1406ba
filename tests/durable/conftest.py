"""A site that durable functions in threads of this process connect to."""

from __future__ import annotations

import pytest

from tests.support.clients import Site
from tests.support.durable import DurableSite
from tests.support.web_server import WebThread


@pytest.fixture
def durable_site(web: WebThread) -> DurableSite:
    return DurableSite(Site(web))
