"""What a test expects of a request that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentops.base.refusals import Refusal


@contextmanager
def refuses(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Refusal]]:
    """Expect a refusal with this code, and a text that `match` finds."""
    with pytest.raises(Refusal, match=match) as caught:
        yield caught
    assert caught.value.code == code
