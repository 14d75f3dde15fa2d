"""What every item of gpu-check works with."""
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .machine import ROOT
from .processes import Runner, kill_group, kill_named
from .results import Failure

sys.path.insert(0, str(ROOT / "tools/bench_cases"))
import _common as bench_common  # noqa: E402


@dataclass
class Run:
    """What the events of a run say: that of its start, those of the steps that were asked for, and all."""
    start: dict
    steps: list
    events: list


class Session:
    """Machine, sizes, programs and results of one call.

    `work` is a folder for configs, tokens and runs. It is emptied when the call begins and ends, and a process whose command line
    names it is killed when its item is over.
    """

    def __init__(self, machine, sizes, results, telemetry, build):
        self.machine, self.sizes, self.results, self.telemetry = machine, sizes, results, telemetry
        self.build = Path(build)
        self.work = results.logs / "work"
        self.runner = Runner(ROOT, results.logs, machine.environment())
        self.item, self.record = "", {}  # the name of the one that runs, and what it has found
        self.reference_digests = {}  # of the runs that the drills are held against, by the settings that decide their bits
        self._tokens = {}
        self.remove_work()
        self.work.mkdir(parents=True)

    def remove_work(self):
        shutil.rmtree(self.work, ignore_errors=True)

    def program(self, name="holdfast"):
        return self.build / "bin" / name

    def show(self, *blocks):
        """Adds tables to the text of the item that runs."""
        self.results.add_table(self.item, *blocks)

    def end_item(self):
        """Nothing that an item started outlives it."""
        kill_named(self.work)

    def remove_snapshots(self, directory, words):
        """What a killed run leaves: processes, and snapshots in shared memory."""
        kill_named(directory)
        if any("ram_every_steps" in word for word in words) and directory.exists():
            self.runner.outcome("clean", [self.program(), "clean", directory], seconds=60)

    def wait_for_memory(self):
        """After a kill: until the GPU has its memory back. How long that took goes into the record of the item."""
        found = self.telemetry.wait_for_memory()
        if found:
            self.record.setdefault("memory_back_s", []).append(found["memory_back_s"])
        if not found.get("memory_is_back", True):
            self.record.setdefault("found", []).append(
                f"{found['memory_used_mib']:.0f} MiB of the GPU are still in use {found['memory_back_s']:.0f} s after a kill")
        return found

    def tokens(self, vocabulary):
        """A shard of random tokens below the vocabulary of any model that reads it."""
        if vocabulary not in self._tokens:
            path = self.work / f"tokens-{vocabulary}.bin"
            bench_common.write_tokens(path, self.sizes.tokens, vocabulary)
            self._tokens[vocabulary] = path
        return self._tokens[vocabulary]

    def config(self, name, model, settings):
        """The file of a run of `model` (sizes.Model); settings are "--section.key=value" words."""
        path = self.work / f"{name}.toml"
        lines = ['[run]\ndirectory = "unset"', "[model]"]
        lines += [f"{key} = {toml(value)}" for key, value in model.section.items()]
        lines += [f'[data]\nsources = [{{ path = "{self.tokens(model.token_range)}", format = "llmc" }}]',
                  f"[training]\nsteps = 1000000\nsequence_length = {model.length}\nmicrobatch_size = {model.batch}",
                  "[checkpoint]\nevery_steps = 0\nram_every_steps = 0\n[evaluation]\nevery_steps = 0"]
        path.write_text("\n".join(lines) + "\n")
        return path, [*model.settings, *settings]

    def bench(self, name, *words):
        """The result of `holdfast bench` on the GPU."""
        path = self.work / f"{name}.json"
        self.runner.run(name, [self.program(), "bench", *words, "--device=cuda", "--json", path])
        return bench_document(path)

    def train_for_steps(self, name, model, settings, count, device="cuda"):
        """A Run of its own that is killed after `count` steps: its last checkpoint is not asked for. The memory of the GPU is back
        afterwards."""
        directory = self.work / name
        shutil.rmtree(directory, ignore_errors=True)
        config, words = self.config(name, model, settings)
        process, _ = self.runner.start(name, [self.program(), "train", config, f"--run.directory={directory}",
                                              f"--device={device}", *words])

        def enough():
            found = bench_common.events(directory)
            return found if sum(event["event"] == "step" for event in found) >= count else None
        try:
            found = self.runner.wait_until(name, process, enough)
        finally:
            kill_group(process)
            self.remove_snapshots(directory, words)
            self.wait_for_memory()
        start = next(event for event in found if event["event"] == "start")
        steps = [event for event in found if event["event"] == "step"]
        shutil.rmtree(directory, ignore_errors=True)
        return Run(start, steps[:count], found)


def bench_document(path):
    try:
        return json.loads(path.read_text())["result"]
    except (OSError, ValueError, KeyError) as error:
        raise Failure(f"{path.name} has no result: {error}") from error


def toml(value):
    return json.dumps(value)
