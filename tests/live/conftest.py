"""The cast of the stream tests: a run, somebody who may read it, and where it is streamed."""

from __future__ import annotations

import pytest

from tests.support.live.streamed_run import StreamedRun
from tests.support.web.server import WebThread
from tests.support.web.stream_clients import Listeners


@pytest.fixture
def streamed(web: WebThread, listeners: Listeners) -> StreamedRun:
    """On a server in this process."""
    return StreamedRun(web, listeners)
