"""Redaction: the share of masked secrets, the share of other masked texts, and the speed relative to encoding the same
text as JSON.

Secrets are generated in each known shape; other texts only look similar. Anything masked in recorded transcripts also
counts as a false positive. Uses no database.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from agentops.base.redaction.redact import BUILT_IN, Redactor
from agentops.base.redaction.text_stream import Stream
from agentops.base.redaction.token_formats import TokenFormat
from agentops.base.redaction.vendor_formats import FORMATS
from bench.report import Row, heading, note, rate, show
from bench.workspace import Workspace
from tests.support.ordinary import recorded_texts
from tests.support.redact_samples import FALSE, FRAMES, TRUE
from tests.support.token_samples import samples

#: S16 of the security requirements: minimum share of masked secrets, and maximum share of other masked texts.
RECALL, FALSE_POSITIVES = 0.99, 0.001
#: Tokens per vendor format.
SAMPLES = 200
MB = 1_000_000
#: Recorded transcripts outside the repository. Without them, their measurements are skipped.
RECORDINGS = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
#: Characters of a streamed piece.
PIECE = 200
_RANDOM = random.Random(7)
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64 at offset 0": lambda secret: base64.b64encode(secret.encode() + b"&x").decode(),
    "base64 at offset 1": lambda secret: base64.b64encode(b"u" + secret.encode() + b"&x").decode(),
    "base64 at offset 2": lambda secret: base64.b64encode(b"u:" + secret.encode() + b"&x").decode(),
    "percent-encoded": lambda secret: quote(secret, safe=""),
    "JSON-escaped": json.dumps,
    "JSON in JSON": lambda secret: json.dumps({"body": json.dumps({"secret": secret})}),
}


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("redaction: secrets masked, other texts changed, and throughput")
    _measure_known_shapes()
    _measure_formats()
    rules = _rules(100)
    _measure_rules(rules)
    texts = list(_transcripts(MB if quick or steps < 1000 else 8 * MB))
    _measure_transcripts(texts)
    redactors = {"no rules": BUILT_IN, "10 rules": _redactor(rules[:10]), "100 rules": _redactor(rules)}
    for name, redactor in redactors.items():
        _measure_speed(name, redactor, "\n".join(texts))


def _measure_known_shapes() -> None:
    masked = sum(secret not in BUILT_IN.clean_text(text)[0] for _, text, secret in TRUE)
    share = masked / len(TRUE)
    show(Row("secrets of known shapes masked", f"{masked} of {len(TRUE)}", "at least 99 %", share, at_least=RECALL))
    changed = sum(BUILT_IN.clean_text(text)[0] != text for text in FALSE)
    limit = "at most 1 %"
    show(Row("similar texts masked", f"{changed} of {len(FALSE)}", limit, changed / len(FALSE), at_most=0.01))


def _measure_formats() -> None:
    """Show the smallest share of masked tokens of any vendor's format, whole and without their surroundings."""
    shares = {}
    for form in FORMATS:
        texts, patterns = zip(*samples(form, _RANDOM, SAMPLES), strict=True)
        cleaned = BUILT_IN.clean_text("\n".join(texts))[0].split("\n")
        masked = sum(bool(re.fullmatch(pattern, text)) for pattern, text in zip(patterns, cleaned, strict=True))
        shares[form.prefix] = masked / SAMPLES
    worst = min(shares, key=shares.__getitem__)
    name = f"tokens of {len(FORMATS)} formats masked, least: {worst}"
    show(Row(name, f"{shares[worst]:.1%}", "at least 99 %", shares[worst], at_least=RECALL))


def _measure_rules(secrets: list[str]) -> None:
    """Show the share of masked registered secrets and tokens, whole and across the borders of pieces."""
    redactor = _redactor(secrets)
    for name, encode in ENCODINGS.items():
        texts = [(frame.format(encode(secret)), secret) for secret in secrets for frame in FRAMES]
        masked = sum("[REDACTED:rule_" in redactor.clean_text(text)[0] for text, _ in texts)
        share = masked / len(texts)
        show(Row(f"secrets of rules masked, {name}", f"{masked} of {len(texts)}", "all", share, at_least=1))
    texts = [frame.format(f"{secret} acme_{_word(20)}") for secret in secrets[:20] for frame in FRAMES]
    same = sum(_streamed(redactor, text, size) == redactor.clean_text(text)[0] for text in texts for size in (1, 5, 17))
    count = 3 * len(texts)
    show(Row("streams masked as whole texts are", f"{same} of {count}", "all", same / count, at_least=1))


def _measure_transcripts(texts: list[str]) -> None:
    size = sum(map(len, texts))
    kinds: Counter[str] = Counter()
    changed = 0
    for text in texts:
        spans = BUILT_IN.spans(text)
        changed += bool(spans)
        kinds.update(span.kind for span in spans)
    limit = "at most 0.1 %"
    share = changed / max(len(texts), 1)
    show(Row("texts of transcripts changed", f"{changed} of {len(texts)}", limit, share, at_most=FALSE_POSITIVES))
    note(
        f"{size / MB:.1f} MB; by kind: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common()) or 'none'}"
    )


def _measure_speed(name: str, redactor: Redactor, text: str) -> None:
    """Show the throughput of whole texts and of streams, relative to JSON encoding, which every stored text needs."""
    limit = _speed(text, lambda: json.dumps(text, ensure_ascii=False))
    whole = _speed(text, lambda: redactor.clean_text(text))
    short = text[: MB // 2]
    pieces = [short[at : at + PIECE] for at in range(0, len(short), PIECE)]
    streamed = _speed(short, lambda: _feed(redactor, pieces))
    other = f"JSON encoding, {rate(limit, 'MB/s')}"
    show(Row(f"whole texts, {name}", rate(whole, "MB/s"), other, whole / limit))
    show(Row(f"streamed in pieces of {PIECE}, {name}", rate(streamed, "MB/s"), other, streamed / limit))


def _speed(text: str, work: Callable[[], object]) -> float:
    """Return the megabytes per second of processor time, the best of three."""
    seconds = float("inf")
    for _ in range(3):
        began = time.process_time()
        work()
        seconds = min(seconds, time.process_time() - began)
    return len(text) / MB / max(seconds, 1e-9)


def _feed(redactor: Redactor, pieces: list[str]) -> str:
    stream = Stream(redactor)
    return "".join([*map(stream.feed, pieces), stream.flush()])


def _streamed(redactor: Redactor, text: str, size: int) -> str:
    return _feed(redactor, [text[at : at + size] for at in range(0, len(text), size)])


def _rules(count: int) -> list[str]:
    return [_word(_RANDOM.randint(8, 40)) + _RANDOM.choice(["", "/", "+x", '"', "ü"]) for _ in range(count)]


def _redactor(secrets: list[str]) -> Redactor:
    names = {secret: f"rule_{number}" for number, secret in enumerate(secrets)}
    return Redactor(names, tokens=[TokenFormat("rule_token", "acme_", "alnum", 16, 64)])


def _word(length: int) -> str:
    return "".join(_RANDOM.choices(string.ascii_letters + string.digits, k=length))


def _transcripts(size: int) -> Iterator[str]:
    """Yield the texts in recorded transcripts, up to `size` characters. Yield nothing without recordings."""
    for text in recorded_texts(RECORDINGS):
        yield text
        size -= len(text)
        if size <= 0:
            return
