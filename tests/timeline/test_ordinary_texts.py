"""Text without secrets is not changed: files of this repository, and recordings of agents.
May import: agentops.base.redaction and its samples; no database.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentops.base.redaction.redact import BUILT_IN
from tests.support.machine import shared_directory
from tests.support.recordings import foreign_texts, own_texts, recorded_texts

#: At most one text in a thousand may be masked: documentation contains examples of secrets.
MASKED_OF = 1000


def _assert_untouched(texts: Iterable[str], least: int) -> None:
    """Fail unless nearly all texts contain nothing to mask. `least`: the minimum number of texts."""
    count, masked = 0, []
    for text in texts:
        count += 1
        masked += [text[span.context : span.end + 1] for span in BUILT_IN.spans(text)[:1]]
    assert count >= least
    assert len(masked) <= count // MASKED_OF, masked


def test_texts_of_this_repository_are_not_masked() -> None:
    _assert_untouched(own_texts(), 50_000)


def test_texts_of_foreign_agents_are_not_masked() -> None:
    _assert_untouched(foreign_texts(), 2000)


def test_recorded_transcripts_are_not_masked() -> None:
    _assert_untouched(recorded_texts(shared_directory() / "data"), 5000)
