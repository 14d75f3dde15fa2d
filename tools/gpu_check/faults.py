"""Faults on a GPU: who is named, how soon it is noticed, when training continues, and whether the bits are those of a run without."""
import json
import shutil
import time
from dataclasses import dataclass

from . import predictions, sizes
from .processes import kill_named
from .results import Failure, table
from .session import bench_common


def drill_words(drill):
    return ["--device=cuda", f"--training.steps={drill.steps}", f"--parallel.lanes={drill.lanes}",
            f"--checkpoint.ram_every_steps={drill.snapshot_every}", "--checkpoint.replicas=on", "--elastic.grow=off",
            f"--watchdog.floor={drill.floor}", f"--watchdog.ceiling={drill.ceiling}"]


def digest_of(session, name, directory):
    output = session.runner.run(f"digest-{name}", [session.program(), "digest", directory], seconds=120)
    if not output.startswith("step "):
        raise Failure(f"{name} has no digest: {output[:200]}")
    return output


def reference(session, numeric=()):
    """The digest of the run that nothing happens to, on one rank, with the settings that decide bits; made once in a call."""
    if numeric not in session.reference_digests:
        drill = session.sizes.drill
        name = f"undisturbed-{len(session.reference_digests)}"
        config, words = session.config(name, drill.model, [*drill_words(drill), *numeric])
        directory = session.work / name
        session.runner.run(name, [session.program(), "train", config, f"--run.directory={directory}", *words],
                           seconds=drill.patience_s)
        session.reference_digests[numeric] = digest_of(session, name, directory)
        shutil.rmtree(directory)
    return session.reference_digests[numeric]


@dataclass(frozen=True)
class Case:
    """A drill: `fault` is for HOLDFAST_FAULTS; the run has as many `ranks`, and recovers for each of these `reasons`. The settings
    that are `numeric` are those of the undisturbed run, too."""
    name: str
    fault: str
    ranks: int
    settings: tuple = ()
    reasons: tuple = ()
    numeric: tuple = ()


def fault_of(drill, ranks, action):
    """For HOLDFAST_FAULTS: the last rank passes the point once for each of its lanes in a step."""
    lanes_of_rank = drill.lanes // ranks
    hit = (drill.fault_step - 1) * lanes_of_rank + 1
    return f"step.before_reduce@{hit}:{ranks - 1}={action}"


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def seconds_between(begin_us, end_us):
    return None if begin_us is None or end_us is None else round((end_us - begin_us) / 1e6, 3)


RECOVERY_FIELDS = ("reason", "level", "ranks_before", "ranks_after", "lost_steps", "duration_ms")


def story(session, events, injected, begun):
    """What the events of a run say about its fault."""
    injected_us = injected[0]["time_us"] if injected else None
    named = [event for event in events if event["event"] == "fault" or
             (event["event"] == "verdict" and event["action"] in ("evict", "rollback"))]
    recovered = [event for event in events if event["event"] == "recovery"]
    after = [event for event in events if event["event"] == "step" and injected_us and event["time_us"] > injected_us]
    noticed_us = (named[0].get("noticed_us") or named[0]["time_us"]) if named else None
    result = {"injected": bool(injected), "named": [event.get("reason", "") for event in named],
              "noticed_s": seconds_between(injected_us, noticed_us),
              "next_step_s": seconds_between(injected_us, after[0]["time_us"] if after else None),
              "recoveries": [{key: event.get(key) for key in RECOVERY_FIELDS} for event in recovered]}
    result["exchange"] = next((event["exchange"] for event in events if event["event"] == "start"), "")
    if injected_us:
        result["memory_mib"] = memory_around(session.telemetry.since(begun), injected_us / 1e6)
    return result


def memory_around(samples, moment):
    """MiB of the GPU in use: the most before a moment, and the least after it, with the seconds until then."""
    used = [(when, sample["memory.used"]) for when, sample in samples if sample["memory.used"] is not None]
    before = [mib for when, mib in used if when <= moment]
    later = [(mib, when) for when, mib in used if when > moment]
    least, when = min(later, default=(None, None))
    return {"most_before": max(before, default=None), "least_after": least,
            "least_after_s": None if when is None else round(when - moment, 2)}


def disturbed(session, case):
    """Runs the drill under `holdfast launch` with a fault, and holds its digest against the undisturbed run's."""
    drill, name = session.sizes.drill, case.name
    expected = reference(session, case.numeric)
    config, words = session.config(name, drill.model, [*drill_words(drill), *case.numeric, *case.settings])
    directory, told = session.work / name, session.work / f"{name}.faults"
    begun = time.time()
    try:
        code, _ = session.runner.outcome(
            name, [session.program(), "launch", "--faults", "-np", str(case.ranks), config, f"--run.directory={directory}", *words],
            seconds=drill.patience_s, more_environment={"HOLDFAST_FAULTS": case.fault, "HOLDFAST_FAULTS_LOG": str(told)})
        result = story(session, bench_common.events(directory), lines_of(told), begun)
        result["exit_code"] = code
        result["same_bits"] = code == 0 and digest_of(session, name, directory) == expected
    finally:
        kill_named(directory)
        back = session.wait_for_memory()
    return {**result, **back}


