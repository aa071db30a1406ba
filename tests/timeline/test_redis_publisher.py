"""The publisher thread: after any error, it drops the message and continues."""

from __future__ import annotations

import time

import pytest

from timeline.redis_publisher import Publisher

#: Longer than a label of a host name may be, so no address is looked up.
NO_HOST = "a" * 64


def test_the_thread_continues_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher(f"redis://{NO_HOST}.example/0")
    for number in ("1", "2"):
        publisher.publish_later(("log:1", ""), number)
        began = time.monotonic()
        publisher.flush(10)
        assert time.monotonic() - began < 10, "what was queued is neither published nor dropped"

    assert "Redis does not answer (Unicode" in caplog.text
