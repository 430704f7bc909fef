"""A TCP proxy before ClickHouse's HTTP port that does harm to chosen INSERTs at the socket.

It reads HTTP only as far as it must to know where a message ends. Each INSERT takes the next fault of a queue, be it
the client's own repetition of one; with none planned, and for all other requests, it only passes on.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Queue
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import BinaryIO

from tests.rig.endpoint import Endpoint
from tests.rig.ports import HOST

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: close() sends RST instead of FIN."""
SERVER_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Exchange:
    """One request, its client, and the server's address."""

    request: bytes
    client: socket.socket
    reader: BinaryIO
    server: tuple[str, int]

    def forward(self) -> bytes:
        """Send the request to the server; its whole answer."""
        with (
            socket.create_connection(self.server, SERVER_TIMEOUT_SECONDS) as upstream,
            upstream.makefile("rb") as answer,
        ):
            upstream.sendall(self.request)
            return read_message(answer)

    def answer(self, answer: bytes) -> None:
        """Send an answer to the client."""
        self.client.sendall(answer)

    def reset(self) -> None:
        """Reset the client's connection."""
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        self.reader.close()  # it shares the descriptor, which would stay open
        self.client.close()

    def outlast(self) -> None:
        """Wait until the client hangs up."""
        with suppress(ConnectionError):
            self.reader.read(1)


Fault = Callable[[Exchange], None]


def passed(exchange: Exchange) -> None:
    """No harm."""
    exchange.answer(exchange.forward())


def refused(exchange: Exchange) -> None:
    """The server never sees it; the client's connection is reset."""
    exchange.reset()


def lost(exchange: Exchange) -> None:
    """The server did it, but the client's connection is reset before the answer."""
    exchange.forward()
    exchange.reset()


def unanswered(exchange: Exchange) -> None:
    """The server did it; the client waits for the answer until it gives up."""
    exchange.forward()
    exchange.outlast()


def doubled(exchange: Exchange) -> None:
    """The server does it twice."""
    exchange.forward()
    exchange.answer(exchange.forward())


def unavailable(exchange: Exchange) -> None:
    """The server never sees it; a load balancer says 503."""
    exchange.answer(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 19\r\n\r\nno healthy upstream")


def refusing(code: int) -> Fault:
    """The server never sees it, and seems to answer with an error."""

    def fault(exchange: Exchange) -> None:
        body = f"Code: {code}. DB::Exception: not now. (SOME_NAME) (version 26)".encode()
        head = f"X-ClickHouse-Exception-Code: {code}\r\nContent-Length: {len(body)}\r\n\r\n"
        exchange.answer(b"HTTP/1.1 500 Error\r\n" + head.encode() + body)

    return fault


def delayed(seconds: float) -> Fault:
    """The server gets it so many seconds later; the client waits."""

    def fault(exchange: Exchange) -> None:
        time.sleep(seconds)
        passed(exchange)

    return fault


def late(seconds: float) -> Fault:
    """The client's connection is reset; so many seconds later the server gets it all the same."""

    def fault(exchange: Exchange) -> None:
        exchange.reset()
        time.sleep(seconds)
        exchange.forward()

    return fault


def held(seconds: float) -> Fault:
    """The client waits for the answer until it gives up; so many seconds later the server gets it all the same."""

    def fault(exchange: Exchange) -> None:
        exchange.outlast()
        time.sleep(seconds)
        exchange.forward()

    return fault


class Proxy:
    """What listens, and the faults to come."""

    def __init__(self, server: Endpoint) -> None:
        """Aim at a server; `serving` makes it listen."""
        self.server = (server.host, server.http_port)
        self.harmed: tuple[bytes, ...] = (b"INSERT",)
        self.inserts = 0
        self.requests: list[bytes] = []
        self.wakes_up_after_seconds = 0.0
        self._faults: Queue[Fault] = Queue()

    def plan(self, *faults: Fault) -> None:
        """What will be done to the next INSERTs, one fault each."""
        for fault in faults:
            self._faults.put(fault)

    def finish(self) -> None:
        """Wait until every planned fault was used, and whatever is late has landed."""
        self._faults.join()

    def serve(self, client: socket.socket) -> None:
        """Serve one client's connection until one side ends it."""
        with client.makefile("rb") as reader, suppress(OSError):
            while not reader.closed and (request := read_message(reader)):
                self._handle(Exchange(request, client, reader, self.server))

    def _handle(self, exchange: Exchange) -> None:
        time.sleep(self.wakes_up_after_seconds)
        self.wakes_up_after_seconds = 0.0
        self.requests.append(exchange.request)
        if not any(verb in exchange.request for verb in self.harmed):
            return passed(exchange)
        self.inserts += 1
        try:
            fault = self._faults.get_nowait()
        except Empty:
            return passed(exchange)
        try:
            fault(exchange)
        finally:
            self._faults.task_done()
        return None


@contextmanager
def serving(server: Endpoint, tls: ssl.SSLContext | None = None) -> Iterator[tuple[Proxy, Endpoint]]:
    """A proxy before a server, and where clients find it; with a context they have to speak TLS."""
    proxy = Proxy(server)

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            # a client that does not like the certificate hangs up
            with suppress(OSError), tls.wrap_socket(self.request, server_side=True) if tls else self.request as client:
                proxy.serve(client)

    with ThreadingTCPServer((HOST, 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy, Endpoint(HOST, listener.server_address[1], server.tcp_port, server.users["admin"])
        finally:
            listener.shutdown()
            thread.join()


def read_message(reader: BinaryIO) -> bytes:
    """One HTTP request or response, as it came; empty at the end of the stream."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline()
        if not line:
            return b""
        head += line
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    if headers.get(b"transfer-encoding") == b"chunked":
        return head + _read_chunks(reader)
    return head + reader.read(int(headers.get(b"content-length", 0)))


def _read_chunks(reader: BinaryIO) -> bytes:
    chunks = b""
    while True:
        size = reader.readline()
        if not size:
            raise ConnectionResetError("The server went away in the middle of its answer")
        chunks += size + reader.read(int(size, 16) + len(b"\r\n"))
        if int(size, 16) == 0:
            return chunks
