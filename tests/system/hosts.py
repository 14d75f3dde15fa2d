"""Several hosts on one machine, for tests: each has a network, a name, processes, mounts and shared memory of its own (Linux
namespaces), and a cable to a switch that can be cut, or do less than it should (links.py). The file system is shared by all, as
that of a cluster is, but for one directory that is another one on each host (Cluster.local), as on a disk of its own.

    with harness.Scene() as scene, Cluster(3) as cluster:
        run = scene.run("straight")
        start = cluster.start(run, ["holdfast", "launch", "--host", cluster.host_list(2), ...])   # on the first host
        cluster.cut("n1")        # its cable: nobody is told
        cluster.lose("n2")       # its power: processes, network and shared memory

With `training_network=True` each host has a second card, e1, in a network of its own (TRAINING_NETWORK), for what the ranks
exchange. cut_pair() makes two hosts lose each other alone, in one network or the other. limit_cpu() and limit_disk() make a host slow
(control groups).

A host answers at a door of its own where others have sshd: door_main() serves it, and agent_main() is what mpirun and
`holdfast launch` call instead of ssh. As with ssh, what is called there gets nothing of the caller's environment.

Nothing of this outlives the process that made it, however that ends: each host hangs on a process that dies with it, and with
its processes a namespace goes.
"""
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import harness
import links

DOOR_PORT = 22
DOOR_PATIENCE_S = 5
NETWORK, TRAINING_NETWORK = "10.77.0", "10.78.0"
SHARED_MEMORY_MIB = 256
SHARED_MEMORY = Path("/dev/shm")
SENSORS = "sensors"  # a directory on the disk of each host: what /proc and /sys say there
VARIABLES = "variables.json"
TAKEN_MEMORY = SHARED_MEMORY / "taken"
PROGRAM_NAME = harness.PROGRAM.name
GROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid"]


