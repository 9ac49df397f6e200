"""Ports of this machine that never answer, until a test lets them forward to a real server."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Self
from urllib.parse import urlsplit


class Port:
    """A port that hangs or forwards to a real server. It counts its connections."""

    def __init__(self, target: str = "") -> None:
        self.target = urlsplit(target)
        self.connections = 0
        self.leads_on = False
        self._stopping = threading.Event()
        self._held: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, name="port")]

    def url(self, scheme: str = "") -> str:
        user = f"{self.target.username}:{self.target.password}@" if self.target.username else ""
        scheme = scheme or self.target.scheme
        return f"{scheme}://{user}127.0.0.1:{self._listener.getsockname()[1]}{self.target.path}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self.break_off()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def break_off(self) -> None:
        """Close every connection, like a server that restarts."""
        for held in self._held:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            client, _ = self._listener.accept()
            self.connections += 1
            self._held.append(client)
            work = self._lead_on if self.leads_on else self._hang
            thread = threading.Thread(target=work, args=(client,), name="port")
            self._threads.append(thread)
            thread.start()

    def _hang(self, client: socket.socket) -> None:
        self._stopping.wait()
        client.close()

    def _lead_on(self, client: socket.socket) -> None:
        with client, socket.create_connection((self.target.hostname, self.target.port)) as server:
            while not self._stopping.is_set():
                for source in select.select([client, server], [], [], 0.05)[0]:
                    try:
                        data = source.recv(65536)
                        (server if source is client else client).sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        return
