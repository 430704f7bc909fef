"""Ports for the servers of the tests."""

import random
import socket
from itertools import islice

HOST = "127.0.0.1"
PORTS = range(20000, 32000)


def free_ports(count: int) -> list[int]:
    """Return ports that are free now and that stay so while a server restarts.

    They lie below 32768, where Linux starts to take ports for outgoing connections: one of those could get the port
    of a server that is down for a moment. The system's randomness, as tests and workers may seed the other.
    """
    candidates = random.SystemRandom().sample(PORTS, len(PORTS))
    return list(islice(filter(is_free, candidates), count))


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
