"""A project on a server in this process, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agentops.client import Client
from agentops.client.delivery import EventDelivery
from tests.support.clients import Blocking, Site
from tests.support.web_server import WebThread


@pytest.fixture
def site(web: WebThread) -> Site:
    return Site(web)


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest, site: Site) -> Iterator[Callable[..., Any]]:
    """Yield a function that makes clients of either kind: `make_client(key=…, url=…)`."""
    with ExitStack() as stack:

        def make(key: str = "", url: str = "", **options: Any) -> Any:
            kind = Client if request.param == "sync" else Blocking
            client = kind(url or site.url, key or site.key(), **options)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def deliver(site: Site) -> Iterator[Callable[..., EventDelivery]]:
    """Yield a function that makes deliveries. Their threads end with the test."""
    with ExitStack() as stack:

        def make(url: str = "", key: str = "", **options: Any) -> EventDelivery:
            delivery = EventDelivery(url or site.url, key or site.key("ingest"), **options)
            stack.callback(delivery.close, 2)
            return delivery

        yield make
