"""Strict readers of environment variables. An invalid value prevents the start; the error names only the variable."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parseaddr
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
MODEL_KEY = re.compile(r"[A-Za-z0-9.:\[\]_-]+=[A-Z][A-Z0-9_]*_(KEY|TOKEN)")
INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class BadSetting(ImproperlyConfigured):
    """An environment variable is invalid. The text names it and the accepted values."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that was read: its default in the form of an environment variable, and the accepted values."""

    default: str
    expected: str


class Reader:
    """Reads variables and remembers their names, so that a misspelt `AGENTOPS_*` name is refused."""

    def __init__(self) -> None:
        #: Variable name → setting, in the order of reading.
        self.registered: dict[str, Setting] = {}

    def read(self, name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
        """Return the parsed value of `name`, or `default` if unset or empty. A `ValueError` becomes `BadSetting`."""
        self.registered[name] = Setting(as_text(default), expected)
        raw = os.environ.get(name, "")
        if not raw:
            return default
        try:
            return parse(raw)
        except (ValueError, KeyError):
            raise BadSetting(f"{name} must be {expected}") from None

    def text(self, name: str, default: str = "") -> str:
        return self.read(name, default, str, "text")

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        return self.read(name, default, lambda raw: choices[choices.index(raw.strip().lower())], " or ".join(choices))

    def boolean(self, name: str, *, default: bool) -> bool:
        return self.read(name, default, lambda raw: BOOLEANS[raw.strip().lower()], "true or false")

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        def parse(raw: str) -> int:
            # int() also takes "1_000", " 12 " and other scripts' digits.
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
        return self.read(name, default, lambda raw: [p.strip() for p in raw.split(",") if p.strip()], "a comma list")

    def model_keys(self, name: str) -> list[str]:
        """Return servers of models, each with the variable that holds its key.

        Variables with such names are hidden from child processes, and their values from texts: see runs.environment.
        """

        def parse(raw: str) -> list[str]:
            entries = [part.strip() for part in raw.split(",") if part.strip()]
            if not all(MODEL_KEY.fullmatch(entry) for entry in entries):
                raise ValueError
            return entries

        return self.read(name, [], parse, "a comma list of HOST=NAME_KEY or HOST:PORT=NAME_TOKEN")

    def secrets(self, name: str, *, at_least: int) -> list[str]:
        """Return secrets of at least `at_least` characters."""

        def parse(raw: str) -> list[str]:
            secrets = [part.strip() for part in raw.split(",") if part.strip()]
            if any(len(secret) < at_least for secret in secrets):
                raise ValueError
            return secrets

        return self.read(name, [], parse, f"a comma list of secrets with at least {at_least} characters")

    def directories(self, name: str, default: list[str]) -> list[str]:
        """Return existing directories by their absolute paths. Kernel directories, such as /proc, are refused."""

        def parse(raw: str) -> list[str]:
            places = [Path(part.strip()) for part in raw.split(",") if part.strip()]
            for path in places:
                resolved = Path(os.path.realpath(path))
                if not path.is_absolute() or not resolved.is_dir():
                    raise ValueError
                if any(resolved.is_relative_to(kernel) for kernel in KERNEL_DIRECTORIES):
                    raise ValueError
            return list(map(str, places))

        expected = "a comma list of absolute paths of directories that exist, none in /proc, /sys or /dev"
        return self.read(name, default, parse, expected)

    def proxies(self, name: str) -> list[str]:
        def parse(raw: str) -> list[str]:
            names = [part.strip() for part in raw.split(",") if part.strip()]
            for each in names:
                if each != "*":
                    ip_network(each, strict=False)
            return names

        return self.read(name, [], parse, "a comma list of IP addresses and networks, or *")

    def database(self, name: str, default: dict[str, Any]) -> dict[str, Any]:
        """Return a Django database entry from a URL: `postgresql://…` or `sqlite:///PATH`."""

        def parse(raw: str) -> dict[str, Any]:
            if urlsplit(raw).scheme not in {"postgres", "postgresql", "sqlite"}:
                raise ValueError
            try:
                return dict(dj_database_url.parse(raw))
            except dj_database_url.ParseError:
                raise ValueError from None

        return self.read(name, default, parse, "a postgresql:// or sqlite:/// URL")

    def redis(self, name: str) -> str:
        def parse(raw: str) -> str:
            parts = urlsplit(raw)
            if parts.scheme not in {"redis", "rediss", "unix"} or not (parts.hostname or parts.path):
                raise ValueError
            return raw

        return self.read(name, "", parse, "a redis://, rediss:// or unix:// URL")

    def site(self, name: str) -> str:
        """Return the public URL of the site, without a path."""

        def parse(raw: str) -> str:
            parts = urlsplit(raw.removesuffix("/"))
            if (
                parts.scheme not in {"http", "https"}
                or not parts.hostname
                or parts.geturl() != f"{parts.scheme}://{parts.netloc}"
            ):
                raise ValueError
            if parts.username is not None or parts.port == 0:
                raise ValueError
            return parts.geturl()

        return self.read(name, "", parse, "an http:// or https:// address without a path")

    def address(self, name: str) -> str:
        def parse(raw: str) -> str:
            try:
                validate_email(parseaddr(raw)[1])
            except ValidationError:
                raise ValueError from None
            if any(ord(character) < 32 for character in raw):
                raise ValueError
            return raw

        return self.read(name, "", parse, "an e-mail address, or `Name <address>`")

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

        return self.read(name, {}, parse, "an smtp://, smtp+tls:// (STARTTLS) or smtps:// URL")

    def refuse_unknown(self) -> None:
        """Raise `BadSetting` for a misspelt variable, which would otherwise silently have no effect."""
        unknown = sorted(n for n in os.environ if n.startswith(PREFIX) and n not in self.registered)
        if unknown:
            raise BadSetting(f"unknown variable {unknown[0]}")


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
