"""The site: its settings and entry points, and what all apps share, such as projects, HTTP and redaction."""

#: Distinguishes this package from the one that another project publishes under the name `agentops`. The client refuses
#: to run beside that one.
IS_SITE = True
