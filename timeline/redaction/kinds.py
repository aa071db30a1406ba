"""The kinds of secrets that are recognized without a rule of a project."""

from __future__ import annotations

from timeline.redaction import secret_commands, secret_names, secret_shapes
from timeline.redaction.registered_secrets import SECRET
from timeline.redaction.token_shapes import TOKEN_SHAPES

#: Recognized by what stands before the value: a name, a header or a command.
BY_PLACE = frozenset(
    {*secret_names.KINDS, *secret_commands.KINDS, "authorization", "basic", "bearer", "url_password", SECRET}
)
BUILT_IN_KINDS = BY_PLACE | secret_shapes.KINDS | {kind for kind, *_ in TOKEN_SHAPES}
#: No project may switch these off: an API key of this site opens this site.
ALWAYS_MASKED = frozenset({"agentops_key"})
