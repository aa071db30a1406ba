"""The kinds of secrets that are recognized without a rule of a project."""

from __future__ import annotations

from agentops.base.redaction import secret_commands, secret_names, secret_shapes, secret_statements, secret_urls
from agentops.base.redaction.registered_secrets import SECRET

#: Recognized by what stands before the value: a name, a header, a command, a statement or an address.
BY_PLACE = frozenset(
    {*secret_names.KINDS, *secret_commands.KINDS, *secret_statements.KINDS, *secret_urls.KINDS}
    | {"authorization", "basic", "bearer", "url_password", SECRET}
)
BUILT_IN_KINDS = BY_PLACE | secret_shapes.KINDS
#: No project may switch these off: an API key of this site opens this site.
ALWAYS_MASKED = frozenset({"agentops_key"})
