#!/usr/bin/env python3
"""s2_flood.py ADDRESS[:PORT,...]...: a stranger at ports of these hosts, or at every open one, until it is ended.

Holds as many connections to each port as it can, and says on them nothing, or what guards, replicas and browsers might say; those
that are closed are opened again. Prints a line with the number of ports once it has begun, and one with the number of connections
that it had, at its end (SIGTERM).
"""
import os
import random
import selectors
import signal
import socket
import sys

PORTS = range(1024, 65536)
AT_ONCE = 150          # connections to a port
SAYINGS = [b"", b"GET / HTTP/1.1\r\n\r\n", b"HFSEAL01", b"HFSEAL01" + bytes(32), b"HFREPLIC" + bytes(88), b"\xff" * 4096]


def open_ports(address):
    """By connecting to each, many at a time."""
    found, waiting = [], set()
    selector = selectors.DefaultSelector()
    ports = iter(PORTS)
    while True:
        while len(waiting) < 400 and (port := next(ports, None)) is not None:
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex((address, port))
            selector.register(caller, selectors.EVENT_WRITE, port)
            waiting.add(port)
        if not waiting:
            return found
        for key, _ in selector.select(0.2):
            if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.append(key.data)
            waiting.discard(key.data)
            selector.unregister(key.fileobj)
            key.fileobj.close()


class Flood:
    def __init__(self, places):
        self.targets, self.held, self.count = [], [], 0
        for place in places:
            address, _, ports = place.partition(":")
            found = [int(port) for port in ports.split(",")] if ports else open_ports(address)
            self.targets += [(address, port) for port in found]

    def call(self, target):
        caller = socket.socket()
        caller.settimeout(0.2)
        try:
            caller.connect(target)
            caller.sendall(random.choice(SAYINGS))
        except OSError:
            caller.close()
            return
        self.count += 1
        self.held.append(caller)
        if len(self.held) > AT_ONCE * len(self.targets):
            self.held.pop(0).close()

    def run(self):
        print(f"{len(self.targets)} ports", flush=True)
        while True:
            for target in self.targets:
                self.call(target)


def main():
    flood = Flood(sys.argv[1:])

    def end(*_):
        print(f"{flood.count} connections", flush=True)
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    flood.run()


if __name__ == "__main__":
    main()