def complaint_of(case, result):
    """None, or what is wrong with the outcome of a drill."""
    if not result["injected"]:
        return "the fault did not happen"
    if result["exit_code"] != 0:
        return f"the run ended with exit code {result['exit_code']}"
    if not result["same_bits"]:
        return "the digest is not that of the undisturbed run"
    if not result["recoveries"]:
        return "no recovery was recorded"
    if not any(result["named"]):
        return "nobody was named"
    found = {recovery["reason"] for recovery in result["recoveries"]}
    missing = [reason for reason in case.reasons if reason not in found]
    return f"no recovery was for {' or '.join(missing)}" if missing else None


def text_of(value, form="{:.1f}"):
    return "" if value is None else form.format(value)


def record_drills(session, record, cases):
    """Runs every case. The item fails when one of them is wrong."""
    rows = [["fault", "ranks", "noticed s", "next step s", "level", "ranks after", "memory back s", "same bits"]]
    complaints, drills = [], record.setdefault("drills", {})
    for case in cases:
        name = case.name
        try:
            result = drills[name] = disturbed(session, case)
        except Failure as failure:
            drills[name] = {"reason": str(failure)}
            complaints.append(f"{name}: {failure}")
            continue
        complaint = complaint_of(case, result)
        if complaint:
            complaints.append(f"{name}: {complaint}")
        last = result["recoveries"][-1] if result["recoveries"] else {}
        rows.append([name, str(case.ranks), text_of(result["noticed_s"]), text_of(result["next_step_s"]), str(last.get("level", "")),
                     str(last.get("ranks_after", "")), text_of(result.get("memory_back_s")),
                     "yes" if result["same_bits"] else "NO"])
        record.setdefault("found", []).extend(f"{name}: named: {reason}" for reason in result["named"])
    session.show(table(rows))
    if complaints:
        raise Failure("; ".join(complaints))


def gpu_faults(session, record):
    """A trap, an illegal address and an endless kernel: the rank dies or is killed, and `holdfast launch` starts it again."""
    drill = session.sizes.drill
    record_drills(session, record, [Case(action.replace("_", "-"), fault_of(drill, 1, action), 1) for action in sizes.FAULTS])
    endless = record["drills"]["gpu-endless"]
    if not session.sizes.emulated and endless.get("noticed_s") is not None:
        predictions.compare(record, "s until an endless kernel is noticed", endless["noticed_s"], 4, 8)


def shared_gpu(session, record):
    """Several ranks on one GPU over pinned memory: one is killed, or its GPU context breaks, and the others continue."""
    drill = session.sizes.drill
    fewest, most = drill.ranks[0], drill.ranks[-1]
    cases = [Case(f"kill-of-{ranks}", fault_of(drill, ranks, "kill"), ranks) for ranks in drill.ranks]
    cases.append(Case(f"trap-of-{fewest}", fault_of(drill, fewest, "gpu_trap"), fewest))
    cases.append(Case(f"kill-of-{most}-graphs", fault_of(drill, most, "kill"), most, ("--training.cuda_graphs=true",)))
    record_drills(session, record, cases)
    if not session.sizes.emulated:
        for name, result in record["drills"].items():
            if result.get("next_step_s") is not None:
                predictions.compare(record, f"{name}: s from the fault to the next step", result["next_step_s"], 0, 10)


def changes(session, record):
    """The ranks of a run change: one comes back after a death; one whose weights changed in memory leaves, and a run of one rank goes
    back; slices and stages of a copy die with it; a run that ended goes on with more lanes and slices."""
    drill = session.sizes.drill
    few, most, wrong = drill.ranks[0], drill.ranks[-1], "flip:weights:0"
    at = f"@{drill.fault_step}"
    # Long steps after the death, so that the run is there when the new rank is.
    waits = ",".join(f"step.begin@{step}=sleep:{drill.growth_ms}" for step in range(drill.fault_step + 1, drill.fault_step + drill.growth_steps))
    longer = (f"--training.steps={drill.steps + drill.growth_steps}",)
    slices = ("--parallel.tensor_lanes=2",)
    cases = [
        Case("grow", f"{fault_of(drill, few, 'kill')},{waits}", few, ("--elastic.grow=auto", "--elastic.grow_after=0s"),
             ("loss", "growth"), longer),
        Case("evict", f"step.after_vote{at}:{few - 1}={wrong}", few, (), ("loss",)),
        Case("roll-back", f"step.after_vote{at}={wrong}", 1, (), ("rollback",)),
        Case("re-cut", f"step.end@2:{most - 1}=kill", most, ("--parallel.tensor=2", f"--parallel.ranks_per_gpu={most}"), ("loss",),
             (*slices, f"--parallel.lanes={2 * drill.lanes}", f"--run.resume={ended_early(session)}")),
        Case("pipeline", f"step.end{at}:{most - 1}=kill", most, ("--parallel.pipeline=2",), ("loss",)),
        Case("tensor", f"step.end{at}:{most - 1}=kill", most, ("--parallel.tensor=2",), ("loss",), slices)]
    record_drills(session, record, cases[:4] if session.sizes.emulated else cases)  # the last two differ in settings alone


