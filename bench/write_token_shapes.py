"""Generate timeline/redaction/token_shapes.py from gitleaks' rules.

Usage: `python -m bench.write_token_shapes GITLEAKS_TOML COMMIT`. Only facts are used: the prefix of a vendor's tokens
and their minimum length. Rules without such a prefix are listed on standard error; timeline/redaction/secret_names.py
finds these secrets by their names.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "timeline" / "redaction" / "token_shapes.py"
#: Detected more precisely by timeline/redaction/secret_shapes.py.
OWN = ("sk-", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "xox", "xapp-", "eyJ")
#: Too short or too common to distinguish from words, or not secret.
VAGUE = {
    *("1password-secret-key", "authress-service-client-access-key", "cloudflare-origin-ca-key", "private-key"),
    *("flutterwave-public-key", "gitlab-session-cookie"),
}
LEAST, ENOUGH = 12, 16
HEADER = '''"""Prefixes of vendors' tokens, as public rules know them. Written by `python -m bench.write_token_shapes`.

Facts from config/gitleaks.toml of https://github.com/gitleaks/gitleaks (MIT licence, (c) 2019 Zachary Rice),
commit {commit}. No text of it is in here.
"""

from __future__ import annotations

#: Kind, prefix, alphabet of what follows (alnum; word: - and _ too), and how long that is at least.
TOKEN_SHAPES: tuple[tuple[str, str, str, int], ...] = (
'''


def shapes(rule: dict[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    """Yield each prefix of a rule that ends in a hyphen or underscore and is followed by enough characters."""
    python = rule.get("regex", "").replace("(?i)", "").replace(r"\z", r"\Z").replace("[[:alnum:]]", "[A-Za-z0-9]")
    kind = "_".join(re.split("[^a-z0-9]+", rule["id"].lower()))[:32]
    for prefix, alphabet, least in _read(list(parser.parse(python))):
        match = re.match(r"[A-Za-z0-9_.-]{2,}[_-]", prefix)
        rest = least + len(prefix) - match.end() if match else 0
        if match and rest >= 10 and not prefix.startswith(OWN) and rule["id"] not in VAGUE:
            yield kind, match[0], alphabet, max(LEAST, min(rest, ENOUGH))


def _read(items: list[Any]) -> Iterator[tuple[str, str, int]]:
    """Return the literal prefixes of a parsed pattern, with the alphabet and the minimum length of the rest."""
    heads, at = [""], 0
    flat = [part for item in items for part in _opened(item)]
    while at < len(flat) and (choices := _literals(flat[at])):
        heads, at = [head + choice for head, choice in product(heads, choices)], at + 1
    rest = parser.SubPattern(parser.State(), flat[at:])
    letters = {chr(n) for n in range(128) if any(_takes(item, chr(n)) for item in flat[at : at + 1])}
    for head in heads:
        yield head, "word" if letters & {"-", "_"} else "alnum", min(rest.getwidth()[0], 99)


def _opened(item: Any) -> list[Any]:
    kind, value = item
    if kind is code.SUBPATTERN:
        return [part for inner in value[3] for part in _opened(inner)]
    return [] if kind is code.AT else [item]


def _literals(item: Any) -> list[str]:
    """Return the texts that an item matches, if they are few."""
    kind, value = item
    if kind is code.LITERAL:
        return [chr(value)]
    if kind is code.IN and all(entry[0] is code.LITERAL for entry in value) and len(value) <= 4:
        return [chr(entry[1]) for entry in value]
    if kind is code.BRANCH:
        texts = []
        for branch in value[1]:
            parts = [_literals(part) for inner in branch for part in _opened(inner)]
            if not all(parts):
                return []
            texts += ["".join(choice) for choice in product(*parts)]
        return texts
    return []


def _takes(item: Any, character: str) -> bool:
    kind, value = item
    inner = value[2] if kind is code.MAX_REPEAT else [item]
    pattern = parser.SubPattern(parser.State(), list(inner))
    return re.compile(_text(pattern)).fullmatch(character) is not None if len(pattern) == 1 else False


def _text(pattern: Any) -> str:
    """Return a character class as text."""
    kind, value = pattern[0]
    if kind is not code.IN:
        return re.escape(chr(value)) if kind is code.LITERAL else r"\w"
    parts = []
    for name, argument in value:
        if name is code.RANGE:
            parts.append(f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}")
        elif name is code.LITERAL:
            parts.append(re.escape(chr(argument)))
        elif name is code.CATEGORY:
            parts.append(r"\w" if argument is code.CATEGORY_WORD else r"\d")
    return f"[{''.join(parts)}]"


def main(source: str, commit: str) -> None:
    """Write the module, and list the rules without a prefix."""
    found: dict[str, tuple[str, str, str, int]] = {}
    for rule in tomllib.loads(Path(source).read_text())["rules"]:
        made = list(shapes(rule))
        found |= {prefix: shape for shape in made for prefix in (shape[1],) if prefix not in found}
        if not made:
            print(f"no prefix: {rule['id']}", file=sys.stderr)
    lines = [
        f'    ("{kind}", "{prefix}", "{alphabet}", {least}),\n' for kind, prefix, alphabet, least in found.values()
    ]
    TARGET.write_text(HEADER.format(commit=commit) + "".join(sorted(lines)) + ")\n")
    print(f"{len(lines)} prefixes in {TARGET.name}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
