"""Request bodies that are refused as JSON, by error code and status."""

from __future__ import annotations

import json

MIB = 1024 * 1024
REFUSED: dict[tuple[str, int], list[bytes]] = {
    ("invalid_utf8", 400): [b"\xff\xfe", b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'["\xe2\x82"]'],
    ("invalid_json", 400): [
        *(b"\xef\xbb\xbf{}", "[1]".encode("utf-16-be"), b"", b" ", b"{", b"[1,]", b"{} {}", b"{a: 1}", b"{'a': 1}"),
        *(b"01", b"[1 2]", b"// x\n1", b'"a\nb"', rb'"\x41"', rb'"\u12"', b"+1", b".5", b"1.", b"True", b"undefined"),
        *(b'"', b"]", b'\\"[[[', b'{"a"}', b"-"),
    ],
    ("json_too_deep", 400): [
        *(b"[" * 65 + b"]" * 65, b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' * 65 + b"1" + b"}" * 65),
    ],
    ("json_too_complex", 413): [
        *(b"[" + b"0," * 60_000 + b"0]", b"[" + b"[]," * 50_000 + b"0]"),
        *(json.dumps(dict.fromkeys(map(str, range(count)))).encode() for count in (100_000, 1_001)),
    ],
    ("non_finite_number", 400): [b"NaN", b"[Infinity]", b'{"a": -Infinity}', b"1e400", b"-1e400"],
    ("number_out_of_range", 422): [b"9223372036854775808", b"-9223372036854775808", b"1" + b"0" * 30],
    ("number_out_of_range", 400): [b"1" * 4_301, b"0." + b"1" * 4_301],
    ("duplicate_key", 400): [b'{"a": 1, "a": 1}', rb'[{"a": {"b": 1, "\u0062": 2}}]'],
    ("string_too_long", 413): [b'"' + b"x" * 200_001 + b'"'],
    ("key_too_long", 413): [b'{"' + b"k" * 257 + b'": 1}'],
}
