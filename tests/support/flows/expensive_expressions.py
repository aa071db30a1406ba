"""Expressions in a flow definition that run for hours without a limit."""

from __future__ import annotations

from typing import Any

LONG = "x" * 150_000
ROWS = [{"id": n, "name": f"name {n}"} for n in range(2_000)]
#: A thousand references to the same value.
MANY = "|".join([f"[{','.join(['@'] * 10)}][]"] * 3)
SCOPE: Any = {"inputs": {"rows": ROWS, "text": LONG, "same": [ROWS, [dict(row) for row in ROWS]]}}
#: Each takes from seconds to hours without a limit. None is longer than 200 characters.
EXPENSIVE = [
    f"inputs.rows|{MANY}|[?id > `5` && name != 'x' && contains(name, 'n')].name | length(@) > `3`",
    f"[inputs.text]|{MANY}|[*].reverse(@)|[*].reverse(@)|length(@)",
    f"[inputs.rows]|{MANY}|[*].to_string(@)|length(@)",
    f"[inputs.rows]|{MANY}|[*].sort_by(@, &name)|length(@)",
    f"[{{a: inputs.same}}]|{MANY}|[?a[0] == a[1]]|length(@)",
    f"[{{a: inputs.same}}]|{MANY}|[?contains(a, a[1])]|length(@)",
    f"[inputs.same[0]]|{MANY}|[*].contains(@, `{{}}`)|length(@)",
    f"[inputs.rows]|{MANY}|[*].map(&merge(@, @, @), @)|length(@)",
    f"[inputs.rows]|{MANY}|[*][::2]|length(@)",
    f"[inputs.rows]|{MANY}|[*].map(&keys(@), @)|length(@)",
    f"[inputs.rows[*].name]|{MANY}|[*].join(', ', @)|[*].to_number(@)|length(@)",
]
