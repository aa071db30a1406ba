"""Colour code with Pygments, in a few CSS classes, whose colours static/css/content.css sets.

Only the languages of LANGUAGES are coloured: no single step of their lexers takes long, which tests/runs/pages/content
checks.
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
#: Seconds after which the rest of a text is not coloured. With a hostile text, some lexers need a time that grows with
#: the square of its length. The time is checked between their tokens.
MAX_S = 0.25
#: Language, as Pygments names it → suffixes of its files. "c" stands for all languages with a similar syntax.
LANGUAGES = {
    "python": ("py", "pyi"),
    "javascript": ("js", "mjs", "cjs", "jsx"),
    "typescript": ("ts", "tsx", "mts"),
    "json": ("json", "jsonl", "ipynb"),
    "bash": ("sh", "bash", "zsh"),
    "html": ("html", "htm", "vue", "svelte"),
    "css": ("css",),
    "sql": ("sql",),
    "rust": ("rs",),
    "go": ("go",),
    "ruby": ("rb",),
    "php": ("php",),
    "yaml": ("yaml", "yml"),
    "toml": ("toml",),
    "ini": ("ini", "cfg", "conf"),
    "xml": ("xml", "svg"),
    "docker": ("dockerfile",),
    "diff": ("diff", "patch"),
    "c": ("c", "h", "cc", "cpp", "hpp", "cxx", "java", "cs", "kt", "kts", "swift", "scala", "dart", "m"),
}
_BY_SUFFIX = {suffix: language for language, suffixes in LANGUAGES.items() for suffix in suffixes}
#: Language → other names that people give it after the fence of a code block.
_ALIASES = {
    "python": ("py", "python3"),
    "javascript": ("js", "jsx"),
    "typescript": ("ts", "tsx"),
    "json": ("jsonc", "json5"),
    "bash": ("sh", "shell", "zsh", "console"),
    "rust": ("rs",),
    "go": ("golang",),
    "ruby": ("rb",),
    "yaml": ("yml",),
    "xml": ("svg",),
    "docker": ("dockerfile",),
    "diff": ("patch",),
    "c": ("c++", "cpp", "c#", "cs", "csharp", "java", "kotlin", "swift", "scala", "dart", "objective-c"),
}
_BY_ALIAS = {alias: language for language, aliases in _ALIASES.items() for alias in aliases}
#: Keywords and types of C and similar languages.
_C_KEYWORDS = (
    "abstract and as async await break case catch class const constexpr continue default defer delete do else enum "
    "export extends extern extension false final finally for foreach fun func goto guard if implements import in init "
    "inline instanceof interface internal is let namespace new nil null nullptr object or operator out override "
    "package private protected protocol public readonly record ref return sealed self sizeof static struct super "
    "switch template this throw throws trait true try typedef typename union using val var virtual volatile when "
    "where while yield"
)
_C_TYPES = (
    "auto bool boolean byte char decimal double float int int32_t int64_t long short signed size_t string uint uint8_t "
    "uint32_t uint64_t unsigned void Bool Boolean Double Float Int Integer List Long Map Object Set String Unit"
)
#: CSS class → types of tokens that have it. The first class that matches counts: `Keyword` includes `Keyword.Type`.
_CLASSES = {
    "hl-c": (Comment,),
    "hl-s": (String,),
    "hl-n": (Number,),
    "hl-t": (Keyword.Type, Name.Builtin, Name.Exception),
    "hl-k": (Keyword, Operator.Word, Name.Tag, Generic.Heading, Generic.Subheading),
    "hl-f": (Name.Function, Name.Class, Name.Decorator, Name.Attribute),
    "hl-i": (Generic.Inserted,),
    "hl-d": (Generic.Deleted,),
}
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
            (words(_C_KEYWORDS.split(), prefix=r"\b", suffix=r"\b"), Keyword),
            (words(_C_TYPES.split(), prefix=r"\b", suffix=r"\b"), Keyword.Type),
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


#: Languages with a lexer of this module.
_OWN = {"c": _CLikeLexer, "diff": _LineLexer}


def language_of(path: str) -> str:
    """Return the language of a file by its name; empty if it is not known."""
    name = path.replace("\\", "/").rpartition("/")[2].lower()
    return _BY_SUFFIX.get(name.rpartition(".")[2], "")


def coloured(text: str, language: str) -> str:
    """Return `text` as escaped HTML with a span for each coloured token. The caller passes it to `markup.sanitised`."""
    lexer = _lexer(_BY_ALIAS.get(language.lower(), language.lower()))
    if lexer is None or len(text) > MAX_COLOURED:
        return escape(text, quote=False)
    return "".join(_spans(lexer, text))


def coloured_file(text: str, language: str) -> str:
    """Return the HTML of a file like `coloured`. Line numbers that a tool has added are not part of the code."""
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


def colour_pieces(text: str, language: str) -> list[list[tuple[str, str]]]:
    """Return the lines of `text` in pieces: the CSS class of each piece, which may be empty, and its text."""
    lines: list[list[tuple[str, str]]] = [[]]
    lexer = _lexer(language) if len(text) <= MAX_COLOURED else None
    tokens = _tokens(lexer, text) if lexer is not None else iter([(Token, text)])
    for kind, value in tokens:
        first, *others = value.split("\n")
        lines[-1].append((_class_of(kind), first))
        lines += [[(_class_of(kind), other)] for other in others]
    return lines


def _tokens(lexer: Lexer, text: str) -> Iterator[tuple[Any, str]]:
    """Yield the types and texts of tokens. After MAX_S seconds, yield the rest of the text as one token."""
    end = time.monotonic() + MAX_S
    for number, (at, kind, value) in enumerate(lexer.get_tokens_unprocessed(text)):
        if number % 16 == 0 and time.monotonic() > end:
            yield Token, text[at:]
            return
        yield kind, value


def _spans(lexer: Lexer, text: str) -> Iterator[str]:
    """Yield the HTML of a text. A span never contains a line break, see `coloured_file`."""
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
    """Return the CSS class for a type of Pygments tokens; empty for plain text and for invalid code."""
    # `in` is also true for subtypes.
    if kind in Error or kind is Token:
        return ""
    return next((name for name, parents in _CLASSES.items() if any(kind in parent for parent in parents)), "")


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    """Return the lexer of a language of LANGUAGES; None for another language."""
    if language not in LANGUAGES:
        return None
    if language in _OWN:
        return _OWN[language](stripnl=False, ensurenl=False)
    try:
        # Keep every character: copied text must equal the stored text.
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
