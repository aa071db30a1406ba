"""The thread that publishes notifications: an error of any kind costs what was published, and not the thread."""

from __future__ import annotations

import time

import pytest

from timeline.redis_publisher import Publisher

#: Longer than a label of a host name can be: no address is looked up for it.
NO_HOST = "a" * 64


def test_it_goes_on_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher(f"redis://{NO_HOST}.example/0")
    for number in ("1", "2"):
        publisher.publish_later(("log:1", ""), number)
        began = time.monotonic()
        publisher.flush(10)
        assert time.monotonic() - began < 10, "what was queued is neither published nor dropped"

    assert "Redis does not answer (Unicode" in caplog.text