def why_not():
    """Why this machine gives no hosts; None when it does."""
    for name in ("unshare", "nsenter", "ip", "setpriv", "mount"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    try:
        with Cluster(1) as cluster:
            return None if cluster.call("n0", "true").returncode == 0 else "a command on a host does not work"
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        return f"namespaces are not permitted: {error}"


def why_no_links():
    """Why links cannot do less than they should, where there are hosts; None when they can."""
    with Cluster(1) as cluster:
        return links.why_not(cluster)


class Limits:
    """Control groups of this process, of version 1 or 2, each with what a host may take of a processor or a disk."""

    def __init__(self):
        self.is_new = (GROUPS / "cgroup.controllers").exists()
        self.groups = []

    def put(self, host, controller, old, new):
        """Puts all processes of a host, and what they start, into a group with these files. Skips the test where that is not permitted."""
        group = (GROUPS if self.is_new else GROUPS / controller) / f"holdfast-{os.getpid()}-{controller}-{host.name}"
        try:
            if self.is_new:
                (GROUPS / "cgroup.subtree_control").write_text(f"+{'io' if controller == 'blkio' else controller}")
            group.mkdir()
            self.groups.append(group)
            for file, text in (new if self.is_new else old).items():
                (group / file).write_text(text)
            for pid in [host.root, *host.processes()]:
                (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            harness.skip(f"this machine permits no control group for {controller}: {error}")

    def close(self):
        for group in self.groups:
            harness.wait_until(lambda group=group: not (group / "cgroup.procs").read_text(), 5, lambda: False, f"{group} is in use", str)
            group.rmdir()


class Host:
    """One host that is up. Its processes hang on one, which here is `root`, and there has the number 1."""

    def __init__(self, cluster, index):
        self.cluster, self.index, self.name = cluster, index, f"n{index}"
        self.address = f"{NETWORK}.{index + 1}"
        ready, told = os.pipe()
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc",
                 sys.executable, __file__, "door", self.name, str(cluster.hosts_file), str(cluster.scratch),
                 str(cluster.shared_memory_mib), str(cluster.disk(self.name)), str(cluster.local), str(told)]
        self.holder = subprocess.Popen(words, pass_fds=[told], stdin=subprocess.DEVNULL,
                                       stdout=cluster.log, stderr=subprocess.STDOUT)
        os.close(told)
        with os.fdopen(ready) as pipe:
            if pipe.readline() != "ready\n":
                raise AssertionError(f"host {self.name} does not come up: {cluster.log_text()}")
        self.root = int(Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()[0])
        run_checked(*self.enter(), "ip", "link", "set", "lo", "up")
        self.plug_in(self.cable, "e0", "bridge", NETWORK, "4d")
        if cluster.training_network:
            self.plug_in(f"w{index}", "e1", "bridge2", TRAINING_NETWORK, "4e")

    def plug_in(self, cable, card, bridge, network, mark):
        """A card, always with the same address, which its neighbours remember, and its cable to the switch."""
        in_switch = self.cluster.in_switch
        in_switch("ip", "link", "add", cable, "type", "veth", "peer", "name", card, "address",
                  f"02:00:0a:{mark}:00:{self.index + 1:02x}", "netns", str(self.root))
        in_switch("ip", "link", "set", cable, "master", bridge, "up")
        run_checked(*self.enter(), "ip", "address", "add", f"{network}.{self.index + 1}/24", "dev", card)
        run_checked(*self.enter(), "ip", "link", "set", card, "up")

    @property
    def cable(self):
        return f"v{self.index}"

    def enter(self):
        return ["nsenter", "--target", str(self.root), *NAMESPACES, f"--wd={self.cluster.directory}", "--"]

    def processes(self):
        """Pids as this process sees them, without the door."""
        mine = os.readlink(f"/proc/{self.root}/ns/pid")
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and int(entry) != self.root and os.readlink(f"/proc/{entry}/ns/pid") == mine:
                    found.append(int(entry))
            except OSError:
                continue
        return found

    def shared_memory(self):
        """The names in its /dev/shm, and in the directory of Holdfast there."""
        own = harness.shared_memory(f"/proc/{self.root}/root")
        inside = os.listdir(own) if own.exists() else []
        return sorted({*os.listdir(own.parent), *inside} - {own.name})

    def power_off(self):
        self.cluster.in_switch("ip", "link", "delete", self.cable, check=False)
        harness.kill(self.root, signal.SIGKILL)  # the others of its process namespace with it
        self.holder.wait()


class Cluster:
    """`count` hosts n0, n1, ..., each with so much shared memory. The directory is for what they share beside a scene's."""

    def __init__(self, count, shared_memory_mib=SHARED_MEMORY_MIB, training_network=False):
        self.count, self.shared_memory_mib, self.training_network = count, shared_memory_mib, training_network
        self.slots, self.successors = 0, {}  # {name: of the host that took its place}
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-hosts-"))
        self.log = open(self.directory / "hosts.log", "wb")
        self.hosts_file = self.directory / "hosts"
        self.scratch = self.directory / "tmp"  # on every host its own
        self.scratch.mkdir()
        self.local = self.directory / "local"  # too, and still there when its power comes back
        self.local.mkdir()
        self.hostfile = self.directory / "hostfile"
        self.hosts, self.switch, self.control = {}, None, None
        self.needs, self.hidden = [], {}  # what unfit() may hide, in turn; {host: what it does not see}
        self.links, self.limits = links.Links(self), Limits()
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def build(self):
        lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{index + 1} n{index}" for index in range(self.count))]
        self.hosts_file.write_text("\n".join(lines) + "\n")
        self.agent = self.directory / "agent"
        self.agent.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} agent "$@"\n')
        self.agent.chmod(0o755)
        self.switch = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"],
                                       stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
        own = os.readlink("/proc/self/ns/net")
        harness.wait_until(lambda: namespace_of(self.switch.pid) not in (own, None), 5, lambda: self.switch.poll() is not None,
                           "no network namespace", self.log_text)
        if self.switch.poll() is not None:
            raise AssertionError(self.log_text())
        for bridge in ["bridge", *(["bridge2"] if self.training_network else [])]:
            self.in_switch("ip", "link", "add", bridge, "type", "bridge")
            self.in_switch("ip", "link", "set", bridge, "up")
        for index in range(self.count):
            self.power_on(f"n{index}")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        if self.control is not None:
            self.control.shutdown(socket.SHUT_RDWR)
            self.control.close()
        self.links.close()
        for name in list(self.hosts):
            self.lose(name)
        self.limits.close()
        if self.switch is not None:
            self.switch.kill()
            self.switch.wait()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log_text(self):
        return (self.directory / "hosts.log").read_text(errors="replace").strip()

    def enter_switch(self):
        return ["nsenter", "--target", str(self.switch.pid), "--net", "--"]

    def in_switch(self, *words, check=True):
        return run_checked(*self.enter_switch(), *words, check=check)

    def disk(self, name):
        """What a host sees as `local`, as others see it."""
        path = self.directory / "disks" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def set_variables(self, name, **variables):
        """Variables that commands which others call there get, beside those of the door."""
        (self.disk(name) / VARIABLES).write_text(json.dumps(variables))

    # What happens to hosts

    def limit_cpu(self, name, share):
        """All that runs there has this share of one processor."""
        quota = str(int(share * PERIOD_US))
        self.limits.put(self.hosts[name], "cpu", {"cpu.cfs_quota_us": quota}, {"cpu.max": f"{quota} {PERIOD_US}"})

    def limit_disk(self, name, directory, bytes_per_s):
        """All that runs there writes and reads so many bytes on the disk of a directory."""
        number = os.stat(directory).st_dev
        disk = f"{os.major(number)}:{os.minor(number)}"
        if not Path(f"/sys/dev/block/{disk}").exists() or Path(f"/sys/dev/block/{disk}/partition").exists():
            harness.skip(f"{directory} is on no whole disk, for which alone the kernel has limits")
        self.limits.put(self.hosts[name], "blkio",
                        {f"blkio.throttle.{way}_bps_device": f"{disk} {bytes_per_s}" for way in ("read", "write")},
                        {"io.max": f"{disk} rbps={bytes_per_s} wbps={bytes_per_s}"})

    def lose(self, name):
        """Its power is gone, and with it what it had in memory."""
        self.hosts.pop(name).power_off()

    def power_on(self, name):
        self.hosts[name] = Host(self, int(name[1:]))

    def cut(self, name):
        """Its cable. Nobody is told: what is sent disappears."""
        self.in_switch("ip", "link", "set", self.hosts[name].cable, "nomaster")

    def mend(self, name):
        self.in_switch("ip", "link", "set", self.hosts[name].cable, "master", "bridge")

    def cut_pair(self, one, other, card=None):
        """What one sends to the other goes to a card that nobody has; on the network of the ranks."""
        card, network = self.pair_network(card)
        for name, peer in ((one, other), (other, one)):
            run_checked(*self.hosts[name].enter(), "ip", "neigh", "replace", f"{network}.{self.hosts[peer].index + 1}", "lladdr",
                        "02:00:00:00:00:99", "dev", card, "nud", "permanent")

    def mend_pair(self, one, other, card=None):
        card, network = self.pair_network(card)
        for name, peer in ((one, other), (other, one)):
            run_checked(*self.hosts[name].enter(), "ip", "neigh", "delete", f"{network}.{self.hosts[peer].index + 1}", "dev", card)

    def pair_network(self, card):
        card = card or ("e1" if self.training_network else "e0")
        return card, TRAINING_NETWORK if card == "e1" else NETWORK

    def unfit(self, name):
        """A file or a directory of `needs` is empty there, the next one each time, or its shared memory is full, and its ranks are
        dead."""
        hidden = self.needs.pop(0)
        self.needs.append(hidden)
        self.hide(name, hidden)
        self.kill_trainers(name)

    def sicken(self, name):
        """Its InfiniBand link goes down once more, as `sensors` of it say: health.host_root of a run, on each host its own."""
        counter = self.disk(name) / SENSORS / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
        counter.parent.mkdir(parents=True, exist_ok=True)
        counter.write_text(f"{int(counter.read_text()) + 1 if counter.exists() else 0}\n")

    def hide(self, name, hidden):
        if hidden == SHARED_MEMORY:
            done = self.call(name, "dd", "if=/dev/zero", f"of={TAKEN_MEMORY}", "bs=1M")
            assert "No space left" in done.stderr, done.stderr
        else:
            what = ["-t", "tmpfs", "tmpfs"] if hidden.is_dir() else ["--bind", "/dev/null"]
            run_checked(*self.hosts[name].enter(), "mount", *what, str(hidden))
        self.hidden[name] = hidden

    def fit(self, name):
        hidden = self.hidden.pop(name)
        undo = ["rm", "-f", str(TAKEN_MEMORY)] if hidden == SHARED_MEMORY else ["umount", "--lazy", str(hidden)]
        run_checked(*self.hosts[name].enter(), *undo)

    def stop(self, name):
        """All that runs there, its door first: nobody is told, and what is sent is taken and not answered."""
        host = self.hosts[name]
        harness.kill(host.root, signal.SIGSTOP)
        for _ in range(2):  # what had been started meanwhile
            for pid in host.processes():
                harness.kill(pid, signal.SIGSTOP)

    def go_on(self, name):
        for pid in [*self.hosts[name].processes(), self.hosts[name].root]:
            harness.kill(pid, signal.SIGCONT)

    def kill_trainers(self, name):
        """All ranks on it, of whatever run."""
        for pid in self.hosts[name].processes():
            if is_rank(pid):
                harness.kill(pid, signal.SIGKILL)

    def write_hostfile(self, slots):
        """For --hostfile: the hosts that are up. What replaces one is written into it."""
        self.slots = slots
        text = "".join(f"{name} slots={slots}\n" for name in sorted(self.hosts))
        partial = self.hostfile.with_suffix(".partial")
        partial.write_text(text)
        partial.rename(self.hostfile)
        return self.hostfile

    def replace(self, name):
        """A host that was lost does not come back: one with another name and address takes its place, also in the hostfile."""
        successor = f"n{self.count}"
        with open(self.hosts_file, "a") as lines:  # the same file on every host
            lines.write(f"{NETWORK}.{self.count + 1} {successor}\n")
        self.count += 1
        self.power_on(successor)
        self.successors[name] = successor
        if self.slots:
            self.write_hostfile(self.slots)

    def deeds(self):
        """What command() can do, each with the name of a host, or with those of two."""
        at_cable = {deed: lambda name, act=getattr(self.links, deed): act(self.hosts[name].cable)
                    for deed in ("deafen", "mute", "spoil", "clean", "slow", "fast")}
        return {"lose": self.lose, "power_on": self.power_on, "cut": self.cut, "mend": self.mend, "replace": self.replace,
                "kill_trainers": self.kill_trainers, "unfit": self.unfit, "sicken": self.sicken, "fit": self.fit, "stop": self.stop, "go_on": self.go_on,
                "cut_pair": self.cut_pair, "mend_pair": self.mend_pair, **at_cable}

    def command(self, deed):
        """A command for a shell on a host, which does to the hosts whose names are put behind it, or to those that have taken their
        places, one of deeds(), which only this process can."""
        path = self.directory / "control"
        if self.control is None:
            self.control = socket.socket(socket.AF_UNIX)
            self.control.bind(str(path))
            self.control.listen()
            threading.Thread(target=self.obey, daemon=True).start()
        return f"{sys.executable} {__file__} control {path} {deed}"

    def obey(self):
        deeds = self.deeds()
        while True:
            try:
                caller, _ = self.control.accept()
            except OSError:
                return  # closed
            with caller, caller.makefile("rw") as words:
                deed, *names = words.readline().split()
                try:
                    deeds[deed](*map(self.newest, names))
                    words.write("done\n")
                except Exception as error:  # the caller tells
                    words.write(f"{deed} {names}: {error!r}\n")

    def newest(self, name):
        while name in self.successors:
            name = self.successors[name]
        return name

    # What runs on them

    def host_list(self, slots, names=None):
        """For --host."""
        return ",".join(f"{name}:{slots}" for name in names or sorted(self.hosts))

    def call(self, name, *words, timeout_s=60):
        return subprocess.run([*self.hosts[name].enter(), *words], capture_output=True, text=True, errors="replace",
                              timeout=timeout_s, check=False, env=harness.environment())

    def start(self, run, words, host="n0", faults="", **variables):
        """Of the scene of `run`. Ends with the code of the command."""
        more = {"HOLDFAST_FAULTS": faults} if faults else {}
        environment = {**run.scene.environment, **more, **variables, "PRTE_MCA_plm_ssh_agent": str(self.agent),
                       "TMPDIR": str(self.scratch)}
        return run.start_command([*self.hosts[host].enter(), *words], environment=environment, kind=HostStart)

    def processes(self, run):
        """{host: pids} of the run."""
        mark = set(run.processes())
        return {name: sorted(mark & set(host.processes())) for name, host in self.hosts.items()}

    def ranks_on(self, run, name):
        """Pids of `holdfast train` on one host."""
        here = set(self.hosts[name].processes()) if name in self.hosts else set()
        return [pid for pid in run.processes() if pid in here and is_rank(pid)]

    def kill_ranks(self, run, name):
        for pid in self.ranks_on(run, name):
            harness.kill(pid, signal.SIGKILL)


