"""A mail server on loopback. It implements the part of SMTP that smtplib uses, keeps all mails, and refuses on demand.

May import the standard library.
"""

from __future__ import annotations

import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any


@dataclass
class Inbox:
    """The received mails, and the behaviour of the server."""

    port: int = 0
    #: Each recipient with the received message.
    mails: list[tuple[str, EmailMessage]] = field(default_factory=list)
    #: Refused recipients, with the server's response.
    refused: dict[str, str] = field(default_factory=dict)
    #: The greeting.
    greeting: str = "220 mail.test"
    #: Number of times that the server accepts a mail and then disconnects without a response, as if it had crashed.
    silent: int = 0
    connections: int = 0

    def of(self, recipient: str) -> list[EmailMessage]:
        return [mail for to, mail in self.mails if to == recipient]

    @property
    def recipients(self) -> list[str]:
        return sorted(to for to, _ in self.mails)


class _Conversation(socketserver.StreamRequestHandler):
    timeout = 30

    def handle(self) -> None:
        inbox: Inbox = self.server.inbox  # type: ignore[attr-defined]
        inbox.connections += 1
        self.say(inbox.greeting)
        recipients: list[str] = []
        for line in iter(self.rfile.readline, b""):
            verb, _, rest = line.decode().strip().partition(" ")
            match verb.upper():
                case "EHLO" | "HELO":
                    self.say("250 mail.test")
                case "RCPT":
                    to = rest.partition("<")[2].partition(">")[0]
                    answer = inbox.refused.get(to, "250 ok")
                    if answer.startswith("250"):
                        recipients.append(to)
                    self.say(answer)
                case "DATA":
                    self.say("354 go on")
                    message = self.message()
                    inbox.mails += [(to, message) for to in recipients]
                    recipients = []
                    if inbox.silent:
                        inbox.silent -= 1
                        return
                    self.say("250 taken")
                case "QUIT":
                    self.say("221 bye")
                    return
                case _:
                    self.say("250 ok")

    def message(self) -> EmailMessage:
        lines = []
        for line in iter(self.rfile.readline, b""):
            if line == b".\r\n":
                break
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        parsed: Any = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        found: EmailMessage = parsed
        return found

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    inbox: Inbox


@contextmanager
def mail_server(**behaviour: Any) -> Iterator[Inbox]:
    with _Server(("127.0.0.1", 0), _Conversation) as server:
        server.inbox = inbox = Inbox(port=server.server_address[1], **behaviour)
        thread = threading.Thread(target=server.serve_forever, name="smtp")
        thread.start()
        try:
            yield inbox
        finally:
            server.shutdown()
            thread.join()
