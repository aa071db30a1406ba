"""Previews of long text are cut at character borders, whatever the text contains."""

from __future__ import annotations

from timeline.display import PREVIEW_BYTES, preview


def test_preview_cuts_at_a_character_border() -> None:
    assert preview("short") == ("short", False)
    assert preview("a" * 2048) == ("a" * 2048, False)
    assert preview("a" * 2049) == ("a" * 2048, True)
    for text in ("ä" * 3000, "€" * 3000, "😀" * 3000, "a" + "😀" * 3000):
        for limit in range(2040, 2049):
            kept, cut = preview(text, limit)
            assert cut
            assert text.startswith(kept)
            assert limit - 4 < len(kept.encode()) <= limit
    assert preview("€€", 6) == ("€€", False)
    assert preview("", 0) == ("", False)


def test_preview_leaves_no_lone_surrogate() -> None:
    assert preview("a\ud800b") == ("a\ufffdb", False)
    kept, cut = preview("\udfff" * 3000)
    assert cut
    assert len(kept.encode()) <= PREVIEW_BYTES