class HostStart(harness.Start):
    """Signals go to the command on its host, which is a child of the process that brought it there."""

    def signal(self, number):
        for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            harness.kill(int(pid), number)


def run_checked(*words, check=True):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done


def is_rank(pid):
    return harness.executable_of(pid) == PROGRAM_NAME and b"\0train\0" in command_line(pid)


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def namespace_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


# The door. Frames from there: one byte that says what (output, errors, end), four for the length, content.

OUTPUT, ERRORS, END = b"o", b"e", b"x"


def door_main(name, hosts_file, scratch, shared_memory_mib, disk, local, told):
    """Process 1 of the host: dresses it, and serves callers until it is killed. Process numbers are those of other hosts, too,
    so what programs name by them lies in a place of its own."""
    socket.sethostname(name)
    for path in ("/dev/shm", scratch):
        run_checked("mount", "-t", "tmpfs", "-o", f"size={shared_memory_mib}m", "tmpfs", path)
    run_checked("mount", "--bind", hosts_file, "/etc/hosts")
    run_checked("mount", "--bind", disk, local)
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    listener = socket.create_server(("", DOOR_PORT), backlog=64)
    os.write(told, b"ready\n")
    os.close(told)
    while True:
        caller, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            serve(caller, scratch, Path(local) / VARIABLES)
            os._exit(0)
        caller.close()


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass
    except ChildProcessError:
        pass


