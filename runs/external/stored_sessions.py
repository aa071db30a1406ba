"""Shows the transcripts that claude-agent-sdk stores on this site as runs, as `agentops watch` shows session files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from agentops.accounts.models import Project
from runs.external.followed_file import FollowedFile
from runs.external.importers.base import ImportRefused, NothingToImport
from runs.external.importers.claude_code_sessions import ENDING
from runs.external.watch_sinks import LocalSink, SinkRefused, SinkUnavailable
from runs.models import ClaudeTranscript

log = logging.getLogger("agentops.runs")

#: Entries of a transcript that is read again with each append. A longer one is read at the end of each turn.
MANY_ENTRIES = 2_000
#: The type of the entries that describe a sub-agent: the content of the file next to its transcript.
_METADATA = "agent_metadata"
#: How an answer ends that requests no tool.
_ENDS = ("end_turn", "stop_sequence", "max_tokens", "refusal")


def show(project: Project, transcript: ClaudeTranscript, *, by: str) -> None:
    """Store the new events of a transcript in its run, which is created if necessary. Raises nothing.

    The run waits after an answer that ends a turn. What cannot be imported is left out, and logged.
    """
    newest = _newest(transcript)
    ends_turn = _ends_turn(newest)
    if transcript.last_position > MANY_ENTRIES and not ends_turn:
        return
    try:
        with TemporaryDirectory(prefix="agentops-session-") as folder:
            file = FollowedFile(_written(transcript, Path(folder)), LocalSink(project, by=by), quiet_s=0.0)
            file.advance()
            if ends_turn:
                file.not_before = 0.0
                file.advance()
    except NothingToImport:
        return  # it has no messages yet
    except (ImportRefused, SinkRefused, SinkUnavailable) as error:
        facts = {"session_id": transcript.session_id, "error": str(error)}
        log.warning("a stored session is not shown as a run", extra=facts)
    except Exception:
        # The transcript is stored: its program must not notice.
        log.exception("a stored session is not shown as a run", extra={"session_id": transcript.session_id})


def _written(transcript: ClaudeTranscript, folder: Path) -> Path:
    """Write a transcript to a file as the program does, and return the path."""
    place = folder / (transcript.subpath or transcript.session_id)
    path = folder / f"{Path(place.name).name}.jsonl"
    about = None
    with path.open("w") as file:
        for text in transcript.entries.order_by("position").values_list("content", flat=True).iterator(chunk_size=200):
            if transcript.subpath and f'"{_METADATA}"' in text and (entry := json.loads(text)).get("type") == _METADATA:
                about = entry
            else:
                file.write(f"{text}\n")
    if about is not None:
        path.with_name(path.stem + ENDING).write_text(json.dumps(about))
    return path


def _newest(transcript: ClaudeTranscript) -> str:
    """Return the newest entry with a message."""
    texts = transcript.entries.order_by("-position").values_list("content", flat=True)[:20]
    return next((text for text in texts if '"message"' in text), "{}")


def _ends_turn(entry: str) -> bool:
    """Return whether an entry is an answer after which the program waits for a person."""
    message = json.loads(entry).get("message")
    return isinstance(message, dict) and message.get("role") == "assistant" and message.get("stop_reason") in _ENDS
