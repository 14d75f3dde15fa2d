"""holdfast chaos: a small campaign ends with the bits of the undisturbed run, a wrong result is found, a seed repeats its plan,
and words that it does not understand get a sentence. A disk that is full for a while, hosts that are lost and cut off. And a
campaign of kills alone.

HOLDFAST_TEST_CHAOS_KILLS: how many kills (tools/test --long sets it); 300 when left out.
HOLDFAST_TEST_CHAOS_PRESET, _PRESET_RUNS, _PRESET_RECORD: a campaign of so many runs with configs/chaos/PRESET.toml, half of them of kills
alone, instead of a short one with llama-15m; the seeds go on behind those that the file has, and a line for each run is added to it.
"""
import concurrent.futures
import contextlib
import json
import math
import os
import re
import subprocess
import time
import unittest
from pathlib import Path

import harness
import host_campaign
import hosts

KILLS = int(os.environ.get("HOLDFAST_TEST_CHAOS_KILLS") or 300)
CONFIGS = harness.ROOT / "configs/chaos"
PRESET = os.environ.get("HOLDFAST_TEST_CHAOS_PRESET", "")
PRESET_RUNS = int(os.environ.get("HOLDFAST_TEST_CHAOS_PRESET_RUNS") or 2)
PRESET_RECORD = os.environ.get("HOLDFAST_TEST_CHAOS_PRESET_RECORD", "")
# By config: its layouts. The first is that of the undisturbed run.
PRESET_LAYOUTS = {"llama-15m": "3x1x1,2x1x1+1,2x2x1", "gpt2-124m": "3x1x1,2x1x1+1", "gpt2-355m": "2x1x1"}
PRESET_FAULTS = "kill,two_kills,kill_in_recovery,all_killed,job_killed,ram_lost,hang"
JOB_ENDS = ("job_killed", "ram_lost", "damaged_checkpoint", "load_error")  # faults after which the campaign launches a run again
LAYOUTS = ["2x1x1+5", "3x1x1+4", "4x1x1+4", "2x2x1+4", "3x2x1+2", "4x2x1", "2x1x2+4", "3x1x2+2", "4x1x2", "2x2x2"]
# A start heals up to seven deaths in place. The steps are short: what counts is where a run dies, and how often.
KILLS_OPTIONS = ["--training.steps=140", "--training.sequence_length=32", "--training.microbatch_size=1",
                 "--training.microbatches_per_lane=1", "--parallel.tensor_lanes=2", "--checkpoint.ram_every_steps=1",
                 "--checkpoint.every_steps=20", "--evaluation.every_steps=0"]


