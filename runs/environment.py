"""Hides secret environment variables of this process from child processes and from /proc.

On Linux, `/proc/PID/environ` shows the initial environment even after variables are deleted, so that memory is
overwritten. On other systems only the inheritance is prevented. `os.environ` keeps the API keys that the libraries of
model vendors read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from django.conf import settings

from agentops.base.env import HiddenPart

SECRET_NAME = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|(?:^|_)(?:API_?KEY|AUTH|CREDENTIALS?|DSN|KEY|PASS|PAT|PWD|TOKEN)S?(?:_|$)", re.I
)
CREDENTIALS_IN_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s/@]{0,256}:[^\s/@]{1,1024}@", re.I)
#: Variables that match SECRET_NAME but contain directories of the shell.
NOT_SECRET = frozenset({"OLDPWD", "PWD"})
#: Names of headers whose values are masked in texts.
SECRET_HEADER = re.compile(r"authorization|cookie|key|token|secret|password", re.I)
#: Suffixes of variables that match SECRET_NAME but are not secrets: they are never masked in texts.
ABOUT_SECRETS = re.compile(r"_(?:URL|NAME|ENDPOINT|ISSUER|HASHERS)$", re.I)
#: Shorter values, in characters, are never masked in texts.
MIN_VALUE = 8
#: The minimum length at which a single word with a number, such as "gatewaykey1234", is masked in texts.
MIN_NUMBERED = 12
#: The minimum length at which other words and numbers, such as "postgres" or "scram-sha-256", are masked.
MIN_WORDS = 20
#: Longer values are files rather than keys; private keys are recognised by their form.
MAX_VALUE = 4096
_BETWEEN_WORDS = re.compile(r"[-_.:/ ]")
#: A single word with a number.
_NUMBERED = re.compile(r"[a-z]+[0-9]{1,4}", re.I | re.ASCII)
#: A word, possibly with a number, or a number.
_WORD = re.compile(r"[a-z]*[0-9]{0,4}|[0-9]+", re.I | re.ASCII)
#: PR_SET_DUMPABLE of prctl(2).
_SET_DUMPABLE = 4
#: Indexes of the fields of /proc/self/stat with the addresses of the initial environment, counted after the name.
_ENV_START, _ENV_END = 47, 48
#: The variables that `hide_secrets` removed from os.environ.
_removed: dict[str, str] = {}


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is a secret, by its name or as a URL with a password. Paths are no secrets."""
    if _hidden_part(name):
        return True
    if name in NOT_SECRET or value.startswith("/"):
        return False
    return SECRET_NAME.search(name) is not None or CREDENTIALS_IN_URL.match(value) is not None


def hide_secrets() -> list[str]:
    """Hide the secret variables permanently, and return their names.

    Call it after the settings are loaded and before tools run. Child processes do not inherit the variables, and other
    processes of the same user can neither read the memory of this process nor trace it.
    """
    names = sorted(name for name, value in os.environ.items() if is_secret(name, value))
    for name in names:
        # os.environ keeps it for Python. It is removed for C code and child processes.
        os.unsetenv(name)
        if _hidden_part(name):
            _removed[name] = os.environ.pop(name)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError):
            _overwrite({name.encode() for name in names})
        ctypes.CDLL(None, use_errno=True).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    return names


def for_own_process() -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables for another process of agentops: its environment, and separately its secrets.

    Pass the secrets in a way that other processes cannot read, such as a pipe.
    """
    variables = {**os.environ, **_removed}
    secrets = {name: value for name, value in variables.items() if is_secret(name, value)}
    return {name: value for name, value in variables.items() if name not in secrets}, secrets


def secret_values() -> frozenset[str]:
    """Return the values of this process's secret variables that must be masked in texts.

    Leaves out values that also occur in ordinary texts: see `is_unmistakable`.
    """
    variables = {**os.environ, **_removed}
    values = {part for name, value in variables.items() if is_secret(name, value) for part in _parts(name, value)}
    return frozenset(filter(is_unmistakable, values))


def is_unmistakable(value: str) -> bool:
    """Return whether a value is unlikely to occur in a text by accident, and not too long for a key.

    The minimum length is `MIN_VALUE`, `MIN_NUMBERED` or `MIN_WORDS`, depending on its form.
    """
    if _NUMBERED.fullmatch(value):
        return MIN_NUMBERED <= len(value) <= MAX_VALUE
    is_words = all(map(_WORD.fullmatch, _BETWEEN_WORDS.split(value)))
    return (MIN_WORDS if is_words else MIN_VALUE) <= len(value) <= MAX_VALUE


def _hidden_part(name: str) -> HiddenPart | None:
    """Return which part of a variable is secret. None unless only the settings need the variable.

    agentops/base/backing_services.py reads PGPASSWORD, which belongs to PostgreSQL's client library.
    """
    return HiddenPart.TEXT if name == "PGPASSWORD" else settings.AGENTOPS_SECRETS.get(name)


def _parts(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in the value of a variable."""
    hidden = _hidden_part(name)
    if hidden is HiddenPart.LIST:
        yield from (part.strip() for part in value.split(","))
    elif hidden is HiddenPart.HEADERS:
        headers = (part.partition("=") for part in value.split(","))
        # A header may begin with a scheme, such as "Bearer".
        yield from (text.strip().rpartition(" ")[2] for name, _, text in headers if SECRET_HEADER.search(name))
    elif hidden is not HiddenPart.URL and (hidden or not _is_about_secrets(name, value)):
        yield value
    if "://" not in value:
        return
    with contextlib.suppress(ValueError):  # not a URL
        url = urlsplit(value)
        options = (each for option, each in parse_qsl(url.query) if SECRET_NAME.search(option))
        for secret in (url.password, *options):
            yield from {secret, unquote(secret)} if secret else ()


def _is_about_secrets(name: str, value: str) -> bool:
    """Return whether a variable only describes secrets, such as the URL where they are issued."""
    return ABOUT_SECRETS.search(name) is not None or _is_open_url(value)


def _is_open_url(value: str) -> bool:
    """Return whether a value is a URL without user information."""
    with contextlib.suppress(ValueError):
        url = urlsplit(value)
        return bool(url.scheme and url.netloc) and "@" not in url.netloc
    return False


def _overwrite(names: set[bytes]) -> None:
    """Overwrite the values of these variables with zeros in the initial environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    begin, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < begin < end:
        return
    at = begin
    for entry in ctypes.string_at(begin, end - begin).split(b"\0"):
        name, sign, value = entry.partition(b"=")
        if sign and name in names:
            ctypes.memset(at + len(name) + 1, 0, len(value))
        at += len(entry) + 1
