"""The text of a stored message, as people read it."""

from __future__ import annotations

from typing import Any

#: The user message of a resume without a message.
CONTINUE = "continue"
#: Bytes of a message or a tool's output that its event repeats. The row holds the whole text.
SHORT_PREVIEW = 280


def text_of(content: dict[str, Any]) -> str:
    """Return the text of a message, without the model's thinking; media parts become placeholders."""
    texts: list[str] = []
    for part in content["parts"]:
        value = part.get("content") if part["part_kind"] != "thinking" else None
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, dict):
                texts.append(f"[{item.get('media_type') or item.get('kind', 'media')}]")
    return "\n".join(texts)
