"""Clients that a daemon must withstand: many, slow, or without an end. Used by scripts/api-load.

Usage: api-clients.py UID ADDRESS idle COUNT | slow COUNT | scrape COUNT EXPORTS

The clients run as user UID, without any group; 0 stays root. ADDRESS is HOST:PORT or the path of a Unix socket.
  idle    opens COUNT connections with no request or half a request, prints their number, and keeps all open
  slow    COUNT clients of each kind, a new client for each that is cut off: a header byte by byte, an answer that is never read,
          an answer read byte by byte; prints at the end the number that were cut off
  scrape  COUNT scrapes of /metrics at a time, until each has been answered with EXPORTS exports; prints the bytes of a scrape, and
          how often a scrape was cut off, as the machine is too slow for so many, and repeated
idle and slow go on until SIGTERM.
"""

import asyncio
import collections
import os
import resource
import select
import signal
import socket
import sys

SCRAPE = b"GET /metrics?histograms=all HTTP/1.1\r\nHost: localhost\r\n"
# Receive buffer of a slow client, bytes: so small that the daemon soon has to wait for the client.
SMALL_BUFFER = 4096
# Buffer for a part of an answer.
ROOM = bytearray(1 << 20)


def connection(address, receive_buffer=None):
    """A socket that connects to `address`, not connected yet."""
    host, _, port = address.rpartition(":")
    is_tcp = port.isdigit()
    stream = socket.socket(socket.AF_INET if is_tcp else socket.AF_UNIX)
    if receive_buffer:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    return stream, (host, int(port)) if is_tcp else address


def idle(address, count):
    held = []
    for number in range(count):
        stream, target = connection(address)
        stream.connect(target)
        try:
            stream.send([b"", b"GET /hea", SCRAPE][number % 3])
        except OSError:
            pass  # The daemon closed the connection to make room for a newer connection.
        held.append(stream)
    print(len(held), flush=True)
    while True:
        signal.pause()


async def connected(address, receive_buffer=None):
    loop = asyncio.get_running_loop()
    stream, target = connection(address, receive_buffer)
    stream.setblocking(False)
    await loop.sock_connect(stream, target)
    return stream


async def header_byte_by_byte(stream):
    loop = asyncio.get_running_loop()
    # Shorter than the longest header.
    for byte in SCRAPE + b"X-Slow: " + b"x" * 20_000:
        await loop.sock_sendall(stream, bytes([byte]))
        await asyncio.sleep(0.5)


async def answer_not_read(stream):
    # So many answers that no buffer takes them.
    await asyncio.get_running_loop().sock_sendall(stream, (SCRAPE + b"\r\n") * 64)
    # SO_ERROR reports a reset although nobody reads.
    while stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
        await asyncio.sleep(1)


async def answer_byte_by_byte(stream):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(stream, SCRAPE + b"\r\n")
    while await loop.sock_recv(stream, 1):
        await asyncio.sleep(0.5)


async def slow(address, count):
    cut_off = collections.Counter()

    async def again_and_again(kind):
        while True:
            try:
                stream = await connected(address, SMALL_BUFFER)
                with stream:
                    await kind(stream)
            except OSError:
                pass
            cut_off[kind.__name__] += 1
            await asyncio.sleep(0.1)

    kinds = [header_byte_by_byte, answer_not_read, answer_byte_by_byte]
    clients = [asyncio.ensure_future(again_and_again(kind)) for kind in kinds for _ in range(count)]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for client in clients:
        client.cancel()
    print(" ".join(f"{kind.__name__}={cut_off[kind.__name__]}" for kind in kinds), flush=True)


class Scrape:
    """A client that reads all of /metrics, and asks again when the daemon cuts it off for being slow."""

    def __init__(self, address, is_checked, exports):
        self.address, self.is_checked, self.exports = address, is_checked, exports
        self.cut_off = 0
        self.ask()

    def ask(self):
        self.stream, target = connection(self.address)
        self.stream.connect(target)
        self.stream.sendall(SCRAPE + b"Connection: close\r\n\r\n")
        self.stream.setblocking(False)
        self.head, self.body, self.size, self.taken = bytearray(), bytearray(), None, 0

    def take(self):
        """Reads a part of the answer. True when the answer is complete."""
        try:
            # MSG_TRUNC drops bytes that are not checked, without a copy: 100 answers of 5,000 exports are 3 GB.
            is_dropped = self.size is not None and not self.is_checked
            got = self.stream.recv_into(ROOM, 0, socket.MSG_TRUNC if is_dropped else 0)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            got = 0
        if got == 0:
            if self.size is None and self.head:
                raise SystemExit(f"a scrape was answered with: {bytes(self.head)!r}")
            self.stream.close()
            self.cut_off += 1
            self.ask()
            return False
        if self.size is None:
            self.head += ROOM[:got]
            head, end, body = bytes(self.head).partition(b"\r\n\r\n")
            if not end:
                return False
            lines = head.lower().split(b"\r\n")
            if not lines[0].startswith(b"http/1.1 200 "):
                raise SystemExit(f"a scrape was answered with: {lines[0]!r}")
            self.size = int(dict(line.split(b": ", 1) for line in lines[1:])[b"content-length"])
            self.body, self.taken = bytearray(body), len(body)
        else:
            self.taken += got
            if self.is_checked:
                self.body += ROOM[:got]
        if self.taken < self.size:
            return False
        shown = self.body.count(b"\nglidefs_export_size_bytes{")
        if self.taken > self.size or self.is_checked and shown != self.exports:
            raise SystemExit(f"a scrape of {self.size} bytes has {self.taken}, and shows {shown} exports of {self.exports}")
        self.stream.close()
        self.body = None
        return True


def scrape(address, count, exports):
    # The kernel of a Unix socket copies all, so all are checked.
    is_tcp = address.rpartition(":")[2].isdigit()
    clients = [Scrape(address, not is_tcp or number % 25 == 0, exports) for number in range(count)]
    left = list(clients)
    while left:
        ready = select.poll()
        for client in left:
            ready.register(client.stream, select.POLLIN)
        events = {descriptor for descriptor, _ in ready.poll()}
        # The first ones first: where the machine is too slow for all, some are answered in time, and then others.
        client = next(client for client in left if client.stream.fileno() in events)
        if client.take():
            left.remove(client)
    print(max(client.size for client in clients), sum(client.cut_off for client in clients), flush=True)


def main(user, address, verb, *numbers):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if user != "0":
        os.setgroups([])
        os.setresgid(int(user), int(user), int(user))
        os.setresuid(int(user), int(user), int(user))
    numbers = [int(number) for number in numbers]
    if verb == "idle":
        idle(address, *numbers)
    elif verb == "scrape":
        scrape(address, *numbers)
    else:
        asyncio.run(slow(address, *numbers))


main(*sys.argv[1:])
