"""A Slurm cluster on one machine, for tests: the hosts of hosts.py with Debian's slurmd on each, and one more for slurmctld, from
which jobs are submitted. Slurm is what `tools/bootstrap --tests` unpacks into .deps/slurm; each host sees it in its own /usr.

    with harness.Scene() as scene, Slurm(3) as cluster:
        start = cluster.sbatch(scene.run("job"), ["--nodes=3", "--ntasks-per-node=2"], "job.sbatch", "run.toml")
        cluster.lose("n1")
"""
import os
import re
import subprocess

import harness
import hosts

PACKAGES = harness.ROOT / ".deps/slurm"
PROCESSORS = 4  # that each node says it has
UP_S = 30
CONFIG = """ClusterName=holdfast
SlurmctldHost={controller}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser=root
PlugStackConfig={directory}/plugstack.conf
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdSpoolDir={directory}/spool-%n
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmdLogFile={directory}/slurmd-%n.log
TmpFS={scratch}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout={node_timeout_s}
ReturnToService=2
KillWait=5
NodeName=n[0-{last}] CPUs={processors} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def why_not():
    """Why this machine gives no Slurm cluster; None when it does."""
    if not (PACKAGES / "usr/sbin/slurmctld").exists():
        return f"{PACKAGES} has no Slurm; tools/bootstrap --tests unpacks it there"
    if reason := hosts.why_not():
        return reason
    tried = subprocess.run(["unshare", "--mount", *overlay()], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"/usr cannot be laid over another: {tried.stderr.strip()}"


def overlay():
    return ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={PACKAGES}/usr:/usr", "/usr"]


class Slurm(hosts.Cluster):
    """Nodes n0, n1, ... of which the controller, the last host, is none. After `node_timeout_s` (or a few times that) Slurm notices
    that a node is lost."""

    def __init__(self, nodes, node_timeout_s=300):
        super().__init__(nodes + 1)
        self.nodes, self.controller = [f"n{index}" for index in range(nodes)], f"n{nodes}"
        self.daemons = []
        self.config = self.directory / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.config), "TMPDIR": str(self.scratch)}
        try:
            self.begin(node_timeout_s)
        except BaseException:
            self.close()
            raise

    def begin(self, node_timeout_s):
        self.config.write_text(CONFIG.format(controller=self.controller, directory=self.directory, scratch=self.scratch,
                                             node_timeout_s=node_timeout_s, last=len(self.nodes) - 1, processors=PROCESSORS))
        (self.directory / "plugstack.conf").touch()
        for name in ["state", *(f"spool-{node}" for node in self.nodes)]:
            (self.directory / name).mkdir()
        self.start_daemon(self.controller, "slurmctld")
        self.wait_for(lambda: " UP" in self.ask("scontrol", "ping"))
        for node in self.nodes:
            self.start_daemon(node, "slurmd")
        self.wait_for(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(self.nodes))

    def wait_for(self, condition):
        harness.wait_until(condition, UP_S, lambda: False, "Slurm is not up", self.log_text)

    def start_daemon(self, name, program):
        hosts.run_checked(*self.hosts[name].enter(), *overlay())
        self.daemons.append(subprocess.Popen([*self.hosts[name].enter(), program, "-D"], stdin=subprocess.DEVNULL, stdout=self.log,
                                             stderr=subprocess.STDOUT, env=harness.environment(**self.environment)))

    def close(self):
        super().close()
        for daemon in getattr(self, "daemons", []):
            daemon.wait()

    def log_text(self):
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)

    def restore(self, node):
        """A node that was lost is there again, with nothing of what it had in memory."""
        self.power_on(node)
        self.start_daemon(node, "slurmd")

    def ask(self, *words):
        """What a command of Slurm prints."""
        done = subprocess.run([*self.hosts[self.controller].enter(), *words], capture_output=True, text=True, timeout=UP_S, check=False,
                              env={**os.environ, **self.environment})
        return done.stdout + done.stderr

    def submit(self, run, words, **variables):
        """A start of the run by a command on the controller."""
        environment = {**run.scene.environment, **self.environment, "HOLDFAST": str(harness.PROGRAM), **variables}
        return run.start_command([*self.hosts[self.controller].enter(), *words], environment=environment, kind=hosts.HostStart)

    def sbatch(self, run, options, script, *arguments, **variables):
        """A batch job, whose output is that of the start. The start ends with the job, some seconds later."""
        log = run.scene.directory / f"{run.directory.name}.{run.starts + 1}.log"
        if variables.get("HOLDFAST_FAULTS"):
            arguments = ["--faults", *arguments]  # for holdfast launch, which the script runs
        return self.submit(run, ["sbatch", "--wait", "--open-mode=append", f"--output={log}", *options, str(script), *arguments],
                           **variables)

    def job(self):
        """The number of the only job that there is."""
        return self.ask("squeue", "-h", "-o", "%A").strip()

    def nodes_of(self, job):
        """Those that Slurm counts to the job now."""
        listed = re.search(r"\bNodeList=(\S+)", self.ask("scontrol", "show", "job", job))
        return self.ask("scontrol", "show", "hostnames", listed[1]).split() if listed else []
