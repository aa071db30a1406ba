"""What a person reads of a stored message."""

from __future__ import annotations

from typing import Any

#: The user turn of a resume without a message.
CONTINUE = "continue"


def text_of(content: dict[str, Any]) -> str:
    """What a person would read of a message; media are named, not shown."""
    texts: list[str] = []
    for part in content["parts"]:
        said = part.get("content") if part["part_kind"] != "thinking" else None
        for item in said if isinstance(said, list) else [said]:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, dict):
                texts.append(f"[{item.get('media_type') or item.get('kind', 'media')}]")
    return "\n".join(texts)
