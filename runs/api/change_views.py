"""The files that a run changed: `…/agent-runs/{run}/changes` and `…/changes.patch`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.base.refusals import Fault
from runs.api.base_views import ApiView
from runs.api.problems import InvalidParameters
from runs.api.requests.bodies import Choice
from runs.api.requests.pagination import LINK, InvalidCursor, object_of
from runs.api.requests.queries import Cursor, Limit, QuerySerializer, WholeParameter
from runs.changes.git_patch import patch_portions
from runs.changes.session_changes import FileChange, FileStatus, total
from runs.queries.json_lists import Key, Rows, RowSpan
from runs.queries.run_changes import LAST_MESSAGE, ChangeScope, RunChanges, change_json, changes_of

PATCH_TYPE = "text/x-diff; charset=utf-8"
#: The largest number of a step.
MAX_STEP = 2**31 - 1


class ScopeQuery(QuerySerializer):
    since = Choice(
        choices=[LAST_MESSAGE],
        required=False,
        help_text="`last_message`: only changes after the last message of a person.",
    )
    step = WholeParameter(1, MAX_STEP, required=False, help_text="Only the changes of this step.")


class ChangesQuery(ScopeQuery):
    limit, cursor = Limit(), Cursor()


_NUMBER = {"type": ["integer", "null"]}
_HUNK = object_of(
    {
        "old_start": _NUMBER | {"description": "First line in the old text. Null if it is not known."},
        "new_start": _NUMBER,
        "step": _NUMBER | {"description": "The step whose call says the hunk. Null if it compares whole texts."},
        "is_uncertain": {"type": "boolean", "description": "Whether the outcome of the call is unknown."},
        "lines": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Each with its sign: a space, `-` or `+`.",
        },
    }
)
_FILE = object_of(
    {
        "path": {"type": "string", "description": "Relative to the working directory, if it is below it."},
        "old_path": {"type": ["string", "null"], "description": "The earlier path of a renamed file."},
        "status": {
            "type": "string",
            "enum": [each.value for each in FileStatus],
            "description": "`written`: the whole file was written, and it is not known whether it existed. "
            "`unchanged`: its calls cancel each other out.",
        },
        "is_whole": {"type": "boolean", "description": "Whether the hunks compare the whole texts, with line numbers."},
        "additions": _NUMBER | {"description": "Added lines. Null if the number is not known."},
        "deletions": _NUMBER,
        "steps": {"type": "array", "items": {"type": "integer"}},
        "calls": {"type": "array", "items": {"type": "string", "format": "uuid"}},
        "notes": {"type": "array", "items": {"type": "string"}, "description": "What the diff may miss, as sentences."},
        "not_in_patch": {"type": "string", "description": "Why the patch lacks the file; empty if it has it."},
        "hunks": {"type": "array", "items": _HUNK},
    }
)
_CHANGES = object_of(
    {
        "next": LINK,
        "previous": LINK,
        "results": {"type": "array", "items": _FILE},
        "totals": object_of(
            {"files": {"type": "integer"}, "additions": {"type": "integer"}, "deletions": {"type": "integer"}}
        ),
        "directory": {"type": ["string", "null"], "description": "The working directory. Null if it is not known."},
        "is_cut": {"type": "boolean", "description": "Whether the run has more or longer edits than are read."},
        "without_effect": {"type": "integer", "description": "Edits that failed or were denied."},
    }
)


class _ScopedView(ApiView):
    """A view of the changes in the scope of its query."""

    def get_changes(self) -> RunChanges:
        query = self.query
        if "since" in query and "step" in query:
            raise InvalidParameters([Fault("?step", "invalid_filter", "step: it cannot be combined with since")])
        return changes_of(self.get_run(), ChangeScope(query.get("step"), "since" in query))


@extend_schema(responses={200: _CHANGES})
class FileChanges(_ScopedView):
    """List the files that a run changed, by path, with their diffs. Secrets are masked.

    They are derived from the calls of tools that edit files, and from `file.changed` events. What a shell command
    changes is not known unless the runner reports it.
    """

    query_class: ClassVar = ChangesQuery

    def get(self, request: Request, **_: Any) -> Response:
        run_changes = self.get_changes()
        files = self.paginate_queryset(lambda span: _rows(run_changes.files, span))
        additions, deletions = total(run_changes.files)
        response: Response = self.get_paginated_response([change_json(change) for change in files])
        response.data |= {
            "totals": {"files": len(run_changes.files), "additions": additions, "deletions": deletions},
            "directory": run_changes.directory or None,
            "is_cut": run_changes.is_cut,
            "without_effect": run_changes.without_effect,
        }
        return response


class FileChangesPatch(_ScopedView):
    """Get the changes of a run as a patch for `git apply`, with secrets masked.

    Files whose whole text is not known are not in it. Lines at its beginning, which start with `#`, name them.
    """

    query_class: ClassVar = ScopeQuery
    accepts_any_type = True

    @extend_schema(responses={(200, PATCH_TYPE): OpenApiResponse(OpenApiTypes.STR, "The patch.")})
    def get(self, request: Request, **_: Any) -> HttpResponse:
        text = "".join(patch_portions(self.get_changes().files))
        return self.etag_response(text, PATCH_TYPE)


def _rows(files: Sequence[FileChange], span: RowSpan) -> Rows:
    """Return the files of a page. A position is the digest of a path: a path may be longer than a cursor."""
    names = [hashlib.sha256(one.path.encode(errors="replace")).hexdigest()[:32] for one in files]
    start, end = 0, len(files)
    if span.position:
        if span.position[0] not in names:
            raise InvalidCursor
        at = names.index(span.position[0])
        start, end = (0, at + span.inclusive) if span.backward else (at + (not span.inclusive), end)
    chosen = list(range(start, end))
    chosen = (chosen[::-1] if span.backward else chosen)[: span.limit]
    return Rows([files[at] for at in chosen], [(names[at],) for at in chosen], [Key("path", to_cursor=str)])
