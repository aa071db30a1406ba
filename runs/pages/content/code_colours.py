"""Colour code with Pygments: a few classes, whose colours static/css/content.css sets for both schemes.

Only languages of this list are used: no step of their lexers takes long, which tests/runs/pages/content checks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from itertools import groupby
from typing import Any

from pygments.lexer import Lexer, RegexLexer, words
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Error, Generic, Keyword, Name, Number, Operator, String, Token
from pygments.util import ClassNotFound

#: Maximum characters that are coloured; longer texts are displayed without colours.
MAX_COLOURED = 64 * 1024
#: Seconds after which the rest of a text is not coloured. With a hostile text, some lexers need time in proportion to
#: the square of its length, but they return to their caller in between.
MAX_S = 0.25
#: File name suffix → language, as Pygments names it.
LANGUAGES = {
    "python": ("py", "pyi"), "javascript": ("js", "mjs", "cjs", "jsx"), "typescript": ("ts", "tsx", "mts"),
    "json": ("json", "jsonl", "ipynb"), "bash": ("sh", "bash", "zsh"), "html": ("html", "htm", "vue", "svelte"),
    "css": ("css",), "sql": ("sql",), "rust": ("rs",), "go": ("go",), "ruby": ("rb",), "php": ("php",),
    "yaml": ("yaml", "yml"), "toml": ("toml",), "ini": ("ini", "cfg", "conf"), "xml": ("xml", "svg"),
    "docker": ("dockerfile",), "diff": ("diff", "patch"),
    "c": ("c", "h", "cc", "cpp", "hpp", "cxx", "java", "cs", "kt", "kts", "swift", "scala", "dart", "m"),
}  # fmt: skip
_BY_ENDING = {ending: language for language, endings in LANGUAGES.items() for ending in endings}
_OTHER_NAMES = {
    "py": "python", "python3": "python", "js": "javascript", "jsx": "javascript", "ts": "typescript",
    "tsx": "typescript", "jsonc": "json", "json5": "json", "sh": "bash", "shell": "bash", "zsh": "bash",
    "console": "bash", "rs": "rust", "golang": "go", "rb": "ruby", "yml": "yaml", "dockerfile": "docker",
    "svg": "xml", "patch": "diff", "c++": "c", "cpp": "c", "c#": "c", "cs": "c", "csharp": "c", "java": "c",
    "kotlin": "c", "swift": "c", "scala": "c", "dart": "c", "objective-c": "c",
}  # fmt: skip
_C_KEYWORDS = (
    *("abstract", "and", "as", "async", "await", "break", "case", "catch", "class", "const", "constexpr", "continue"),
    *("default", "defer", "delete", "do", "else", "enum", "export", "extends", "extern", "extension", "false", "final"),
    *(
        "finally",
        "for",
        "foreach",
        "fun",
        "func",
        "goto",
        "guard",
        "if",
        "implements",
        "import",
        "in",
        "init",
        "inline",
    ),
    *("instanceof", "interface", "internal", "is", "let", "namespace", "new", "nil", "null", "nullptr", "object", "or"),
    *("operator", "out", "override", "package", "private", "protected", "protocol", "public", "readonly", "record"),
    *("ref", "return", "sealed", "self", "sizeof", "static", "struct", "super", "switch", "template", "this", "throw"),
    *("throws", "trait", "true", "try", "typedef", "typename", "union", "using", "val", "var", "virtual", "volatile"),
    *("when", "where", "while", "yield"),
)
_C_TYPES = (
    *("auto", "bool", "boolean", "byte", "char", "decimal", "double", "float", "int", "int32_t", "int64_t", "long"),
    *("short", "signed", "size_t", "string", "uint", "uint8_t", "uint32_t", "uint64_t", "unsigned", "void"),
    *("Bool", "Boolean", "Double", "Float", "Int", "Integer", "List", "Long", "Map", "Object", "Set", "String", "Unit"),
)
#: Token types and their classes; the first match counts.
_CLASSES = (
    (Comment, "hl-c"), (String, "hl-s"), (Number, "hl-n"), (Keyword.Type, "hl-t"), (Keyword, "hl-k"),
    (Operator.Word, "hl-k"), (Name.Function, "hl-f"), (Name.Class, "hl-f"), (Name.Decorator, "hl-f"),
    (Name.Tag, "hl-k"), (Name.Attribute, "hl-f"), (Name.Builtin, "hl-t"), (Name.Exception, "hl-t"),
    (Generic.Inserted, "hl-i"), (Generic.Deleted, "hl-d"), (Generic.Heading, "hl-k"), (Generic.Subheading, "hl-k"),
)  # fmt: skip
#: A line number that a tool wrote before a line of a file, such as "    12→" or "12\t".
_NUMBERED = re.compile(r"^ {0,8}\d{1,7}[→\t]", re.MULTILINE)


class _CLikeLexer(RegexLexer):  # type: ignore[misc]
    """C and similar languages.

    Pygments' own lexers search for the heads of functions, in a time that grows with the square of the text.
    """

    tokens = {
        "root": [
            (r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/", Comment),
            (r"#[ \t]*[a-z]+|@\w+", Name.Decorator),
            (r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', String),
            (r"\b\d[\w.]*", Number),
            (words(_C_KEYWORDS, prefix=r"\b", suffix=r"\b"), Keyword),
            (words(_C_TYPES, prefix=r"\b", suffix=r"\b"), Keyword.Type),
            (r"[^\W\d]\w*(?=\()", Name.Function),
            (r"\w+|\s+|.", Token),
        ]
    }


class _LineLexer(RegexLexer):  # type: ignore[misc]
    """Diffs, line by line."""

    tokens = {
        "root": [
            (r"(?:@@|diff |index |--- |\+\+\+ )[^\n]*", Generic.Heading),
            (r"\+[^\n]*", Generic.Inserted),
            (r"-[^\n]*", Generic.Deleted),
            (r"[^\n]+|\n", Token),
        ]
    }


_OWN = {"c": _CLikeLexer, "diff": _LineLexer}


def language_of(path: str) -> str:
    """Return the language of a file by its name; empty if it is not known."""
    name = path.replace("\\", "/").rpartition("/")[2].lower()
    return _BY_ENDING.get(name.rpartition(".")[2], "")


def coloured(text: str, language: str) -> str:
    """Return `text` as HTML that is escaped, with a span for each coloured token, for markup.sanitised."""
    lexer = _lexer(_OTHER_NAMES.get(language.lower(), language.lower()))
    if lexer is None or len(text) > MAX_COLOURED:
        return escape(text, quote=False)
    return "".join(_spans(lexer, text))


def coloured_file(text: str, language: str) -> str:
    """Return the same for a file whose lines a tool may have numbered: the numbers are not part of the code."""
    lines = text.split("\n")
    numbers = [_NUMBERED.match(line) for line in lines]
    if not numbers[0] or sum(number is None for number in numbers) > max(len(lines) // 4, 1):
        return coloured(text, language)
    code = "\n".join(line[number.end() :] if number else line for line, number in zip(lines, numbers, strict=True))
    html = coloured(code, language).split("\n")
    # Tokens of `coloured` never span lines, so the lines can be joined to their numbers again.
    return "\n".join(
        f'<span class="hl-l">{escape(number[0])}</span>{line}' if number else line
        for line, number in zip(html, numbers, strict=True)
    )


def _tokens(lexer: Lexer, text: str) -> Iterator[tuple[Any, str]]:
    """Yield the tokens of a text. When the time is over, yield the rest as one token."""
    end = time.monotonic() + MAX_S
    for number, (at, kind, value) in enumerate(lexer.get_tokens_unprocessed(text)):
        if number % 16 == 0 and time.monotonic() > end:
            yield Token, text[at:]
            return
        yield kind, value


def _spans(lexer: Lexer, text: str) -> Iterator[str]:
    for css_class, tokens in groupby(_tokens(lexer, text), lambda token: _class_of(token[0])):
        words = escape("".join(value for _, value in tokens), quote=False)
        if not css_class:
            yield words
        elif "\n" in words:
            yield "\n".join(f'<span class="{css_class}">{line}</span>' if line else "" for line in words.split("\n"))
        else:
            yield f'<span class="{css_class}">{words}</span>'


@lru_cache(maxsize=1024)
def _class_of(kind: Any) -> str:
    if kind in Error or kind is Token:
        return ""
    return next((css_class for parent, css_class in _CLASSES if kind in parent), "")


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    if language not in LANGUAGES:
        return None
    if language in _OWN:
        return _OWN[language](stripnl=False, ensurenl=False)
    try:
        # Keep every character: copied text must equal the stored text.
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
