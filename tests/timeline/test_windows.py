"""A secret cut by the borders of a part is masked in every part that contains a piece of it."""

from __future__ import annotations

import base64
import random

import pytest

from agentops.base.redaction.partial_texts import mask
from agentops.base.redaction.redact import DEFAULT, Redactor, placeholder

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join(base64.b64encode(random.Random(line).randbytes(48)).decode() for line in range(20))
    + "\n-----END RSA PRIVATE KEY-----"
)
SHAPES = {
    "name": ("DB_PASSWORD=", "correct-horse-7-battery", "\nnext=1\n"),
    "url": ("DATABASE_URL=postgresql://agentops:", "p4ss-w0rd-of-db", "@db:5432/agentops\n"),
    "token": ("key: ", "sk-ant-api03-Q8vX2LrT5kWz1NcJ7bYh4MfE", "\n"),
    "aws": ("AWS_ACCESS_KEY_ID ", "AKIAQ8VX2LRT5KWZ1NCJ", "\n"),
    "header": ("Authorization: Bearer ", "9f8e7d6c5b4a3928171605f4e3d2c1b0", "\r\n"),
    "pem": ("key = ", PEM, "\n"),
}


def windows(text: str, size: int) -> list[str]:
    return [mask(text[at : at + size], text[:at], text[at + size :]) for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 7, 16, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_windows_of_any_size_show_nothing_of_a_secret(shape: str, size: int) -> None:
    head, secret, tail = SHAPES[shape]
    text = f"some words before\n{head}{secret}{tail}some words after\n"

    shown = windows(text, size)

    marks = {f"[REDACTED:{part.rpartition('[REDACTED:')[2].partition(']')[0]}]" for part in shown if "REDACTED" in part}
    assert len(marks) == 1, "the same mark everywhere: that of the whole secret"
    [only] = marks
    assert only in DEFAULT.clean_text(text)[0]
    rest = "".join(part.replace(only, "") for part in shown)
    assert rest == text.replace(secret, "")


def test_a_registered_secret_is_masked_in_parts() -> None:
    redactor = Redactor(["Grünkohl mit Pinkel"])
    text = "we eat Grünkohl mit Pinkel today"

    shown = [mask(text[at], text[:at], text[at + 1 :], redactor) for at in range(len(text))]

    assert set(shown) - set("we eat today") == {placeholder("secret", "Grünkohl mit Pinkel")}


def test_the_mark_does_not_depend_on_the_window() -> None:
    """The hash of a single character would reveal it."""
    text = "password=hunter2hunter2 and more"

    assert {mask(text[at], text[:at], text[at + 1 :]) for at in range(9, 23)} == {
        placeholder("password", "hunter2hunter2")
    }


def test_complete_secrets_are_masked_as_usual() -> None:
    text = "a password=hunter2hunter2 b AKIAQ8VX2LRT5KWZ1NCJ c"

    assert mask(text) == DEFAULT.clean_text(text)[0]
    assert mask("", "password=hunter2", "hunter2") == ""
    assert mask("plain words", "password=hunter2hunter2 ", " password=hunter2hunter2") == "plain words"
