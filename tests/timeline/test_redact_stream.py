"""Redaction in parts: prose is sent at once, a secret never, and the joined output equals redacting the whole text.
May import: agentops.base.redaction.redact and its samples; no database.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.base.redaction.partial_texts import MAX_PENDING, Stream
from agentops.base.redaction.redact import DEFAULT, Redactor
from agentops.base.redaction.registered_secrets import SecretSet
from tests.support.secret_samples import FALSE, TRUE
from tests.support.timing import assert_linear

RNG = random.Random(4)
NAMED = Redactor(
    ['p&ss/w0rd "x" +\xe4=\\n1', "hunter2-hunter2", "correct-horse-battery", "aaaaaaab", "REDACTED:password"]
)
SPELLINGS = sorted(SecretSet(['p&ss/w0rd "x" +\xe4=\\n1', "correct-horse-battery", "aaaaaaab"]).spellings)
#: Text that joins one sample to the next, and the start of a secret that never follows.
GLUE = [
    *(
        "",
        " ",
        "\n",
        ".",
        "/",
        ", ",
        ": ",
        "=",
        "-",
        "_",
        "x",
        "0",
        "\\",
        "\\n",
        '"',
        "'",
        "@",
        "://",
        "\0",
        "\ud83d",
        "日本",
    ),
    *("password=", 'password: "', "api_key=", "--token ", "token", "Bearer ", "Authorization: ", "basic ", "-----"),
    *(
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "sk-",
        "ghp_",
        "eyJ",
        "AKIA",
        "[REDACTED:",
        "[REDACTED:key:01234567]",
    ),
]
TEXTS = [text for _, text, _ in TRUE]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Secrets, parts of secrets and ordinary text, joined at random."""
    sizes = st.integers(0, 400)
    piece = st.one_of(
        st.sampled_from(GLUE),
        st.sampled_from(TEXTS),
        st.sampled_from(FALSE),
        st.sampled_from(SPELLINGS),
        st.builds(lambda text, a, b: text[a : a + b], st.sampled_from(TEXTS + SPELLINGS), sizes, sizes),
    )
    return "".join(draw(st.lists(piece, max_size=7)))


def streamed(text: str, sizes: list[int], redactor: Redactor = DEFAULT) -> tuple[str, frozenset[str]]:
    """Return the joined output of a stream whose input comes in parts of these sizes, repeated."""
    stream, given, at, turn = Stream(redactor), "", 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        given += stream.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    return given + stream.flush(), stream.changes


@settings(max_examples=100, deadline=None, derandomize=True)
@given(texts(), st.lists(st.sampled_from([1, 2, 3, 7, 20, 100]), min_size=1, max_size=5))
def test_the_joined_output_equals_the_cleaned_text_for_every_split(text: str, sizes: list[int]) -> None:
    assert streamed(text, sizes, NAMED) == NAMED.clean_text(text)


def test_a_word_directly_before_a_registered_secret_is_masked_as_in_the_whole_text() -> None:
    """Before a secret, a word is part of a password. `Password: required` alone says that a password is required."""
    text = 'Password: requiredp&ss/w0rd "x" +\xe4=\\n1'

    assert streamed(text, [1], NAMED) == NAMED.clean_text(text)


def test_every_sample_gives_the_same_output_streamed_and_whole() -> None:
    filler = "The agent reads the next file and thinks about it, step by step. " * 10  # longer than CONTEXT
    for text in RNG.sample(TEXTS, 60) + RNG.sample(FALSE, 60):
        whole = f"{filler[: RNG.randrange(len(filler))]} {text} {filler[:130]}"
        assert streamed(whole, [RNG.choice([3, 20, 100])]) == DEFAULT.clean_text(whole)


def test_prose_and_code_are_sent_at_once() -> None:
    prose = (
        "Here is the plan: read the file, then say what is in it.\n\n```python\ndef f(x: int) -> int:\n    pass\n```\n"
    )
    stream = Stream()
    for word in prose.split(" "):
        assert stream.feed(word + " ") == word + " "
    stream, waiting = Stream(), []
    for character in prose + "日本語のテキスト":
        stream.feed(character)
        waiting.append(len(stream.pending_text))
    # The first letters of a word may begin a token, or a secret of this site, only until the next letter.
    assert max(waiting) <= 2
    assert waiting.count(0) >= len(waiting) * 0.7
    assert waiting[-8:] == [0] * 8


def test_a_masked_secret_is_sent_once_its_end_is_known() -> None:
    stream = Stream()
    assert stream.feed("the key sk-ant-api03-Ab1Ab1Ab1") == "the key "
    assert stream.feed("Ab1Ab1Ab1Ab1") == ""
    assert stream.feed(" works").startswith("[REDACTED:anthropic_key:")
    assert stream.feed(' password = "hun') == ' password = "'
    assert stream.feed("ter2") == ""
    assert stream.flush() == DEFAULT.clean_text('password = "hunter2')[0][len('password = "') :]
    assert (stream.flush(), stream.changes) == ("", {"redacted"})


def test_a_stream_masks_a_registered_secret_longer_than_all_others() -> None:
    secret = "x".join(str(n) for n in range(300))
    left, _ = streamed("a" * 500 + secret + "b" * 500, [20], Redactor([secret]))
    assert left.startswith("a" * 500 + "[REDACTED:secret:")
    assert left.endswith("]" + "b" * 500)


def test_a_stream_buffers_no_more_than_its_limit() -> None:
    stream, most = Stream(), 0
    for piece in ["api_key=", *["Ab1xY9" * 16] * 1000, " and more"]:
        stream.feed(piece)
        most = max(most, len(stream.pending_text))
    assert MAX_PENDING // 2 < most <= MAX_PENDING + 100
    assert stream.flush() == ""
    key, _ = streamed("api_key=" + "Ab1xY9" * 16_000 + " and more", [100])
    assert "xY9" not in key, "the rest of a secret that is too long to be held"
    assert key.endswith("] and more")


@pytest.mark.parametrize(
    "text",
    [
        "The agent reads the next file and thinks. ",
        "sk-" + "a1" * 50_000,
        "a",
        "-----BEGIN PRIVATE KEY-----\n" + ("A1" * 32 + "\n") * 1500,
        "api_key=" + "a1B/" * 25_000,
        'password="x y ',
        "eyJ",
        "eyJa.",
        "-",
        "[REDACTED:",
        "://a:",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_a_stream_takes_linear_time(text: str) -> None:
    assert_linear(lambda whole: streamed(whole, [50]), text, 40_000)
