"""Token formats and secrets of a project's rules: matched whole, in every encoding, across parts, in linear time."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from urllib.parse import quote, quote_plus
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.accounts.redaction_cache import CACHE
from agentops.base.redaction import project_scope, redact
from agentops.base.redaction.partial_texts import Stream
from agentops.base.redaction.redact import Redactor, is_masked_form, placeholder
from agentops.base.redaction.registered_secrets import SecretSet, TokenFormat, TokenFormats
from agentops.base.redaction.secret_shapes import ALWAYS_MASKED, BUILT_IN_KINDS
from tests.support.timing import assert_linear

ACME = TokenFormat("acme_token", "acme_", "alnum", 10, 20)
ALPHA = uuid4()
SECRET = 'pä"ss/w\\ord\n+1'
RULES = Redactor({SECRET: "billing", "hunter2hunter2": "pet"}, tokens=[ACME], off=["github_token"])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("acme_0123456789", ["acme_0123456789"]),
        ("x=acme_0123456789.", ["acme_0123456789"]),
        ("(acme_01234567890123456789)", ["acme_01234567890123456789"]),
        # Escapes end in a letter or a digit.
        (r"a\nacme_0123456789 %3Dacme_9876543210", ["acme_0123456789", "acme_9876543210"]),
        ("acme_012345678", []),  # too short
        ("acme_012345678901234567890", []),  # too long
        ("Xacme_0123456789", []),  # in a word
        ("acme_acme_0123456789", []),
        ("acme-0123456789", []),
    ],
)
def test_a_format_matches_only_its_tokens(text: str, tokens: list[str]) -> None:
    assert [text[span.begin : span.end] for span in ACME.find(text)] == tokens
    cleaned, _ = RULES.clean_text(text)
    assert cleaned.count("[REDACTED:acme_token:") == len(tokens)
    assert not any(token in cleaned for token in tokens)


def test_a_prefix_without_letters_matches_inside_words() -> None:
    odd = TokenFormat("odd", "://k/", "hex", 8, 8)

    assert [span.begin for span in odd.find("http://k/0a1b2c3d x://k/0a1b2c3d")] == [4, 19]


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        *(base64.b64encode(b"x" * shift + SECRET.encode() + b"yz").decode() for shift in range(3)),
        *(base64.urlsafe_b64encode(b"x" * shift + SECRET.encode()).decode() for shift in range(3)),
        quote(SECRET, safe=""),
        quote_plus(SECRET).lower(),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False).replace("/", "\\/"),
        json.dumps(json.dumps(SECRET)),
    ],
)
def test_a_secret_is_masked_with_its_name_in_every_encoding_and_across_parts(spelling: str) -> None:
    text = f"before {spelling} after"
    cleaned, _ = RULES.clean_text(text)

    assert placeholder("billing", SECRET) in cleaned
    assert cleaned.startswith("before ")
    for size in (1, 3, 7):
        assert streamed(text, size) == cleaned


def streamed(text: str, size: int, redactor: Redactor = RULES) -> str:
    stream = Stream(redactor)
    return "".join([stream.feed(text[at : at + size]) for at in range(0, len(text), size)]) + stream.flush()


PARTS = ["acme_", "acme", "a", "0123456789", "Z9", "_", "-", " ", "\n", "hunter2", "ghp_", "password=", SECRET[:6]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), st.integers(1, 5))
def test_a_stream_gives_the_same_output_as_the_whole_text(text: str, size: int) -> None:
    assert streamed(text, size) == RULES.clean_text(text)[0]


def test_a_stream_holds_back_only_possible_tokens() -> None:
    stream = Stream(Redactor(tokens=[ACME]))
    assert stream.feed("nothing of it. acme") == "nothing of it. "
    assert stream.feed("s say so: ") == "acmes say so: "
    # Twenty-one characters are too long for a token.
    assert stream.feed("acme_01234567890123456789") == ""
    assert stream.feed("0") == "acme_012345678901234567890"


def test_many_secrets_are_matched_like_few() -> None:
    """Above a threshold they are looked up at each position; the result is the same."""
    secrets = {f"secret-{number:04}-{number * 7919:x}": f"kind_{number % 7}" for number in range(120)}
    few, many = SecretSet(dict(list(secrets.items())[:3])), SecretSet(secrets)
    for secret, kind in list(secrets.items())[:3]:
        for text in (f"a {secret} b", base64.b64encode(f"a {secret} b".encode()).decode(), secret * 2):
            spans = {span for span in many.find(text) if span.kind == kind}
            assert {(span.begin, span.end) for span in few.find(text)} <= {(span.begin, span.end) for span in spans}
    assert len(Redactor(secrets).clean_text(" ".join(secrets))[0].split()) == len(secrets)


def test_an_exception_applies_only_to_its_kind() -> None:
    token, other = "ghp_" + "a1B2" * 9, "glpat-" + "a1B2" * 5
    text = f"{token} {other}"

    assert RULES.clean_text(text)[0] == f"{token} {placeholder('gitlab_token', other)}"
    assert RULES.clean({"note": text})[0] == {"note": f"{token} {placeholder('gitlab_token', other)}"}
    assert streamed(text, 3) == f"{token} {placeholder('gitlab_token', other)}"
    # A telling key is a separate reason to mask.
    assert placeholder("token", token) in RULES.clean({"auth_token": token})[0]["auth_token"]  # type: ignore[index,call-overload,operator]
    assert Redactor(off=["password"]).clean({"password": "s3cret-pw"})[0] == {"password": "s3cret-pw"}
    assert {"github_token", "password", "private_key", "bearer", "npm_access_token"} <= BUILT_IN_KINDS
    assert ALWAYS_MASKED <= BUILT_IN_KINDS


def test_keys_of_json_are_searched_too() -> None:
    letters = TokenFormat("letters", "qqq", "alnum", 8, 12)

    assert Redactor(tokens=[letters]).clean({"qqqabcdefgh": 1})[0] == {placeholder("letters", "qqqabcdefgh"): 1}


@pytest.fixture
def asked() -> Iterator[list[tuple[frozenset[UUID] | None, bool]]]:
    """The rules that the redactor requests; RULES belong to project ALPHA."""
    questions = []

    def redactor_of(projects: frozenset[UUID] | None, may_load: bool) -> Redactor:
        questions.append((projects, may_load))
        return RULES if projects is None or ALPHA in projects else redact.BUILT_IN

    redact.use_rules(redactor_of)
    yield questions
    redact.use_rules(CACHE.redactor_of)


def test_the_scope_selects_the_rules_and_without_one_all_apply(
    asked: list[tuple[frozenset[UUID] | None, bool]],
) -> None:
    beta = uuid4()
    assert "acme_0" not in redact.DEFAULT.clean_text("acme_0123456789")[0]
    with project_scope.limited_to(beta):
        assert redact.DEFAULT.clean_text("acme_0123456789")[0] == "acme_0123456789"
        project_scope.add(ALPHA)
        assert project_scope.projects() == {ALPHA, beta}
        stream = Stream()
        assert "acme_0" not in redact.DEFAULT.clean({"a": "acme_0123456789"})[0]["a"]  # type: ignore[index,call-overload,operator]
    assert project_scope.projects() is None
    # A stream keeps the rules it began with.
    assert "acme_0" not in stream.feed("acme_0123456789 ") + stream.flush()
    assert "acme_0" not in redact.EVERYWHERE.clean_text("acme_0123456789")[0]
    assert asked[-1] == (None, False)
    assert all(may_load for _, may_load in asked[:-1])


@pytest.mark.parametrize(
    ("masked", "original", "expected"),
    [
        ("a [REDACTED:x:01234567] b", "a secret b", True),
        ("[REDACTED:x:01234567][REDACTED:y:01234567]", "ab", True),
        ("[REDACTED:x:01234567] b [REDACTED:x:01234567]", "1 b 2", True),
        ("a [REDACTED:x:01234567] b", "a  b", False),
        ("a [REDACTED:x:01234567] b [REDACTED:x:01234567]", "a 1 c 2", False),
        ("a b", "a b", False),
    ],
)
def test_possible_originals_of_a_masked_text_are_recognized(masked: str, original: str, expected: bool) -> None:
    assert is_masked_form(masked, original) is expected


SLOW = [
    TokenFormat("a", "aaa", "alnum", 8, 512),
    TokenFormat("b", "-a-", "word", 8, 512),
    TokenFormat("c", "+/+", "base64", 512, 512),
    TokenFormat("d", "/a/", "base64", 8, 9),
]


@pytest.mark.parametrize("attack", ["a", "-a-", "aaa", "+/+", "/a/", "-aaa", "+aaa/", "aaa ", "a-", "ab" * 300 + "aaa"])
def test_any_user_input_takes_linear_time(attack: str) -> None:
    formats = TokenFormats(SLOW)

    assert_linear(lambda text: [*formats.find(text), formats.unfinished(text)], attack, 400_000)


def test_secrets_that_overlap_themselves_take_linear_time() -> None:
    for secrets in (SecretSet(["abababab"]), SecretSet([f"abab{number:04}" for number in range(120)])):

        def search(text: str, secrets: SecretSet = secrets) -> None:
            # Not collected in a list: a hundred thousand spans would measure the garbage collector.
            sum(1 for _ in secrets.find(text))
            secrets.unfinished(text)

        assert_linear(search, "ab", 200_000)