class ChaosTest(unittest.TestCase):
    def setUp(self):
        self.scene = harness.Scene(steps=40)
        self.addCleanup(self.scene.close)
        self.directory = self.scene.directory / "campaign"

    def chaos(self, *words, code=0, config=None, timeout_s=850):
        arguments = [str(harness.PROGRAM), "chaos", str(config or self.scene.config), f"--directory={self.directory}", *words]
        done = subprocess.run(arguments, env=self.scene.environment, capture_output=True, text=True, timeout=timeout_s, check=False)
        self.scene.keep = self.scene.keep or done.returncode not in (0, code)  # a run that went wrong is there to look at
        if code is not None:
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def result(self):
        return json.loads((self.directory / "chaos.json").read_text())

    def expect_launches(self, *results, truthfully=0):
        """A launch by the campaign follows a launcher that it had killed. That it follows a run that gave up by itself, which would
        have taken a person, is bounded."""
        launches = {key: sum(result["launches"][key] for result in results) for key in ("all", "launched_again", "ended_truthfully")}
        job_ends = sum(fault["injected"] for result in results for name, fault in result["faults"].items() if name in JOB_ENDS)
        self.assertEqual(launches["launched_again"], job_ends, launches)
        self.assertLessEqual(launches["ended_truthfully"], truthfully, launches)
        self.assertEqual(launches["all"], sum(result["runs"] for result in results) + job_ends + launches["ended_truthfully"])

    def test_a_small_campaign_and_a_planted_difference(self):
        words = ["--seeds=1..3", "--parallel.tensor_lanes=2", "--checkpoint.ram_every_steps=2",
                 "--faults=kill,two_kills,kill_at_point,crash,mpirun_killed,damaged_checkpoint"]
        output = self.chaos(*words)
        self.assertIn("3 of 3 runs ended with the right bits", output)
        result = self.result()
        self.assertEqual((result["runs"], result["right"]), (3, 3))
        self.assertGreater(result["injected"], 2, output)
        self.expect_launches(result)
        self.assertEqual(sum(fault["wrong"] for fault in result["faults"].values()), 0)
        self.assertEqual([run["seed"] for run in result["each"]], [1, 2, 3])
        page = (self.directory / "chaos.html").read_text()
        self.assertIn("3 with the right bits", page)
        left = {path.name for path in self.directory.iterdir()}
        self.assertEqual(left, {"undisturbed", "undisturbed.log", "undisturbed.digest", "chaos.json", "chaos.html"})

        # As if the disturbed run had other losses: the campaign uses the undisturbed run again, and says what differs.
        digest = self.directory / "undisturbed.digest"
        digest.write_text(re.sub(r"(?m)^(loss \w*)(\w)$", lambda match: match[1] + ("0" if match[2] != "0" else "1"), digest.read_text()))
        output = self.chaos(*words[1:], "--seeds=2..2", code=1)
        self.assertIn("as it was there", output)
        self.assertIn("WRONG", output)
        self.assertIn("other bits than the undisturbed run", output)
        self.assertIn("--seeds 2..2", output, "how to repeat it")
        self.assertTrue((self.directory / "seed-2/events.jsonl").exists(), "the run is kept")
        self.assertEqual(self.result()["each"][0]["right"], False)

    def test_faults_at_times(self):
        """As many as there is time for, of all kinds in turn; and where the time went, without a gap."""
        output = self.chaos("--seeds=1..1", "--every=1", "--faults-max=2", "--faults=kill,mpirun_killed", "--layouts=2x1x1",
                            "--training.steps=200")
        result = self.result()
        self.assertEqual((result["runs"], result["right"]), (1, 1), output)
        run = result["each"][0]
        self.assertEqual(len({fault["fault"] for fault in run["faults"]}), len(run["faults"]), run["faults"])
        times = sorted(fault["time_us"] for fault in run["faults"])
        self.assertTrue(times and all(later - sooner >= 1_000_000 for sooner, later in zip(times, times[1:])), run["faults"])
        self.assertAlmostEqual(sum(run["seconds"].values()), run["wall_s"], delta=0.001 * run["wall_s"])
        self.assertAlmostEqual(run["goodput"], result["goodput"])
        self.assertRegex(output, r"goodput \d+\.\d\d % of \d+s: training \d")
        self.assertGreater(run["log_bytes"], 10_000)
        self.assertIn("goodput", (self.directory / "chaos.html").read_text().lower())

    @harness.full
    def test_a_hang_of_the_run_is_found(self):
        """A run that takes longer than its limit is wrong, and nothing of it is left."""
        output = self.chaos("--seeds=1..1", "--faults=kill", "--limit=1", "--training.steps=1000", code=1)
        self.assertIn("no end within 1 s: a hang", output)
        run = harness.Run(self.scene, "campaign/seed-1", [])
        harness.expect_no_processes(run)
        self.assertIn(f"holdfast clean {run.directory}", output)
        if (run.directory / "run_id").exists():
            harness.program_output("clean", run.directory)
            harness.expect_no_snapshots(run)

    def test_a_seed_repeats_its_plan(self):
        plans = self.chaos("--plan", "--seeds=1..30")
        self.assertEqual(plans, self.chaos("--plan", "--seeds=1..30"))
        one = self.chaos("--plan", "--seeds=17..17")
        self.assertIn(one, plans)
        self.assertFalse(self.directory.exists(), "a plan makes nothing")

    def test_words_that_it_does_not_understand(self):
        for words, sentence in [
                (["--faults=kil"], "chaos: there is no fault kil, did you mean kill?"),
                (["--seeds=5..3"], "chaos: --seeds must be A..B with A <= B"),
                (["--seeds=1..2", "--runs=2"], "chaos: --seeds must be A..B"),
                (["--kills-only", "--every=5"], "--kills-only and --every both say when faults come"),
                (["--every=5", "--faults=slow_rank"], "it comes at a step, and --every asks for times"),
                (["--ranks=1"], "--ranks must be a whole number of at least 2"),
                (["--faults=lost_host"], "none of the faults that --faults names can be made here"),
                (["--parallel.lanes=1", "--model.layers=1", "--elastic.min_data_parallel=1", "--run=1"], "chaos has no option --run")]:
            with self.subTest(words=words):
                self.assertIn(sentence, self.chaos(*words, code=2))
                self.assertFalse(self.directory.exists())

    def test_an_undisturbed_run_that_fails(self):
        output = self.chaos("--data.sources=[{path = \"missing.txt\", format = \"text\"}]", "--model.vocabulary=256", code=2)
        self.assertIn("the undisturbed run ended with exit code 4", output)
        self.assertIn("missing.txt does not exist", output)

    def expect_numbers(self, output):
        """No verdict is baseless, and none that finds weights or moments that changed between updates names another rank. Returns the kinds with their counts."""
        result = self.result()
        self.assertEqual(result["right"] + result["excused"], result["runs"], output)
        self.assertEqual(result["numbers"]["baseless_verdicts"], 0, output)
        kinds = result["numbers"]["kinds"]
        for each in result["each"]:
            for fault in each["faults"]:
                is_covered = fault["fault"] in ("flip_weights", "flip_moments") and not fault["before_first_update"]
                if is_covered and fault["end"] == "found":
                    self.assertEqual((fault["named"], fault["latency_steps"] <= 1), ("right", True), (fault, output))
        return kinds

    def test_wrong_numbers(self):
        """Nothing but these faults happens to the runs, so that they repeat."""
        kinds = "flip_weights,flip_moments,flip_parameters,flip_gradients,flip_activations,nan,wrong_product,wrong_product_always,bad_sample"
        output = self.chaos(f"--faults={kinds}", "--faults-max=1", "--seeds=4..9", "--layouts=3x1x1,2x2x1,2x1x2", "--parallel.tensor_lanes=2",
                            "--parallel.lanes=6", "--checkpoint.ram_every_steps=2")
        kinds = self.expect_numbers(output)
        self.assertEqual(set(kinds), {"flip_weights", "flip_moments", "flip_parameters", "nan", "bad_sample"}, output)
        for name in ("flip_weights", "flip_moments", "nan"):
            self.assertEqual((kinds[name]["found"], kinds[name]["same bits"]), (kinds[name]["injected"],) * 2, output)
        self.assertEqual(kinds["bad_sample"]["same bits"], kinds["bad_sample"]["injected"], "those of the twin")
        self.assertEqual(self.result()["launches"]["launched_again"], 0, output)
        self.assertIn("Wrong numbers", (self.directory / "chaos.html").read_text())
        self.assertFalse((self.directory / "twin").exists())

    @harness.full
    def test_wrong_numbers_between_deaths(self):
        output = self.chaos("--faults=kill,kill_in_recovery,crash,job_killed,ram_lost,numbers", "--faults-max=3", "--seeds=1..40",
                            "--layouts=2x1x1,3x1x1,4x1x1", "--training.steps=60", "--checkpoint.every_steps=5", "--parallel.lanes=4")
        kinds = self.expect_numbers(output)
        self.assertEqual(set(kinds), {"flip_weights", "flip_moments", "flip_parameters", "flip_gradients", "flip_activations", "nan",
                                      "wrong_product", "wrong_product_always", "bad_sample", "wrong_rate"}, output)
        self.assertGreater(self.result()["kills"], 10, output)

    @harness.full
    def test_hangs_that_take_another_start(self):
        """Nobody can go on without the rank that hung: the restart's fault begins with the verdict. A livelock that is armed in a rank
        which a restart ends before it gets there is none."""
        output = self.chaos("--faults=hang,livelock", "--faults-max=3", "--layouts=1x2x1", "--seeds=175..175", "--parallel.lanes=1",
                            "--watchdog.floor=1s", "--keep")
        run = harness.Run(self.scene, "campaign/seed-175", [])
        reasons = [event["reason"] for event in run.events("fault") if event.get("level") == 2]
        injected = self.result()["each"][0]["faults"]
        self.assertIn("hang", [fault["fault"] for fault in injected], output)
        for reason in reasons:
            self.assertRegex(reason, r"^rank \d \(host \S+\) hangs: .*; ")
        named = [int(rank) for reason in reasons for rank in re.findall(r"rank (\d) \(host \S+\) hangs: ", reason)]
        self.assertEqual(sorted(named), sorted(fault["rank"] for fault in injected), (reasons, output))
        self.assertEqual({fault["named"] for fault in injected}, {"right"}, output)
        self.expect_launches(self.result())
        self.assertLess(1000, min(fault["notice_ms"] for fault in injected))
        self.assertEqual(self.result()["hangs"], {"injected": len(injected), "right": len(injected), "other": 0, "nobody": 0,
                                                  "baseless_verdicts": 0})

    @harness.full
    def test_many_kills(self):
        """In every layout, more than a third of them while others are mended. A campaign waits more than it computes: so there are
        two, side by side."""
        begun = time.monotonic()
        halves = [LAYOUTS[0::2], LAYOUTS[1::2]]
        words = [[str(harness.PROGRAM), "chaos", str(self.scene.config), f"--directory={self.directory}-{i}", "--seed=1",
                  f"--kills={math.ceil(KILLS / 2)}", "--kills-only", f"--layouts={','.join(half)}", *KILLS_OPTIONS]
                 for i, half in enumerate(halves)]
        with contextlib.ExitStack() as stack:
            campaigns = [stack.enter_context(subprocess.Popen(each, env=self.scene.environment, text=True, stdout=subprocess.PIPE,
                                                              stderr=subprocess.STDOUT)) for each in words]
            stack.callback(lambda: [each.kill() for each in campaigns])
            with concurrent.futures.ThreadPoolExecutor() as pool:
                outputs = list(pool.map(lambda each: each.communicate(timeout=max(800, 3 * KILLS))[0], campaigns))
        output = "\n".join(outputs)
        print(f"\n{output}\n{time.monotonic() - begun:.0f} s", flush=True)
        codes = [each.returncode for each in campaigns]
        self.scene.keep = codes != [0, 0]  # a run that went wrong is there to look at
        self.assertEqual(codes, [0, 0], output)
        results = [json.loads(Path(f"{self.directory}-{i}/chaos.json").read_text()) for i in range(len(halves))]
        kills, in_recovery = (sum(result[key] for result in results) for key in ("kills", "in_recovery"))
        self.assertGreaterEqual(kills, KILLS, output)
        self.assertGreater(in_recovery, kills / 3, output)
        self.expect_launches(*results, truthfully=max(1, kills // 300))
        runs = [run for result in results for run in result["each"]]
        with_kills = {(run["data"], run["pipeline"], run["tensor"]) for run in runs if run["faults"]}
        self.assertEqual(with_kills, {tuple(map(int, re.findall(r"\d", layout)[:3])) for layout in LAYOUTS}, output)
        self.assertLessEqual(max(run["ranks"] for run in runs), 8)

    def test_a_full_disk(self):
        """Not a byte is free. The run goes on and says what it could not save; its files, which lay in memory, are there
        afterwards, and its log is whole."""
        output = self.chaos("--faults=full_disk", "--faults-max=1", "--seeds=9..9", "--keep", "--parallel.tensor_lanes=2",
                            "--training.sequence_length=128", code=None)
        if "is not permitted" in output:
            harness.skip(output)
        self.assertIn("1 of 1 runs ended with the right bits", output)
        self.assertEqual(self.result()["faults"]["full_disk"]["nothing to mend"], 1, output)
        self.expect_launches(self.result())
        run = harness.Run(self.scene, "campaign/seed-9", [])
        told = [event for event in run.events("fault") if event.get("what") == "save"]
        self.assertTrue(told, output)
        self.assertIn("the disk is full", told[0]["reason"])
        self.assertIn("could not be saved", (self.directory / "seed-9.log").read_text())
        self.assertEqual([event["step"] for event in run.events("step")], list(range(1, 41)), "the log has all of them, too")
        harness.expect_whole_checkpoints(run, 40)


    def test_a_disk_and_an_output_that_stall(self):
        self.stall(range(5, 7), {"stalled_disk", "stalled_output"})

    @harness.full
    def test_outputs_that_stall(self):
        self.stall(range(3, 5), {"stalled_output"})

    def stall(self, seeds, names):
        """No call fails, and none returns: the run goes on beside it, and no rank is taken for one that hangs."""
        output = self.chaos("--faults=stalled_disk,stalled_output", "--faults-max=2", f"--seeds={seeds[0]}..{seeds[-1]}", "--keep",
                            "--parallel.tensor_lanes=2", "--watchdog.floor=1s", "--log.every_steps=1", code=None)
        if "left out: the disk stalls" in output:
            harness.skip(output)
        self.assertIn(f"{len(seeds)} of {len(seeds)} runs ended with the right bits", output)
        faults = self.result()["faults"]
        self.assertEqual({name for name, fault in faults.items() if fault["injected"]}, names, output)
        self.assertEqual(self.result()["hangs"]["baseless_verdicts"], 0, output)
        self.expect_launches(self.result())
        for name, fault in faults.items():
            self.assertEqual(fault["nothing to mend"], fault["injected"], (name, output))
        for seed in seeds:
            run = harness.Run(self.scene, f"campaign/seed-{seed}", [])
            self.assertEqual(run.events("fault") + run.events("recovery"), [], (seed, output))
            steps = [event["step"] for event in run.events("step")]
            self.assertEqual(steps, list(range(1, 41)), (seed, "the log has all of them, once", run.events("gap"), output))

    def test_slow_storage(self):
        """Each call to the run directory takes a second, and a rank is killed meanwhile: it takes time, and nothing else."""
        output = self.slow_down(855, "run directory")
        self.assertEqual(self.result()["faults"]["kill"]["injected"], 1, output)
        run = harness.Run(self.scene, "campaign/seed-855", [])
        steps = set(run.steps_told())
        self.assertEqual(steps, set(range(1, 41)), output)

    @harness.full
    def test_slow_training_data(self):
        self.slow_down(68, "training data")

    def slow_down(self, seed, what):
        output = self.chaos("--faults=slow_storage,kill", "--faults-max=3", f"--seeds={seed}..{seed}", "--keep", "--layouts=3x1x1",
                            "--watchdog.floor=1s", "--log.every_steps=1", code=None)
        if "left out: storage is slow" in output:
            harness.skip(output)
        self.assertIn("1 of 1 runs ended with the right bits", output)
        faults = self.result()["faults"]
        self.assertGreaterEqual(faults["slow_storage"]["injected"], 1, output)
        self.assertEqual(faults["slow_storage"]["nothing to mend"], faults["slow_storage"]["injected"], output)
        self.assertIn(f"each call to the {what} takes 1 s", json.dumps(self.result()["each"]), output)
        self.assertEqual(self.result()["hangs"]["baseless_verdicts"], 0, output)
        self.expect_launches(self.result())
        return output

    def test_storage_that_fails(self):
        """Once: a read is repeated, and what one save has missed the next one saves. No rank leaves."""
        output = self.fail_storage("24..26")
        self.assertIn("3 of 3 runs ended with the right bits", output)
        faults = self.result()["faults"]
        self.assertEqual({name for name, fault in faults.items() if fault["injected"]}, {"read_error", "write_error"}, output)
        for name, fault in faults.items():
            self.assertEqual(fault["nothing to mend"], fault["injected"], (name, output))

    @harness.full
    def test_storage_that_fails_one_rank_for_good(self):
        output = self.fail_storage("11..11")
        self.assertIn("1 of 1 runs ended with the right bits", output)
        self.assertGreaterEqual(self.result()["faults"]["read_error"]["in place"], 1, output)

    def fail_storage(self, seeds):
        output = self.chaos("--faults=read_error,write_error", "--faults-max=2", f"--seeds={seeds}", "--layouts=3x1x1", "--checkpoint.every_steps=10")
        self.expect_launches(self.result())
        return output

    def test_what_a_failure_costs_at_most(self):
        """The campaign compares what each death cost with what the run had said before."""
        output = self.chaos("--as-configured", "--faults=kill,all_killed,ram_lost", "--faults-max=3", "--seeds=2..4", "--layouts=3x1x1",
                            "--training.steps=80", "--checkpoint.ram_every_steps=3", "--parallel.lanes=6")
        told = self.result()["cost_promise"]
        self.assertIn(f"the cost promise held in {told['held']} of {told['promised']} death", output)
        self.assertGreater(told["promised"], 0, output)
        self.expect_launches(self.result())
        self.assertEqual(told["held"], told["promised"], output)
        # Lines of steps that are computed again die with their writer: the log may lack one of each death.
        for each in self.result()["each"]:
            steps = sum(loss["steps"] for loss in each["losses"])
            self.assertLessEqual(each["lost_steps"], steps, (each, output))
            self.assertLessEqual(steps, each["lost_steps"] + len(each["losses"]), (each, output))
        self.assertIn("Cost promise held", (self.directory / "chaos.html").read_text())

    def test_the_default_config(self):
        """No key about saving, recovery or the watchdog. What a rank's death costs is some steps, not the run."""
        config = self.scene.directory / "plain.toml"
        config.write_text('run.directory = "unset"\nmodel.layers = 2\nmodel.heads = 4\nmodel.width = 64\ntraining.steps = 120\n'
                          f'data.sources = [{{ path = "{self.scene.text}", format = "text" }}]\ntraining.sequence_length = 32\n')
        output = self.chaos("--as-configured", "--faults=kill", "--faults-max=2", "--seeds=1..2", "--layouts=3x1x1", "--keep", config=config)
        self.assertIn("2 of 2 runs ended with the right bits", output)
        self.expect_launches(self.result())
        recoveries = [event for seed in (1, 2) for event in harness.Run(self.scene, f"campaign/seed-{seed}", []).events("recovery")]
        self.assertTrue(recoveries, output)
        for event in recoveries:
            self.assertEqual(event["level"], 1, event)
            self.assertEqual(event["resumed_from"], "ram", event)
            self.assertGreater(event["resumed_from_step"], 0, event)


    def on_text(self):
        return f'--data.sources=[{{path = "{self.scene.text}", format = "text"}}]'

    def test_configs_at_real_size_have_plans(self):
        self.assertEqual({path.stem for path in CONFIGS.glob("*.toml")}, set(PRESET_LAYOUTS))
        for name, layouts in PRESET_LAYOUTS.items():
            with self.subTest(name):
                plans = self.chaos("--plan", "--as-configured", "--kills-only", "--runs=3", f"--layouts={layouts}", self.on_text(),
                                   config=CONFIGS / f"{name}.toml")
                self.assertEqual(len(re.findall(r"^seed \d+: ", plans, re.MULTILINE)), 3, plans)
                self.assertIn("kill -9", plans)

    @harness.full
    def test_at_real_size(self):
        """What the configs say is saved, and no more."""
        if not PRESET:
            output = self.chaos("--as-configured", "--kills-only", "--runs=1", "--layouts=3x1x1", "--training.steps=10",
                                "--training.sequence_length=16", self.on_text(), config=CONFIGS / "llama-15m.toml")
            self.assertIn("1 of 1 runs ended with the right bits", output)
            self.assertGreaterEqual(self.result()["kills"], 2, output)
            self.expect_launches(self.result())
            return
        record = Path(PRESET_RECORD or self.scene.directory / "record.jsonl")
        record.parent.mkdir(parents=True, exist_ok=True)
        done = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        first = 1 + max((each["seed"] for each in done if each["preset"] == PRESET), default=0)
        for first, kind in ((first, ["--kills-only"]), (first + PRESET_RUNS // 2, [f"--faults={PRESET_FAULTS}", "--faults-max=3"])):
            output = self.chaos("--as-configured", *kind, f"--layouts={PRESET_LAYOUTS[PRESET]}", f"--seeds={first}..{first + PRESET_RUNS // 2 - 1}",
                                self.on_text(), config=CONFIGS / f"{PRESET}.toml", timeout_s=None, code=None)
            print(f"\n{output}", flush=True)
            self.expect_launches(self.result(), truthfully=1)
            for run in self.result()["each"]:
                done.append({"preset": PRESET, "seed": run["seed"], "right": run["right"], "faults": len(run["faults"]), "losses": run["losses"]})
            record.write_text("".join(json.dumps(each) + "\n" for each in done))
        runs = [each for each in done if each["preset"] == PRESET]
        promised = [loss["held"] for each in runs for loss in each["losses"] if "held" in loss]
        print(f"{PRESET}, all times together: {sum(each['right'] for each in runs)} of {len(runs)} runs right, "
              f"{sum(each['faults'] for each in runs)} faults, cost promise held in {sum(promised)} of {len(promised)} deaths", flush=True)
        self.assertTrue(all(each["right"] for each in runs[-2 * (PRESET_RUNS // 2):]), output)


class ChaosHostsTest(unittest.TestCase):
    """Hosts that are lost and cut off by commands of the user's, as there are where several hosts are."""

    @classmethod
    def setUpClass(cls):
        if reason := hosts.why_not():
            harness.skip(reason)

    def test_a_lost_host(self):
        self.torment("21..21", "lost_host")  # early in the run

    @harness.full
    def test_a_lost_host_and_a_cut_link(self):
        self.torment("85..86", "lost_host", "cut_link")

    def three_hosts(self, steps=480):
        """A scene, whose commands may take a host away for seconds in which steps go on, its hosts, and the directory of a campaign."""
        scene = harness.Scene(steps=steps, lanes=6)
        self.addCleanup(scene.close)
        del scene.environment["OMPI_MCA_btl_sm_backing_directory"]  # on each host in its own shared memory
        cluster = hosts.Cluster(3)
        self.addCleanup(cluster.close)
        return scene, cluster, scene.run("campaign")

    def torment(self, seeds, *faults):
        """One run for each of the faults."""
        scene, cluster, campaign = self.three_hosts()
        words = [str(harness.PROGRAM), "chaos", str(scene.config), f"--directory={campaign.directory}", "--host",
                 cluster.host_list(2), "--layouts=6x1x1", f"--faults={','.join(faults)}", "--faults-max=1", f"--seeds={seeds}",
                 "--lose-host", cluster.command("lose"), "--return-host", cluster.command("power_on"),
                 "--cut-link", cluster.command("cut"), "--mend-link", cluster.command("mend") + " {host}",
                 "--checkpoint.every_steps=160", "--checkpoint.ram_every_steps=2", "--checkpoint.replicas=on",
                 "--watchdog.floor=4s"]
        output = cluster.start(campaign, words).expect_exit(0, 300)
        self.assertIn(f"{len(faults)} of {len(faults)} runs ended with the right bits", output)
        result = json.loads((campaign.directory / "chaos.json").read_text())
        restarted = {name: fault["restarted"] for name, fault in result["faults"].items()}
        self.assertEqual(restarted, dict.fromkeys(faults, 1), output)
        self.assertEqual(result["launches"], {"all": len(faults), "launched_again": 0, "ended_truthfully": 0}, output)
        self.assertEqual(sorted(cluster.hosts), ["n0", "n1", "n2"], "all are back")
        self.assertEqual(host_campaign.left_behind(cluster), {}, output)

    @harness.full
    def test_a_host_that_is_left_out_for_nothing(self):
        """As if a run had left out another host than the one that was lost: the commands take the other one."""
        scene, cluster, campaign = self.three_hosts(steps=240)
        other = "case {host} in n1) other=n2 ;; *) other=n1 ;; esac; "
        words = [str(harness.PROGRAM), "chaos", str(scene.config), f"--directory={campaign.directory}", "--host",
                 cluster.host_list(2), "--layouts=6x1x1", "--faults=lost_host", "--faults-max=1", "--seeds=25..25",
                 "--lose-host", f"{other}{cluster.command('lose')} $other", "--return-host",
                 f"{other}{cluster.command('power_on')} $other", "--checkpoint.every_steps=80", "--checkpoint.ram_every_steps=2",
                 "--checkpoint.replicas=on", "--watchdog.floor=4s"]
        output = cluster.start(campaign, words).expect_exit(1, 300)
        [lost] = re.findall(r"done: host (n\d) is lost", output)
        wrong = json.loads((campaign.directory / "chaos.json").read_text())["each"][0]["wrong"]
        self.assertRegex(wrong, r"^start 2 of \d had no rank on host n\d, to which nothing had happened$", output)
        self.assertNotIn(f" {lost},", wrong)

    @harness.full
    def test_what_is_no_death_of_a_host(self):
        """A host that is unfit, one that is stopped, and two that lose each other: each run goes on without what is missing and uses
        it again."""
        scene, cluster, campaign = self.three_hosts()
        made = ["unfit_host", "cut_pair", "stopped_host"]
        start = host_campaign.start(cluster, campaign, scene.config, f"--faults={','.join(made)}", "--faults-max=1",
                                    "--seeds=1..5", "--checkpoint.every_steps=160", "--checkpoint.ram_every_steps=2",
                                    "--checkpoint.replicas=on", "--watchdog.floor=4s", "--elastic.grow_after=2s")
        output = start.expect_exit(0, 900)
        self.assertIn("5 of 5 runs ended with the right bits", output)
        result = host_campaign.result(campaign)
        self.assertEqual({name for name, fault in result["faults"].items() if fault["injected"]}, set(made), output)
        self.assertEqual(result["launches"], {"all": 5, "launched_again": 0, "ended_truthfully": 0}, output)
        self.assertEqual(host_campaign.left_behind(cluster), {}, output)

    @harness.full
    def test_a_sick_host(self):
        """Sensors of it say so while it works: the run leaves it between two steps, and nobody dies."""
        scene, cluster, campaign = self.three_hosts()
        for name in cluster.hosts:
            cluster.sicken(name)
        start = host_campaign.start(cluster, campaign, scene.config, "--faults=sick_host", "--faults-max=1", "--seeds=1..3",
                                    "--checkpoint.every_steps=160", "--checkpoint.ram_every_steps=2", "--checkpoint.replicas=on",
                                    "--watchdog.floor=4s", "--health.preset=guard", "--health.every=100ms",
                                    f"--health.host_root={cluster.local}/{hosts.SENSORS}")
        output = start.expect_exit(0, 300)
        self.assertIn("3 of 3 runs ended with the right bits", output)
        result = host_campaign.result(campaign)
        self.assertEqual(result["faults"]["sick_host"]["injected"], 3, output)
        self.assertEqual(result["launches"], {"all": 3, "launched_again": 0, "ended_truthfully": 0}, output)
        for run in result["each"]:
            hosts_of_starts = [set(start) for start in run["starts"]]
            self.assertEqual([len(each) for each in hosts_of_starts], [3, 2], (run, output))
            self.assertEqual(run["lost_steps"], 0, (run, output))
        self.assertEqual(host_campaign.left_behind(cluster), {}, output)

    @harness.full
    def test_each_of_the_other_faults_of_hosts(self):
        """Once each: what a link does beside being cut, a host whose ranks all die, and one with another name in the place of a lost
        one. No host to which nothing happened is left out, in any start."""
        if reason := hosts.why_no_links():
            harness.skip(reason)
        scene, cluster, campaign = self.three_hosts()
        made = ["host_killed", "deaf_host", "mute_host", "lossy_link", "slow_link", "replaced_host"]
        start = host_campaign.start(cluster, campaign, scene.config, f"--faults={','.join(made)}", "--faults-max=1",
                                    "--seeds=6327..6332", "--checkpoint.every_steps=160", "--checkpoint.ram_every_steps=2",
                                    "--checkpoint.replicas=on", "--watchdog.floor=4s", "--elastic.grow_after=2s")
        output = start.expect_exit(0, 600)
        self.assertIn("6 of 6 runs ended with the right bits", output)
        result = host_campaign.result(campaign)
        self.assertEqual({name: fault["injected"] for name, fault in result["faults"].items()}, dict.fromkeys(made, 1), output)
        outcomes = {name: {key for key in ("in place", "restarted", "nothing to mend") if fault[key]}
                    for name, fault in result["faults"].items()}
        for name in ("deaf_host", "mute_host", "replaced_host"):
            self.assertEqual(outcomes[name], {"restarted"}, (name, output))
        self.assertLessEqual(outcomes["host_killed"], {"in place", "restarted"}, output)
        self.assertEqual(result["launches"], {"all": 6, "launched_again": 0, "ended_truthfully": 0}, output)
        [(old, new)] = cluster.successors.items()
        starts = [each["starts"][0] for each in result["each"]]
        replaced = [each["faults"][0]["fault"] for each in result["each"]].index("replaced_host")
        for index, ranks in enumerate(starts):  # of each run the first
            self.assertEqual(set(ranks), {"n0", "n1", "n2"} if index <= replaced else {"n0", "n1", "n2", new} - {old}, output)


if __name__ == "__main__":
    harness.main(at_once=1)
