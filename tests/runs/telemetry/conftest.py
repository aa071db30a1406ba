"""A receiver on loopback, which the site may send to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.web.receiver import Receiver, receiving


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    with receiving() as receiver:
        yield receiver
