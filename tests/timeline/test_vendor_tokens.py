"""Tokens of every known format are matched in all surroundings, split in streams and in batches, in linear time.
May import: agentops.base.redaction and its samples; no database.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest

from agentops.base.redaction import vendor_tokens
from agentops.base.redaction.json_values import suspects_among
from agentops.base.redaction.partial_texts import Stream
from agentops.base.redaction.redact import BUILT_IN, Redactor
from agentops.base.redaction.vendor_formats import FORMATS, SOURCES
from tests.support.secret_samples import samples, tokens
from tests.support.timing import assert_linear

#: At most one token in a hundred of each format may be missed: without a digit, it may look like a word.
MISSED_OF = 100
PREFIXES = sorted({form.prefix for form in FORMATS})


@pytest.mark.parametrize("count", [200, pytest.param(1500, marks=pytest.mark.slow)])
def test_recall_of_every_format_is_at_least_99_percent(count: int) -> None:
    """Only the tokens are replaced; each text passes the pre-checks alone, and as JSON in a batch."""
    rng, missed = random.Random(30), Counter[str]()
    for form in FORMATS:
        texts, patterns = zip(*samples(form, rng, count), strict=True)
        cleaned = BUILT_IN.clean_text("\n".join(texts))[0].split("\n")
        assert len(cleaned) == count
        suspects = suspects_among([json.dumps(text) for text in texts], BUILT_IN)
        for number, (text, pattern) in enumerate(zip(texts, patterns, strict=True)):
            is_found = re.fullmatch(pattern, cleaned[number]) and vendor_tokens.may_be_in(text) and number in suspects
            missed[f"{form.prefix} {form.body}"] += not is_found

    assert len(missed) == len(FORMATS) >= 300
    assert {name: number for name, number in missed.items() if number > count // MISSED_OF} == {}


def test_a_token_has_the_kind_of_its_format() -> None:
    rng = random.Random(31)
    for form in FORMATS:
        kinds = {span.kind for token in tokens(form, rng, 20) for span in BUILT_IN.spans(token)}
        assert kinds == {form.kind}, form
    assert all(len(form.kind) <= 32 and set(form.sources.split()) <= SOURCES.keys() for form in FORMATS)


def test_every_format_gives_the_same_output_streamed_and_whole() -> None:
    """For every split of a token, next to other text, and at the end of the text."""
    rng = random.Random(32)
    for form in FORMATS:
        for text, _ in samples(form, rng, 3):
            whole = f"{rng.choice(['', 'The agent said: ', 'a' * 600])} {text}{rng.choice(['', '', ' and more', '.'])}"
            assert _streamed(whole, rng) == BUILT_IN.clean_text(whole)[0], form
        # The longest token of the format is held back completely.
        token = max(tokens(form, rng, 5), key=len)
        for cut in (len(form.prefix) - 1, len(form.prefix), len(token) // 2, len(token) - 1):
            assert vendor_tokens.unfinished(f"x {token[:cut]}") == 2, form


def _streamed(text: str, rng: random.Random) -> str:
    stream, at, left = Stream(Redactor()), 0, ""
    while at < len(text):
        size = rng.choice([1, 2, 5, 20, 60])
        left += stream.feed(text[at : at + size])
        at += size
    return left + stream.flush()


def test_placeholders_and_names_in_code_are_not_masked() -> None:
    ordinary = ["x" * 40, "your_token_goes_here_2024", "SomeLongIdentifierName2", "a-slug-of-words-and-2024-12-31"]
    texts = [f"see {form.prefix}{body} here" for form in FORMATS for body in ordinary]
    masked = [text for text in texts if BUILT_IN.spans(text) and "sk-" not in text]
    assert masked == []


#: Text that a search could read repeatedly: prefixes in a row, after characters that may precede a token, and with
#: bodies.
ATTACKS = (
    "{}",
    "/{}",
    " {}",
    ".{}",
    "{}a1B",
    "/{}a1B2c3D4e5F6g7H8",
    "\\n{}",
    "{}.a1B2c3D4e5F6g7H8.",
    "={}%2F",
    "{}\\/",
)
PLACES = (
    *("identified by '", "create user a identified by '", "alter role a password '", "set password for a = '"),
    *('"auth": "YTpi', "_auth=YTpi", "client-key-data: ", "htpasswd -b a ", "htpasswd -nb ", " -passin pass:a"),
    *(
        "slack.com/services/",
        "/webhooks/123456789012345678/",
        "office.com/webhook/",
        "/shared/a:b",
        "&sig=a1",
        "-Signature=%2",
    ),
    *(
        "/invitations/a.b:",
        "hooks.zapier.com/hooks/catch/a",
        "1:AA",
        "a1Q~a",
        "abcdefghijklmn.atlasv1.",
        ".atlasv1",
        "\\/",
    ),
)


@pytest.mark.slow
def test_all_formats_together_take_linear_time() -> None:
    """The slowest attacks of the next test, combined in one text each."""
    for attack in ATTACKS:
        _assert_linear("".join(map(attack.format, PREFIXES)))
    for place in PLACES:
        _assert_linear(place)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_format_takes_linear_time(prefix: str) -> None:
    for attack in ("{}", "/{}", "".join(ATTACKS)):
        _assert_linear(attack.format(*[prefix] * len(ATTACKS)))


def _assert_linear(attack: str) -> None:
    assert_linear(lambda text: (BUILT_IN.clean_text(text), BUILT_IN.unfinished(text)), attack, 100_000)
    assert_linear(lambda text: suspects_among([json.dumps(text)], BUILT_IN), attack, 100_000)
