"""Attacks through sockets: file-based, abstract and network sockets."""

from __future__ import annotations

import socket
from contextlib import suppress
from types import SimpleNamespace

from tests.support.sandbox.attacks import attack


def connected(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        return client.recv(7) == b"outside"


@attack
def socket_in_a_directory_outside(facts: SimpleNamespace) -> bool:
    return connected(f"{facts.outside}/socket")


@attack
def socket_of_a_home(facts: SimpleNamespace) -> bool:
    return connected(f"{facts.outside}/home/.agent/S.agent")


@attack
def socket_below_the_root(facts: SimpleNamespace) -> bool:
    return connected("server.socket")


@attack
def abstract_socket(facts: SimpleNamespace) -> bool:
    return connected(f"\0{facts.abstract}")


@attack
def tcp(facts: SimpleNamespace) -> bool:
    with socket.create_connection(("127.0.0.1", facts.tcp), 2) as client:
        return client.recv(7) == b"outside"


@attack
def udp(facts: SimpleNamespace) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.3)
        client.sendto(b"?", ("127.0.0.1", facts.udp))
        return client.recv(7) == b"outside"


@attack
def other_families(facts: SimpleNamespace) -> bool:
    """Open a socket of a family other than IPv4 and IPv6, or a pair of a family other than Unix."""
    for family in range(1, 46):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            if family not in (socket.AF_INET, socket.AF_INET6):
                with suppress(OSError):
                    socket.socket(family, kind).close()
                    return True
    return False
