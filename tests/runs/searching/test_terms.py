"""Search input is parsed into terms; matches are located in texts; texts are ranked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.base.refusals import InvalidQuery
from runs.queries.searching.search_results import unveil, veil
from runs.queries.searching.search_terms import EXCERPT, MAX_TERMS, excerpt, fold, matches, one_line, parse, rank


@pytest.mark.parametrize(
    ("typed", "terms"),
    [
        ("", ()),
        (" \t\n ", ()),
        ('""', ()),
        ("Disk full", ("disk", "full")),
        ('"Disk  full" now', ("disk full", "now")),
        ('say "hi" and "bye', ("say", "hi", "and", '"bye')),
        ('"', ('"',)),
        ("100% a_b C:\\temp", ("100%", "a_b", "c:\\temp")),
        ("same SAME Same", ("same",)),
        ("ÉTÉ ΟΔΟΣ οδος İ ß", ("été", "οδοσ", "İ", "ß")),
        ("失败 🙂 שלום", ("失败", "🙂", "שלום")),
        ("a\x1b[31mb", ("ab",)),
    ],
)
def test_terms(typed: str, terms: tuple[str, ...]) -> None:
    assert parse(typed) == terms


@pytest.mark.parametrize(
    ("typed", "said"), [("x" * 10_000, "200 characters, not 10000"), ("a b c d e f g h i j k", "10 terms, not 11")]
)
def test_a_search_that_is_too_long_is_refused(typed: str, said: str) -> None:
    with pytest.raises(InvalidQuery, match=said):
        parse(typed)
    assert len(parse("a b c d e f g h i j")) == MAX_TERMS


@given(st.text(max_size=60))
def test_folding_keeps_the_positions_of_all_letters(text: str) -> None:
    assert len(fold(text)) == len(text)
    assert fold(fold(text)) == fold(text)
    assert fold(text + "x") == fold(text) + "x"


@given(st.text(max_size=900), st.lists(st.text(min_size=1, max_size=4).map(fold), min_size=1, max_size=3))
def test_an_excerpt_is_a_part_of_the_text_with_its_matches_marked(text: str, terms: list[str]) -> None:
    shown = excerpt(text, terms)

    assert "".join(piece for piece, _ in shown.pieces()) == shown.text
    assert len(shown.text) <= EXCERPT + 2
    assert shown.text.strip("…") in text or "…" in text
    assert all(begin < end for begin, end in shown.marks)
    assert [mark for pair in shown.marks for mark in pair] == sorted(mark for pair in shown.marks for mark in pair)
    assert any(is_match for _, is_match in shown.pieces()) == any(term in fold(text) for term in terms)


def test_the_excerpt_of_a_long_text_surrounds_the_first_match() -> None:
    shown = excerpt(f"{'start ' * 500}the NEEDLE is here{' end' * 500}", ["needle"])

    assert list(shown.pieces())[1] == ("NEEDLE", True)
    assert shown.text.startswith("…")
    assert shown.text.endswith("…")
    assert "the NEEDLE is here" in shown.text


def test_whole_words_rank_above_their_parts_and_short_texts_above_long_ones() -> None:
    texts = ["the timeout", f"the timeout{' word' * 300}", "a timeouts list", "readtimeouterror"]

    ranks = [rank(text, ["timeout"]) for text in texts]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)
    assert rank("timeout timeout", ["timeout"]) > rank("timeout", ["timeout"])
    assert matches("The Timeout", ["timeout", "the"])
    assert not matches("The Timeout", ["timeout", "a b"])
    assert one_line(" a\n\tb  c ") == "a b c"


@given(st.integers(0, 2**63))
def test_an_id_is_obfuscated_reversibly(value: int) -> None:
    assert unveil(veil(value)) == value
    assert 0 <= veil(value) < 2**64
    # Neighbours do not stay neighbours.
    assert abs(veil(value) - veil(value + 1)) > 1