def serve(caller, scratch, variables):
    with caller.makefile("rb") as lines:
        words = json.loads(lines.readline())
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", "SHELL": "/bin/bash", "USER": "root",
                   "TMPDIR": scratch, **(json.loads(variables.read_text()) if variables.exists() else {})}
    process = subprocess.Popen(["/bin/bash", "-c", words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=environment, cwd="/", start_new_session=True)
    sending = threading.Lock()

    def send(kind, content):
        with sending:
            caller.sendall(kind + struct.pack("!I", len(content)) + content)

    def pass_on(kind, stream):
        while content := os.read(stream.fileno(), 65536):
            send(kind, content)

    pumps = [threading.Thread(target=pass_on, args=each) for each in ((OUTPUT, process.stdout), (ERRORS, process.stderr))]
    for pump in pumps:
        pump.start()
    code = process.wait()
    for pump in pumps:
        pump.join()
    send(END, struct.pack("!i", code if code >= 0 else 128 - code))


def agent_main(words):
    """As ssh: [-options] host command. 255: the host does not answer."""
    while words and words[0].startswith("-"):
        words = words[1:]
    try:
        door = socket.create_connection((words[0], DOOR_PORT), timeout=DOOR_PATIENCE_S)
        door.settimeout(None)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        door.sendall(json.dumps(" ".join(words[1:])).encode() + b"\n")
        with door.makefile("rb") as frames:
            while head := frames.read(5):
                content = frames.read(struct.unpack("!I", head[1:])[0])
                if head[:1] == END:
                    return struct.unpack("!i", content)[0]
                os.write(1 if head[:1] == OUTPUT else 2, content)
    except OSError as error:
        print(f"agent: {words[0]}: {error}", file=sys.stderr)
    return 255


def control_main(path, *deed_and_names):
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(path)
        with door.makefile("rw") as words:
            words.write(" ".join(deed_and_names) + "\n")
            words.flush()
            answer = words.readline()
    if answer != "done\n":
        print(answer or "no answer", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "control":
        sys.exit(control_main(*sys.argv[2:]))
    if sys.argv[1] == "door":
        door_main(*sys.argv[2:5], int(sys.argv[5]), *sys.argv[6:8], int(sys.argv[8]))
    sys.exit(agent_main(sys.argv[2:]))
