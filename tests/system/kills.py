"""Killing a run at random until it is finished, and what must hold after every kill. Used by kill_test.py (some seeds)
and tools/crashtest (as many as the time allows).

Everything random follows from the seed: how many ranks in which layout, under which launcher, when, and who dies. The moment
itself also depends on the machine's speed, so a seed that failed may need several tries to fail again.
"""
import dataclasses
import random
import signal
import time

import harness

RANKS_MAX = harness.LANES
SCHEDULES = ("1f1b", "gpipe", "zero_bubble")
KILLS_MAX = 4  # of one run; then it may finish
SETTLE_S = harness.HANG_S if harness.SANITIZED else 30  # from a kill to the end of mpirun: the survivors must notice by themselves
JOIN_S = 90    # the same, when the dead one may have been inside MPI_Init: the others see it by their deadline of 60 s


TENSOR_LANES = 2
# Of every start of a run, and of its reference.
RUN_OPTIONS = [f"--parallel.tensor_lanes={TENSOR_LANES}", "--checkpoint.ram_every_steps=2", "--checkpoint.replicas=on"]


@dataclasses.dataclass
class Layout:
    ranks: int
    stages: int = 1  # of their pipelines
    schedule: str = "1f1b"
    tensor: int = 1  # ranks of a stage

    def options(self):
        return [f"--parallel.pipeline={self.stages}", f"--parallel.pipeline_schedule={self.schedule}",
                f"--parallel.tensor={self.tensor}"]

    def __str__(self):
        return (f"{self.ranks} rank{'s' * (self.ranks > 1)} in {self.stages} stages of {self.tensor}, {self.schedule}")


@dataclasses.dataclass
class Kill:
    """One start that is to be killed: at a time after the start, after a step was seen, or at a fault point."""
    layout: Layout
    launcher: str
    target: str = "rank"  # "rank": one of them, "ranks": all, "mpirun": the launcher
    step: int = 0         # wait for this many more steps first
    delay_s: float = 0.0
    fault: str = ""       # instead of all that: dies by itself there

    def __str__(self):
        how = f"fault point {self.fault}" if self.fault else (
            f"kill -9 of {self.target} {self.delay_s:.3f} s after " + (f"{self.step} more steps" if self.step else "the start"))
        return f"{self.layout} ({self.launcher}), {how}"


def draw_launcher(generator, ranks):
    """With fault tolerance ("ft") a run goes on without one rank that dies, and may come to its end."""
    return generator.choice(["alone", "ft"] if ranks == 1 else ["ft", "plain", "plain"])


def draw_layout(generator):
    """Half of the layouts that can have a pipeline have one, and half of those that can share layers do."""
    ranks = generator.randint(1, RANKS_MAX)
    tensor = generator.choice([1, TENSOR_LANES]) if ranks % TENSOR_LANES == 0 else 1
    stages = [stages for stages in (2, 4) if ranks // tensor % stages == 0]
    return Layout(ranks, generator.choice([1, generator.choice(stages or [1])]), generator.choice(SCHEDULES), tensor)


def draw_kill(generator, points):
    layout = draw_layout(generator)
    launcher = draw_launcher(generator, layout.ranks)
    kind = generator.choice(["time", "step", "step", "fault"])
    if kind == "fault":
        point = f"{generator.choice(points)}@{generator.randint(1, 8)}:{generator.randrange(layout.ranks)}"
        return Kill(layout, launcher, fault=f"{point}=kill")
    target = "rank" if launcher == "alone" else generator.choice(["rank", "rank", "ranks", "mpirun"])
    if kind == "time":
        return Kill(layout, launcher, target, delay_s=generator.uniform(0.0, 1.5))
    return Kill(layout, launcher, target, step=generator.randint(1, 15), delay_s=generator.uniform(0.0, 0.08))


# Points that such runs do not pass, or at which none dies; tests of recovery, growth, local directories, object stores and wrong
# numbers do.
ELSEWHERE = ("end.", "recover.", "grow.", "slot.", "generation.", "copy.", "download.", "upload.", "data.sample", "rollback.")


def fault_points(scene):
    """Every name there is, as the program itself lists them, but for those that a start need not pass: of recovery, of growth, of slots
    that are taken over, of generations, of roll-backs."""
    run = scene.run("names")
    output = run.start(1, faults="?=kill").expect_exit(2)
    listed = output.split("there are ", 1)[1].split(";", 1)[0]
    return [name for name in map(str.strip, listed.split(",")) if not name.startswith(ELSEWHERE)]


def carry_out(kill, start, generator):
    """True when a process was killed from here, False when the start had ended before."""
    if kill.fault:
        return False
    if kill.step and not start.wait_for_step(start.run.last_step() + kill.step):
        return False
    time.sleep(kill.delay_s)
    if not start.alive():
        return False
    victims = start.ranks()
    if kill.target == "mpirun" or not victims:
        victims = [start.pid]
    elif kill.target == "rank":
        victims = [generator.choice(victims)]
    else:
        generator.shuffle(victims)
    for pid in victims:
        harness.kill(pid, signal.SIGKILL)
    return True


def check_after_kill(run, newest_before):
    """No process stays, no saved step is lost, and every visible byte is right. Returns the newest saved step."""
    harness.expect_no_processes(run)
    return harness.expect_whole_checkpoints(run, newest_before)


def run_name(seed):
    return f"seed-{seed:06d}"


def torment(scene, seed, points, story):
    """Kills a run until it is finished; its digest and the number of kills. `story` gets a line for each start."""
    generator = random.Random(seed)
    run = scene.run(run_name(seed), RUN_OPTIONS)
    kills = newest = 0
    for _ in range(generator.randint(2, KILLS_MAX)):
        kill = draw_kill(generator, points)
        story.append(str(kill))
        start = run.start(kill.layout.ranks, kill.launcher, kill.layout.options(), kill.fault)
        killed = carry_out(kill, start, generator)
        code = start.wait(SETTLE_S if kill.step or kill.fault else JOIN_S)
        story[-1] += f": exit code {code}, steps to {run.last_step()}, saved {run.newest_step()}"
        if run.finished():  # before its time came, or in spite of it
            kills += 1 if killed or run.events("recovery") else 0
            break
        if kill.fault:
            start.expect_faults()
        elif not killed:
            raise AssertionError(f"nobody was killed, but the exit code is {code}\n{start.tail()}")
        kills += 1
        newest = check_after_kill(run, newest)
    layout = draw_layout(generator)
    launcher = draw_launcher(generator, layout.ranks)
    story.append(f"{layout} ({launcher}), to the end")
    run.start(layout.ranks, launcher, layout.options()).expect_exit(0)
    harness.expect_no_processes(run)
    harness.expect_no_snapshots(run)
    return run.digest(), kills
