"""What links between the hosts of hosts.py do beside being cut: they lose frames of one direction or some of both, by rules of
nftables, or bring all of them late, by a relay. Everything happens in the network namespace of the switch.

    links = Links(cluster)
    links.deafen("v1")     # nothing goes out at this cable of the switch any more: its host hears nobody
    links.slow("v2")       # frames lie with the relay for a while, both ways
    links.fast("v2")
"""
import ctypes
import fcntl
import heapq
import itertools
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

LOST_PERCENT = 5
DELAY_MS = 30
# The frames of a deed at a cable, in the words of nft. What is sent to its host leaves the bridge there.
DROPS = {"deafen": ['oifname "{}" drop'], "mute": ['iifname "{}" drop'],
         "spoil": [f'{direction} "{{}}" numgen random mod 100 < {LOST_PERCENT} drop' for direction in ("iifname", "oifname")]}
TABLE = "bridge links"


def why_not(cluster):
    """Why the links of this machine do only what they should; None when they can do otherwise."""
    if shutil.which("nft") is None:
        return "nft is not installed (tools/bootstrap installs the package nftables)"
    try:
        links = Links(cluster)
        links.spoil("none")
        links.clean("none")
        return None
    except AssertionError as error:
        return f"rules for frames of a bridge are not permitted: {error}"


class Links:
    def __init__(self, cluster):
        self.cluster = cluster
        self.drops = {}   # {cable: deed}
        self.relays = {}  # {cable: process}

    # Frames that are lost

    def deafen(self, cable):
        self.drop(cable, "deafen")

    def mute(self, cable):
        self.drop(cable, "mute")

    def spoil(self, cable):
        self.drop(cable, "spoil")

    def clean(self, cable):
        self.drop(cable, None)

    def drop(self, cable, deed):
        self.drops[cable] = deed
        rules = [rule.format(each) for each, made in self.drops.items() if made for rule in DROPS[made]]
        chain = "type filter hook forward priority 0;\n" + "\n".join(rules)
        # All at once: the table that is deleted has to be there.
        text = f"add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\nchain forward {{\n{chain}\n}}\n}}\n"
        done = subprocess.run([*self.cluster.enter_switch(), "nft", "-f", "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"nft: {done.stderr.strip()}")

    # Frames that come late

    def slow(self, cable):
        """Takes the cable out of the bridge and puts a pair of its own in: what comes at the far end of the one is sent at the other."""
        near, far = f"{cable}near", f"{cable}far"
        in_switch = self.cluster.in_switch
        in_switch("ip", "link", "set", cable, "nomaster")
        in_switch("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        for each in (near, far):
            in_switch("ip", "link", "set", each, "up")
        in_switch(sys.executable, __file__, "plain", near)  # where frames of the others leave the bridge
        # A host that speaks to the relay sends whole frames, too.
        host = next(host for host in self.cluster.hosts.values() if host.cable == cable)
        subprocess.run([*host.enter(), sys.executable, __file__, "plain", "e0"], check=True)
        words = ["setpriv", "--pdeathsig", "KILL", *self.cluster.enter_switch(), sys.executable, __file__, "relay", cable, far,
                 str(DELAY_MS)]
        relay = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.cluster.log)
        self.relays[cable] = relay
        if relay.stdout.readline() != b"ready\n":
            raise AssertionError(f"no relay: {self.cluster.log_text()}")
        in_switch("ip", "link", "set", near, "master", "bridge")

    def fast(self, cable):
        self.end_relay(cable)
        self.cluster.in_switch("ip", "link", "delete", f"{cable}near")
        self.cluster.in_switch("ip", "link", "set", cable, "master", "bridge")

    def end_relay(self, cable):
        relay = self.relays.pop(cable)
        relay.kill()
        relay.wait()
        relay.stdout.close()

    def close(self):
        for cable in list(self.relays):
            self.end_relay(cable)


# What runs in the switch or on a host. Cards of virtual cables leave checksums to whoever gets a frame, and frames are as large as
# they like: a relay that reads and writes them wants them as they would be on a wire.

SIOCETHTOOL = 0x8946
CHECKSUMS, SEGMENTS, GENERIC_SEGMENTS = 0x17, 0x1F, 0x24  # ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO
ALL_FRAMES = 0x0003
FRAME_BYTES = 65536
QUEUE_BYTES = 8 << 20
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32


def plain_main(card):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        for feature in (CHECKSUMS, SEGMENTS, GENERIC_SEGMENTS):
            value = ctypes.create_string_buffer(struct.pack("II", feature, 0))
            fcntl.ioctl(door, SIOCETHTOOL, struct.pack("16sP", card.encode(), ctypes.addressof(value)))


def open_card(card):
    door = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
    door.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, QUEUE_BYTES)
    door.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, QUEUE_BYTES)
    door.bind((card, 0))
    door.setblocking(False)
    return door


def relay_main(one, other, delay_ms):
    """Frames of each card go out at the other one so much later, in their order."""
    doors = [open_card(one), open_card(other)]
    others = {doors[0]: doors[1], doors[1]: doors[0]}
    number = itertools.count()
    waiting = []
    print("ready", flush=True)
    while True:
        timeout_s = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
        for door in select.select(doors, [], [], timeout_s)[0]:
            try:
                frame, (_, _, kind, *_) = door.recvfrom(FRAME_BYTES)
            except BlockingIOError:
                continue
            if kind != socket.PACKET_OUTGOING:  # what it sends itself is seen, too
                heapq.heappush(waiting, (time.monotonic() + delay_ms / 1e3, next(number), others[door], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, door, frame = heapq.heappop(waiting)
            try:
                door.send(frame)
            except OSError:
                pass  # the card is down, or its queue full: a wire would lose the frame, too


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1] == "plain":
        plain_main(sys.argv[2])
    else:
        relay_main(sys.argv[2], sys.argv[3], float(sys.argv[4]))
