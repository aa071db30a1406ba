"""A person who decides about the runs of graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentops.client import Client
from tests.support.durable import DurableSite


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client