def nccl_ranks(session, record):
    """Several ranks on this GPU over NCCL: one dies before an exchange and one in it, with kernels of the others waiting for it; those
    that are left stop theirs, go on through pinned memory, and use NCCL again when it is connected. Layouts have the same bits."""
    drill = session.sizes.drill
    few, most = drill.ranks[0], drill.ranks[-1]
    longer, slices = (f"--training.steps={drill.steps + drill.growth_steps}",), ("--parallel.tensor_lanes=2",)
    cases = [
        Case("nccl-kill", fault_of(drill, few, "kill"), few, (), ("loss",), longer),
        Case("nccl-kill-received", f"reduce.received@{drill.fault_step}:{few - 1}=kill", few, (), ("loss",), longer),
        Case("nccl-kill-of-many", fault_of(drill, most, "kill"), most, (), ("loss",), longer),
        Case("nccl-pipeline", f"step.end@{drill.fault_step}:{most - 1}=kill", most, ("--parallel.pipeline=2",), ("loss",), longer),
        Case("nccl-tensor", f"step.end@{drill.fault_step}:{most - 1}=kill", most, ("--parallel.tensor=2",), ("loss",), (*longer, *slices))]
    record_drills(session, record, cases[:2] if session.sizes.emulated else cases)  # the others differ in settings alone
    ways = {name: drill["exchange"] for name, drill in record["drills"].items() if "exchange" in drill}
    without = [f"{name}: {way}" for name, way in ways.items() if not way.startswith("NCCL")]
    record.setdefault("found", []).extend(f"{name} went through {way}" for name, way in ways.items())
    for name, drill in record["drills"].items():
        if drill.get("next_step_s") is not None and not session.sizes.emulated:
            predictions.compare(record, f"{name}: s from the fault to the next step", drill["next_step_s"], 0, 3)
    if without and not session.sizes.emulated:
        raise Failure(f"NCCL was not used ({'; '.join(without)}); give an NCCL from 2.30.3 on, with --nccl")


def ended_early(session):
    """The directory of a run of the drill that has all steps behind it but a few."""
    drill = session.sizes.drill
    config, words = session.config("early", drill.model, [*drill_words(drill), f"--training.steps={drill.steps - 4}"])
    directory = session.work / "early"
    session.runner.run("early", [session.program(), "train", config, f"--run.directory={directory}", *words], seconds=drill.patience_s)
    return directory


STALL_SIDES = {"none": ("--checkpoint.ram_every_steps=0",),
               "ram": ("--checkpoint.ram_every_steps={every}", "--checkpoint.replicas=off"),
               "disk": ("--checkpoint.every_steps={every}",)}
SAVE_FIGURES = ("step", "bytes", "stall_ms", "copy_ms", "durable_ms")
BYTES_PER_PARAMETER = 12  # of a snapshot: master weights and two moments in fp32
SAVES = 3


def stall(session, record):
    """What a snapshot in RAM and a save to disk cost the steps around them, per GB of state: the time of whole periods with one,
    less the same periods without any."""
    model, every = session.sizes.stall, session.sizes.stall_every
    count = every * (SAVES + 1) + 1
    period_ms, parameters = {}, 0
    for side, words in STALL_SIDES.items():
        name = f"stall-{side}"
        settings = [word.format(every=every) for word in words]
        run = session.train_for_steps(name, model, settings, count)
        parameters = run.start["parameters"]
        ends_us = {step["step"]: step["time_us"] for step in run.steps}
        saves = [event for event in run.events if event["event"] == "checkpoint"]
        if saves:
            record["saves"] = [{key: each.get(key) for key in SAVE_FIGURES} for each in saves]
        period_ms[side] = (ends_us[every * (SAVES + 1)] - ends_us[every]) / 1000 / SAVES
    gigabytes = parameters * BYTES_PER_PARAMETER / 1e9
    rows = [["tier", "ms of a period", "ms more than without", "GB of state", "s per GB"]]
    for side, value in period_ms.items():
        more = value - period_ms["none"]
        record[side] = {"period_ms": value, "more_ms": more, "s_per_gb": more / 1000 / gigabytes}
        rows.append([side, f"{value:.1f}", f"{more:.1f}", f"{gigabytes:.3f}", f"{more / 1000 / gigabytes:.3f}"])
    record["state_gb"], record["every_steps"] = gigabytes, every
    session.show(table(rows))
    if not session.sizes.emulated:
        predictions.compare(record, "s per GB that training waits for a RAM snapshot", record["ram"]["s_per_gb"], -0.02, 0.05)
