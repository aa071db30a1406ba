"""Redaction masks secrets and nothing else, in bounded time, also across the parts of a stream.
May import: agentops.base.redaction and its samples; no database.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from agentops.base.redaction.json_values import clean_all, is_suspect
from agentops.base.redaction.redact import BUILT_IN, DEFAULT, JSON, NOTHING, SURROGATE, Redactor
from runs.providers.messages import canonical
from tests.support.secret_samples import FALSE, RNG, SETTINGS, TOKENS, TRUE
from tests.support.timing import assert_linear


def test_secrets_are_masked_in_all_encodings() -> None:
    assert len(TRUE) >= 300
    missed = [(name, text) for name, text, secret in TRUE if secret in DEFAULT.clean_text(text)[0]]
    assert len(missed) <= len(TRUE) // 100, missed


def test_no_part_of_a_token_remains() -> None:
    """Its checksum is masked too."""
    for name, make in TOKENS.items():
        shown = f"1234567890:{make()}" if name == "telegram" else make()
        assert re.fullmatch(r"(?:1234567890:)?\[REDACTED:\w+:[0-9a-f]{8}\] x", DEFAULT.clean_text(f"{shown} x")[0]), (
            name
        )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_secrets_in_nested_json_are_masked(depth: int) -> None:
    """As text: output of a tool that prints a request containing a script. Escapes end in letters, and accumulate."""
    missed = set()
    for name, make in SETTINGS.items():
        line, secret = make()
        for text in (f"cd x\n{line}\ny", f"x → {line}"):
            whole = text
            for _ in range(depth):
                whole = json.dumps({"text": whole})
            if secret in DEFAULT.clean_text(whole)[0]:
                missed.add(name)
    assert not missed


def test_ordinary_text_is_unchanged() -> None:
    assert len(FALSE) >= 300
    wrong = [(text, DEFAULT.clean_text(text)[0]) for text in FALSE if DEFAULT.clean_text(text)[0] != text]
    assert len(wrong) <= len(FALSE) // 100, wrong


def test_text_around_a_secret_remains() -> None:
    text = "KEY=ghp_" + "a1" * 18 + " # the deploy key"
    token = text[4:44]
    digest = hashlib.sha256(token.encode()).hexdigest()[:8]
    expected = f"KEY=[REDACTED:github_token:{digest}] # the deploy key"
    assert DEFAULT.clean_text(text) == (expected, frozenset({"redacted"}))


def test_masking_twice_changes_nothing_more() -> None:
    redactor = Redactor(["hunter2-hunter2", "REDACTED:password"])
    texts = [text for _, text, _ in TRUE] + FALSE
    texts += [" ".join(RNG.sample(texts, 3)) for _ in range(200)]
    texts += ["".join(RNG.sample(texts, 2)) for _ in range(200)]
    for text in texts:
        cleaned = redactor.clean_text(text)[0]
        assert redactor.clean_text(cleaned) == (cleaned, frozenset())


SECRET = 'p&ss/w0rd "x" +ä=\\n1'


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(SECRET.encode()).decode().rstrip("="),
        quote(SECRET, safe=""),
        re.sub("%..", lambda m: m[0].lower(), quote(SECRET, safe="")),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(SECRET)[1:-1])[1:-1],
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
    ],
)
def test_a_registered_secret_is_masked_in_every_encoding(form: str) -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()[:8]
    text = f"before {form} after"
    assert Redactor([SECRET]).clean_text(text)[0] == f"before [REDACTED:secret:{digest}] after"
    assert DEFAULT.clean_text("nothing is registered here") == ("nothing is registered here", frozenset())


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
def test_a_registered_secret_is_masked_inside_longer_base64(before: str) -> None:
    secret = "correct-horse-battery"
    encoded = base64.b64encode(f"{before}{secret} and more".encode()).decode()
    cleaned = Redactor([secret]).clean_text(encoded)[0]
    assert "[REDACTED:secret:" in cleaned
    assert len(cleaned.replace("[REDACTED:secret:00000000]", "")) <= len(encoded)


def test_prefixes_of_our_own_keys_are_not_masked() -> None:
    key = "aok_live_0123456789aB"
    for text in (f"by key:{key}", f"key:{key}", f'{{"created_by": "key:{key}"}}', f"{key}, {key}"):
        assert DEFAULT.clean_text(text) == (text, frozenset())
    assert key + "_Zz" not in DEFAULT.clean_text(f"key:{key}_Zz0123456789")[0]


def test_short_and_odd_registered_secrets_are_handled() -> None:
    redactor = Redactor(["", "a", "abc", "12345", "\ud800" * 8])
    assert redactor.clean_text("abc 12345 a") == ("abc 12345 a", frozenset())


def test_nul_and_surrogates_become_replacement_characters() -> None:
    assert DEFAULT.clean_text("a\0b") == ("a\ufffdb", frozenset({"nul"}))
    assert DEFAULT.clean_text("a\ud800b\udc00") == ("a\ufffdb\ufffd", frozenset({"surrogate"}))
    assert DEFAULT.clean_text("\0\udfff😀")[1] == frozenset({"nul", "surrogate"})


def test_json_is_masked_including_its_keys() -> None:
    key = "ghp_" + "b2" * 18
    value: dict[str, JSON] = {
        "a\0": [1, None, {"x\ud800": "y\0", key: True}],
        "a\ufffd": "kept",
        "t": (t := f"see {key}"),
    }
    cleaned, found = DEFAULT.clean(value)
    assert found == {"nul", "surrogate", "redacted"}
    assert key not in json.dumps(cleaned)
    assert isinstance(cleaned, dict)
    assert sorted(cleaned) == ["a\ufffd", "a\ufffd~2", "t"]
    assert cleaned["a\ufffd"] == "kept"
    assert json.loads(json.dumps(cleaned))["a\ufffd~2"][1] is None
    assert value["t"] == t
    json.dumps(cleaned, ensure_ascii=False).encode()
    assert DEFAULT.clean(cleaned) == (cleaned, frozenset())


def test_json_without_changes_is_the_same_object() -> None:
    value: JSON = {"a": [1, 2.5, None, True, {"b": "plain"}], "token": "Hello", "password": None}
    assert DEFAULT.clean(value)[0] is value
    for scalar in (None, 5, True, "text"):
        assert DEFAULT.clean(scalar) == (scalar, frozenset())


def test_a_key_marks_its_value_as_secret() -> None:
    value: dict[str, JSON] = {
        "password": "correct horse 9",
        "dbPassword": "hunter2",
        "api_key": "0123456789abcdef0123",
        "headers": {"Authorization": "Token abcdef123456", "X-Api-Key": "zyxwvu9876543210"},
        "schema": {"password": "string", "token": "a word", "nextPageToken": "CAUQAA1234567890"},
    }
    cleaned, found = DEFAULT.clean(value)
    text = json.dumps(cleaned)
    assert found == {"redacted"}
    assert text.count("[REDACTED:") == 5
    for secret in ("horse", "hunter2", "0123456789abcdef", "abcdef123456", "zyxwvu"):
        assert secret not in text
    assert isinstance(cleaned, dict)
    assert cleaned["schema"] == value["schema"]
    assert DEFAULT.clean(cleaned) == (cleaned, frozenset())


def test_images_are_unchanged() -> None:
    data = base64.urlsafe_b64encode(RNG.randbytes(300_000)).decode()
    value: JSON = {"kind": "binary", "media_type": "image/png", "data": data}
    assert DEFAULT.clean(value)[0] is value


def test_deep_nesting_is_handled() -> None:
    deep: JSON = "password=hunter2"
    for _ in range(20_000):
        deep = [deep]
    cleaned, found = DEFAULT.clean(deep)
    assert found == {"redacted"}
    while isinstance(cleaned, list):
        cleaned = cleaned[0]
    assert cleaned == "password=[REDACTED:password:f52fbd32]"


ATTACKS = [
    "sk-",
    "sk-ant-",
    "sk-a",
    "\\nsk-a1",
    "ghp_",
    "github_pat_a",
    "glpat-aaaaaaaaaaaaaaaa.",
    "xoxb-",
    "xoxb-a",
    "AKIA",
    "AIza",
    "eyJ",
    "eyJaaaaaaaaa.",
    "eyJaaaaaaaaa.eyJ",
    "%20eyJaaaaaaaaaa..",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n",
    "-----BEGIN RSA PRIVATE KEY-----\nA-b: c\n",
    "-----BEGIN ",
    "-",
    "----- ",
    "://",
    "://a:",
    "://a:b",
    "://@",
    "bearer ",
    "bearer " * 3 + "a" * 20,
    "basic ",
    "basic YTpi",
    "authorization",
    "authorization: ",
    "authorization: a b",
    "password",
    "password=",
    "password=a(",
    "password=$",
    'password="',
    "password='\\",
    'password=\\"a',
    "password: a-",
    "--password ",
    "token=",
    "token=a1",
    "token:a_",
    "api_key=a1a1.",
    "_key" * 3,
    "secret=a/",
    "secret: /a",
    *(" -p", " -u a:", "curl -u a:", "mysql -p", "sshpass -p ", "docker login -p "),
    *("cookie: a=", "cookie=", "login a password ", "login ", "slack.com/services/", 'password","value":"'),
    *("npm_", "_a1b2c3d4e5f6", "-a1b2c3d4e5f6", "gldt-", "SG.", "SG.aaaaaaaaaaaaaaaaa.", "SK0", "1:AA", "EAAA"),
    "[REDACTED:",
    "[REDACTED:a:00000000]",
    "password=[REDACTED:a:00000000]x",
    "a",
    "A1",
    "\\",
    '"',
    " ",
    "\n",
    "\0",
    "\ud800",
    "İ",
]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_redaction_takes_linear_time(attack: str) -> None:
    for before, after in (("", ""), ("", "!"), ("password=", ""), ("-----BEGIN PRIVATE KEY-----", "")):
        assert_linear(lambda text: DEFAULT.clean_text(before + text + after), attack, 50_000)  # noqa: B023


def test_threads_can_share_one_redactor() -> None:
    redactor = Redactor([f"secret-number-{n}" for n in range(20)])
    texts = [f"{text} secret-number-{n % 20}" for n, (_, text, _) in enumerate(TRUE[:300])]
    alone = [redactor.clean_text(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(redactor.clean_text, texts)) == alone


def _batch_samples() -> list[JSON]:
    """Return every kind of secret as text, as a member, in JSON, under a telling key, and next to odd characters."""
    texts = [text for _, text, _ in TRUE] + FALSE
    lines = [make()[0] for make in SETTINGS.values()] + [f"x {make()}" for make in TOKENS.values()]
    names = ["password", "DB_PASS", "pass", "pass1", "passwd", "apiKey", "Set-Cookie", "X-Authorization", "token9"]
    members: list[JSON] = [{name: "s=aB3dE5gH7jK9m"} for name in names]
    members += [{"name": name, "value": "aB3dE5gH7jK9m"} for name in names]
    odd: list[JSON] = [{"a\0b": 1}, {"a": ["\ud800"]}, "\ud83d\ude00", "\\ud83d", "[REDACTED:key:00000000] x"]
    odd += ["cookie\u00a0=\u00a0session=aB3dE5gH7jK9m", "login ada password\u00a0aB3dE5g", "\u212aey=aB3dE5gH7jK9m"]
    wrapped: list[JSON] = [{"output": [text]} for text in texts + lines]
    inner: list[JSON] = [json.dumps({"é": text}, ensure_ascii=False) for text in texts + lines]
    return [*texts, *lines, *members, *odd, *wrapped, *inner]


@pytest.mark.slow
def test_a_batch_is_masked_like_each_of_its_values() -> None:
    values = _batch_samples()
    expected = [DEFAULT.clean(value) for value in values]
    assert sum(value != cleaned for value, (cleaned, _) in zip(values, expected, strict=True)) > 1000

    assert clean_all(values, BUILT_IN) == expected
    # Each value alone gives the same result: neighbouring values make no difference.
    assert [clean_all([value], BUILT_IN)[0] for value in values] == expected
    assert [clean_all(["a", value, "b"], BUILT_IN)[1] for value in values] == expected
    # The check of a message before its strings finds everything that is replaced, except unpaired surrogates.
    replaced = [canonical(value) for value, (_, kinds) in zip(values, expected, strict=True) if kinds - {SURROGATE}]
    assert all(is_suspect(text, BUILT_IN) for text in replaced)
    assert not is_suspect('{"content":"an ordinary answer"}', BUILT_IN)
    registered = Redactor(["hunter2hunter2"])
    assert is_suspect('"hunter2hunter2"', registered)
    assert clean_all(["hunter2hunter2", "x"], registered) == [registered.clean("hunter2hunter2"), ("x", NOTHING)]
