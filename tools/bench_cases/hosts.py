#!/usr/bin/env python3
"""bench hosts: tells one story of a run whose hosts come and go, and measures what each act of it costs.

`holdfast launch` trains a preset on two of three hosts (network namespaces of this machine, each with one rank, its own processes
and its own shared memory; tests/system/hosts.py), with no key about safety or the size of a step set:

  lost     the host of rank 1 loses its power; the spare host takes its place
  drained  `holdfast drain` of that host: the run continues with one rank
  joined   a host with a name that was not there before stands in the hostfile: two ranks again

Then the run is finished, and its digest is compared with that of a run that nothing disturbed. Figures of an act:

  detection    from the power that is gone to the first word that the host is unreachable
  verdict      from there to the begin of the next step
  still        from the last step before it to the begin of the first one after it
  again        steps that were computed again

Root, for the namespaces. 124 million parameters need about 14 GB of memory.
"""
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from _common import HOLDFAST, ROOT, fail, parser, positive, write_config, write_json, write_tokens

sys.path.insert(0, str(ROOT / "tests/system"))
import harness  # noqa: E402
import hosts  # noqa: E402

VOCABULARIES = {"llama": 32_000, "gpt2": 50_257}
LANES, SAMPLES, TOKENS_OF_SAMPLE = 2, 4, 256  # of a step, where the config does not say
WAIT_S = 300
UNREACHABLE = re.compile("unreachable|starting again")


class Story:
    def __init__(self, scene, cluster, options):
        self.scene, self.cluster, self.options = scene, cluster, options
        self.hostfile = scene.directory / "hostfile"
        tokens = scene.directory / "tokens.bin"
        write_tokens(tokens, 400_000, VOCABULARIES[options.preset.partition("-")[0]])
        write_config(scene.config, "unset", tokens, options.preset, checkpoint="", steps=options.steps * 4 + 2)
        scene.config.write_text(f"threads = 1\n{scene.config.read_text()}[parallel]\nlanes = {LANES}\n[evaluation]\nevery_steps = 0\n")
        self.run = scene.run("story")
        self.begun, self.start = 0, None

    def begin(self):
        self.name_hosts("n0", "n1", "n2")
        words = [HOLDFAST, "launch", "-np", "2", "--hostfile", str(self.hostfile), str(self.scene.config),
                 f"--run.directory={self.run.directory}"]
        self.start = self.cluster.start(self.run, words)

    def name_hosts(self, *names):
        self.hostfile.write_text("".join(f"{name} slots=1\n" for name in names))

    def wait_for(self, what, condition):
        """Returns what condition() returns as soon as it is true."""
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            if result := condition():
                return result
            if not self.start.alive():
                fail(f"the run ended before {what}: {self.start.output()[-3000:]}")
            time.sleep(0.05)  # the run has use for the processors
        fail(f"no {what} within {WAIT_S} s: {self.start.output()[-3000:]}")

    def train(self):
        """Some steps that nothing disturbs; their median duration."""
        before = len(self.run.events("step"))
        self.wait_for("steps", lambda: len(self.run.events("step")) >= before + self.options.steps)
        return statistics.median(event["step_duration_ms"] for event in self.run.events("step")[before + 1:])

    def act(self, name, deed):
        """Returns the figures of an act: what is done, to the first step of the start that follows."""
        step_ms = self.train()
        starts, recoveries, said = len(self.run.events("start")), len(self.run.events("recovery")), len(self.start.output())
        begun_s = time.time()
        deed()
        told_s = None
        if name == "lost":
            self.wait_for("a word of it", lambda: UNREACHABLE.search(self.start.output()[said:]))
            told_s = time.time()
        self.wait_for("another start", lambda: len(self.run.events("start")) > starts)
        begin = self.run.events("start")[starts]
        first = self.wait_for("a step", lambda: next((event for event in self.run.events("step") if event["time_us"] > begin["time_us"]), None))
        recovery = self.wait_for("the recovery", lambda: self.run.events("recovery")[recoveries:])[0]
        last = max(event["time_us"] for event in self.run.events("step") if event["time_us"] < begin["time_us"])
        next_begin_ms = first["time_us"] / 1e3 - first["step_duration_ms"]
        figures = {"act": name, "step_ms": step_ms, "still_ms": next_begin_ms - last / 1e3, "again": recovery["lost_steps"],
                   "hosts": begin.get("hosts", {"n0": begin["ranks"]}), "from": begin["resumed_from"]}
        if told_s is not None:
            figures |= {"detection_ms": (told_s - begun_s) * 1e3, "verdict_ms": next_begin_ms - told_s * 1e3}
        print(line_of(figures), flush=True)
        return figures

    def drain(self, name):
        done = self.cluster.call("n0", HOLDFAST, "drain", str(self.run.directory), name, timeout_s=WAIT_S)
        if done.returncode != 0:
            fail(f"drain ended with {done.returncode}: {done.stderr}")


def line_of(figures):
    told = f"  detection {figures['detection_ms']:.0f} ms, verdict {figures['verdict_ms']:.0f} ms" if "verdict_ms" in figures else ""
    return (f"  {figures['act']:<8} still {figures['still_ms']:6.0f} ms ({figures['still_ms'] / figures['step_ms']:.1f} steps of "
            f"{figures['step_ms']:.0f} ms), {figures['again']} again, from {figures['from']}, now {json.dumps(figures['hosts'])}{told}")


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--preset", default="gpt2-124m")
    arguments.add_argument("--steps", type=positive, default=8, help="between two acts")
    arguments.add_argument("--shared-memory-mib", type=positive, default=6000, help="of each host")
    options = arguments.parse_args()
    if reason := hosts.why_not():
        fail(reason)
    with harness.Scene() as scene, hosts.Cluster(4, options.shared_memory_mib) as cluster:
        del scene.environment["OMPI_MCA_btl_sm_backing_directory"]
        cluster.lose("n3")  # it comes later
        story = Story(scene, cluster, options)
        print(f"{options.preset}, 2 ranks on 2 of 3 hosts, a step has {LANES} x {SAMPLES} x {TOKENS_OF_SAMPLE} tokens", flush=True)
        story.begin()
        acts = [story.act("lost", lambda: cluster.lose("n1")), story.act("drained", lambda: story.drain("n2"))]

        def join():
            cluster.power_on("n3")
            story.name_hosts("n0", "n3")
        acts.append(story.act("joined", join))
        story.start.expect_exit(0, WAIT_S)
        found = story.run.digest()
        straight = scene.run("straight")
        straight.start(2).expect_exit(0, 10 * WAIT_S)
        equal = straight.digest() == found
        print(f"  digest {'equal to that of the undisturbed run' if equal else 'DIFFERS'}: {found.splitlines()[1]}")
    write_json(options.json, "hosts", {"acts": acts, "equal": equal})
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
