"""Strict readers of environment variables. An invalid value prevents the start; the error does not show the value."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parseaddr
from enum import Enum, auto
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import validate_email

T = TypeVar("T")
PREFIX = "AGENTOPS_"
MAIL_PORTS = {"smtp": 25, "smtp+tls": 587, "smtps": 465}
KERNEL_DIRECTORIES = ("/proc", "/sys", "/dev")
#: Characters of the column that names the provider of an account.
MAX_ISSUER = 200
MODEL_KEY = re.compile(r"[A-Za-z0-9.:\[\]_-]+=[A-Z][A-Z0-9_]*_(KEY|TOKEN)")
INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class BadSetting(ImproperlyConfigured):
    """An environment variable is invalid. The text names it and the accepted values."""


class HiddenPart(Enum):
    """Which part of the value of a variable is secret."""

    #: The whole value.
    TEXT = auto()
    #: Each item of a list with commas.
    LIST = auto()
    #: The values of a list of NAME=VALUE with commas.
    HEADERS = auto()
    #: The password in a URL.
    URL = auto()


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that was read: its default in the form of an environment variable, and the accepted values."""

    default: str
    expected: str
    secret: HiddenPart | None


class Reader:
    """Reads variables and remembers their names, so that a misspelt `AGENTOPS_*` name is refused."""

    def __init__(self) -> None:
        #: Variable name → setting, in the order of reading.
        self.registered: dict[str, Setting] = {}

    def read(
        self, name: str, default: T, parse: Callable[[str], T], expected: str, secret: HiddenPart | None = None
    ) -> T:
        """Return the parsed value of `name`; `default` if it is unset or empty. Raises `BadSetting`.

        `parse` raises `ValueError` for an invalid value. `expected` says in the message what the value must be.
        """
        self.registered[name] = Setting(as_text(default), expected, secret)
        raw = os.environ.get(name, "")
        if not raw:
            return default
        try:
            return parse(raw)
        except (ValueError, KeyError, ValidationError, dj_database_url.ParseError):
            raise BadSetting(f"{name} must be {expected}") from None

    def text(self, name: str, default: str = "", *, secret: bool = False) -> str:
        return self.read(name, default, str, "text", HiddenPart.TEXT if secret else None)

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        return self.read(name, default, lambda raw: choices[choices.index(raw.strip().lower())], " or ".join(choices))

    def boolean(self, name: str, *, default: bool) -> bool:
        return self.read(name, default, lambda raw: BOOLEANS[raw.strip().lower()], "true or false")

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        def parse(raw: str) -> int:
            # int() also accepts "1_000", " 12 " and digits of other scripts.
            if not INTEGER.fullmatch(raw) or not low <= int(raw) <= high:
                raise ValueError
            return int(raw)

        return self.read(name, default, parse, f"a whole number from {low} to {high}")

    def seconds(self, name: str, default: float, *, low: float, high: float) -> float:
        def parse(raw: str) -> float:
            if not DECIMAL.fullmatch(raw) or not low <= float(raw) <= high:
                raise ValueError
            return float(raw)

        return self.read(name, default, parse, f"a number of seconds from {low:g} to {high:g}")

    def names(self, name: str, default: list[str]) -> list[str]:
        return self.read(name, default, split, "a comma list")

    def model_keys(self, name: str) -> list[str]:
        """Return `HOST=VARIABLE` for servers of models. The variable holds the key of the server.

        runs.environment hides variables with such names from child processes, and masks their values in texts.
        """
        return self._list(name, MODEL_KEY.fullmatch, "a comma list of HOST=NAME_KEY or HOST:PORT=NAME_TOKEN")

    def secrets(self, name: str, *, at_least: int) -> list[str]:
        """Return secrets of at least `at_least` characters."""
        expected = f"a comma list of secrets with at least {at_least} characters"
        return self._list(name, lambda secret: len(secret) >= at_least, expected, HiddenPart.LIST)

    def directories(self, name: str) -> list[str]:
        """Return absolute paths of existing directories. Kernel directories, such as /proc, are refused."""

        def is_usable(text: str) -> bool:
            path = Path(os.path.realpath(text))
            is_of_kernel = any(path.is_relative_to(kernel) for kernel in KERNEL_DIRECTORIES)
            return Path(text).is_absolute() and path.is_dir() and not is_of_kernel

        expected = "a comma list of absolute paths of directories that exist, none in /proc, /sys or /dev"
        return self._list(name, is_usable, expected)

    def proxies(self, name: str) -> list[str]:
        expected = "a comma list of IP addresses and networks, or *"
        return self._list(name, lambda each: each == "*" or ip_network(each, strict=False), expected)

    def ports(self, name: str) -> list[int]:
        ports = self._list(name, lambda port: 0 < int(port) < 65536, "a comma list of port numbers")
        return [int(port) for port in ports]

    def headers(self, name: str) -> dict[str, str]:
        """Return headers by name. The format is the one of OpenTelemetry's OTEL_EXPORTER_OTLP_HEADERS."""

        def parse(raw: str) -> dict[str, str]:
            headers = dict(part.split("=", 1) for part in split(raw))
            if not all(name.strip() and value.isprintable() for name, value in headers.items()):
                raise ValueError
            return {name.strip(): value.strip() for name, value in headers.items()}

        return self.read(name, {}, parse, "a comma list of NAME=VALUE", HiddenPart.HEADERS)

    def absolute_path(self, name: str) -> str:
        return self._valid_text(name, lambda raw: Path(raw).is_absolute(), "an absolute path")

    def database(self, name: str) -> dict[str, Any]:
        """Return a Django database entry from a URL: `postgresql://…` or `sqlite:///PATH`. Empty without one."""

        def parse(raw: str) -> dict[str, Any]:
            if urlsplit(raw).scheme not in {"postgres", "postgresql", "sqlite"}:
                raise ValueError
            return dict(dj_database_url.parse(raw))

        return self.read(name, {}, parse, "a postgresql:// or sqlite:/// URL", HiddenPart.URL)

    def redis(self, name: str) -> str:
        def is_valid(raw: str) -> bool:
            parts = urlsplit(raw)
            return parts.scheme in {"redis", "rediss", "unix"} and bool(parts.hostname or parts.path)

        return self._valid_text(name, is_valid, "a redis://, rediss:// or unix:// URL", HiddenPart.URL)

    def site(self, name: str) -> str:
        """Return the public URL of the site, without a path."""

        def is_valid(raw: str) -> bool:
            parts = urlsplit(raw.removesuffix("/"))
            is_root = parts.hostname and parts.geturl() == f"{parts.scheme}://{parts.netloc}"
            return bool(is_root) and parts.scheme in {"http", "https"} and parts.username is None and parts.port != 0

        url = self._valid_text(name, is_valid, "an http:// or https:// address without a path")
        return urlsplit(url.removesuffix("/")).geturl()

    def issuer(self, name: str) -> str:
        """Return the address of an OpenID provider, without a slash at its end."""

        def is_valid(raw: str) -> bool:
            parts = urlsplit(raw)
            is_local = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}
            is_plain = not (parts.query or parts.fragment or parts.username) and len(raw) <= MAX_ISSUER
            return bool(parts.hostname) and (parts.scheme == "https" or is_local) and is_plain

        expected = f"an https:// address of at most {MAX_ISSUER} characters, or one of this machine with http://"
        return self._valid_text(name, is_valid, expected).rstrip("/")

    def address(self, name: str) -> str:
        def is_valid(raw: str) -> bool:
            validate_email(parseaddr(raw)[1])
            return all(ord(character) >= 32 for character in raw)

        return self._valid_text(name, is_valid, "an e-mail address, or `Name <address>`")

    def mail(self, name: str) -> dict[str, Any]:
        """Return the mail server: host, port, user, password and TLS mode. Empty without one."""

        def parse(raw: str) -> dict[str, Any]:
            parts = urlsplit(raw)
            if parts.scheme not in MAIL_PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
                raise ValueError
            return {
                "host": parts.hostname,
                "port": parts.port or MAIL_PORTS[parts.scheme],
                "user": unquote(parts.username or ""),
                "password": unquote(parts.password or ""),
                "starttls": parts.scheme == "smtp+tls",
                "tls": parts.scheme == "smtps",
            }

        return self.read(name, {}, parse, "an smtp://, smtp+tls:// (STARTTLS) or smtps:// URL", HiddenPart.URL)

    def _valid_text(
        self, name: str, is_valid: Callable[[str], bool], expected: str, secret: HiddenPart | None = None
    ) -> str:
        """Return a text. `is_valid` returns False, or raises `ValueError`, for an invalid one."""

        def parse(raw: str) -> str:
            if not is_valid(raw):
                raise ValueError
            return raw

        return self.read(name, "", parse, expected, secret)

    def _list(
        self, name: str, is_valid: Callable[[str], object], expected: str, secret: HiddenPart | None = None
    ) -> list[str]:
        """Return the items of a comma list. `is_valid` returns False, or raises `ValueError`, for an invalid item."""

        def parse(raw: str) -> list[str]:
            parts = split(raw)
            if not all(map(is_valid, parts)):
                raise ValueError
            return parts

        return self.read(name, [], parse, expected, secret)

    def require(self, holds: object, text: str) -> None:
        """Raise `BadSetting` with `text` unless a condition for several variables holds."""
        if not holds:
            raise BadSetting(text)

    def refuse_unknown(self) -> None:
        """Raise `BadSetting` for a misspelt variable, which would otherwise silently have no effect."""
        unknown = sorted(n for n in os.environ if n.startswith(PREFIX) and n not in self.registered)
        if unknown:
            raise BadSetting(f"unknown variable {unknown[0]}")


def split(raw: str) -> list[str]:
    """Return the parts of a comma list that are not empty."""
    return [part.strip() for part in raw.split(",") if part.strip()]


def as_text(default: object) -> str:
    """Return a default in the form of an environment variable; empty if it has none."""
    match default:
        case bool():
            return str(default).lower()
        case int() | float() | str():
            return str(default)
        case list():
            return ",".join(map(str, default))
    return ""
