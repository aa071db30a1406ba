"""Text as displayed to users."""

from __future__ import annotations

import json
import time

import pytest

from timeline.display import (
    LOOKAHEAD,
    Clip,
    clean,
    clip,
    format_duration,
    format_elapsed,
    format_json,
    format_ms,
    make_legible,
)

SECRET = "sk-ant-api03-" + "Ab1" * 30


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("windows\r\nold mac\rend", "windows\nold mac\nend"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;https://evil.test\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("\x1b]0;never ends, so all of it shows", "␛]0;never ends, so all of it shows"),
        ("bell\x07 back\x08 nul\x00 del\x7f", "bell␇ back␈ nul␀ del⟨U+007F⟩"),
        ("\u202eevil\u2066", "⟨U+202E⟩evil⟨U+2066⟩"),
        ("zero\u200bwidth\ufeff", "zero⟨U+200B⟩width⟨U+FEFF⟩"),
        ("hidden\U000e0041\U000e007f", "hidden⟨U+E0041⟩⟨U+E007F⟩"),
        ("family: 👨\u200d👩\u200d👧, persian: می\u200cخواهم", "family: 👨\u200d👩\u200d👧, persian: می\u200cخواهم"),
    ],
)
def test_control_characters_are_made_visible(text: str, seen: str) -> None:
    assert make_legible(text) == seen


def test_secrets_inside_colour_codes_are_masked() -> None:
    assert "Ab1Ab1" not in clean(f"\x1b[32m{SECRET[:20]}\x1b[0m{SECRET[20:]}")


def test_a_clip_reports_whether_it_was_cut() -> None:
    assert clip("short", 10) == Clip("short")
    assert clip("0123456789", 10) == Clip("0123456789")
    assert clip("0123456789a", 10) == Clip("0123456789", 11)
    assert clip("the beginning", 100, size=5000) == Clip("the beginning", 5000)
    assert not clip("", 10)


def test_cuts_are_at_character_borders() -> None:
    assert clip("ééé", 5) == Clip("éé", 6)
    assert clip("👩👩", 7) == Clip("👩", 8)


def test_text_is_masked_before_it_is_cut() -> None:
    kept = clip("x" * 90 + " " + SECRET, 100)

    assert SECRET[:9] not in kept.text
    assert "[REDACTED" in kept.text


@pytest.mark.parametrize("text", ["\x1b]" * 200_000, "\x1b[" + "1;" * 400_000, "\u0301" * 300_000, "a" * 2_000_000])
def test_hostile_texts_take_linear_time(text: str) -> None:
    began = time.thread_time()

    clip(text, 2048)
    make_legible(text[: 10 * LOOKAHEAD])

    assert time.thread_time() - began < 2


def test_json_is_formatted() -> None:
    assert format_json({"a": ["é"]}) == '{\n  "a": [\n    "é"\n  ]\n}'
    assert format_json('{"a": 1}') == '{\n  "a": 1\n}'
    assert format_json('{"cut off": ') == '{"cut off": '
    assert format_json("no JSON") == "no JSON"
    assert format_json("7") == "7"
    deep = json.loads("[" * 900 + "]" * 900)
    assert format_json(deep).startswith("[") or "too deeply" in format_json(deep)
    assert format_json("[" * 100_000) == "[" * 100_000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0 s"), (59.9, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7260, "2 h 01 min")),
        *((86_399, "23 h 59 min"), (86_400, "1 d 00 h"), (7 * 86_400 + 3 * 3600 + 59, "7 d 03 h")),
    ],
)
def test_format_of_durations(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("ms", "words"), [(0, "0 ms"), (999, "999 ms"), (999.6, "1.0 s"), (2300, "2.3 s"), (61_000, "1 min 01 s")]
)
def test_format_of_milliseconds(ms: float, words: str) -> None:
    assert format_ms(ms) == words


def test_finished_durations_are_more_precise_than_running_ones() -> None:
    assert [format_elapsed(seconds) for seconds in (0.42, 19.54, 61)] == ["420 ms", "19.5 s", "1 min 01 s"]
