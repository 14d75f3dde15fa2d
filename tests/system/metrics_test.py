"""Metrics of a run that dies and goes on: the official parsers of Prometheus and TensorBoard read them back, and the dashboard and the
alert rules ask only for what is there."""
import csv
import io
import json
import re
import subprocess
import unittest

import harness

PYTHON = harness.ROOT / ".deps/metrics/bin/python"
PROMTOOL = harness.ROOT / ".deps/promtool/usr/bin/promtool"
READER = harness.ROOT / "tests/system/read_metrics.py"
STEPS = 40
PRICE = 3600.0  # of a rank for an hour: a unit of money a second
OPTIONS = [f"--training.steps={STEPS}", f"--cost.per_rank_hour={PRICE}", "--cost.currency=EUR ", "--evaluation.every_steps=10", "--checkpoint.every_steps=10", "--metrics.tensorboard=true", "--metrics.every=100ms"]


def families(text):
    """{name: {labels: value}} of OpenMetrics text, without the official parser, and without the label of the run."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)\{run=\"\w+\",?(.*)\} (\S+)", line).groups()
            found.setdefault(name, {})[f"{{{labels}}}" if labels else ""] = float(value)
    return found


class ArmedTest(unittest.TestCase):
    """What of the fault tolerance is on is said by each start, wherever people look."""

    def armed_of(self, *overrides):
        with harness.Scene(8, 2) as scene:
            run = scene.run("armed", overrides)
            said = run.start(2).expect_exit(0)
            start = run.events("start")[0]
            state = json.loads(harness.program_output("status", run.directory, "--json"))
            self.assertEqual((state["armed"], state["unarmed"]), (start["armed"], start["unarmed"]))
            told = families((run.directory / "metrics.prom").read_text())["holdfast_armed"]
            self.assertEqual({name: value for names, value in ((start["armed"], 1), (start["unarmed"], 0)) for name in names},
                             {re.fullmatch(r'{protection="(.*)"}', label)[1]: value for label, value in told.items()})
            for title, names in (("armed", start["armed"]), ("not armed", start["unarmed"])):
                line = re.search(rf"^{title}: (.*)$", said, re.MULTILINE)[1]
                for name, words in names.items():
                    self.assertIn(f"{name} ({words})", line)
            off = re.search(r"^armed +(\d+) of (\d+) protections; off: (.*)$", harness.program_output("status", run.directory), re.MULTILINE)
            self.assertEqual((int(off[1]), int(off[2]) - int(off[1])), (len(start["armed"]), len(start["unarmed"])))
            return start["armed"], start["unarmed"]

    def test_a_default_run(self):
        on, off = self.armed_of("--checkpoint.ram_every_steps=auto", "--checkpoint.every_steps=auto")  # as without a config
        self.assertLessEqual({"snapshots", "checkpoints", "recovery in place", "shrink", "growth", "watchdog", "verdicts", "stragglers",
                              "health"}, set(on), off)
        self.assertEqual(on["watchdog"], "5s to 10m")
        self.assertEqual(off["spares"], "elastic.spares = 0")
        self.assertEqual(off["restart"], "not started by holdfast launch")

    def test_what_is_off_is_said_with_its_key(self):
        off = self.armed_of("--watchdog.guard=false", "--checkpoint.ram_every_steps=0", "--elastic.grow=off", "--verdict.preset=watch")[1]
        self.assertEqual((off["watchdog"], off["snapshots"], off["replicas"], off["growth"], off["audits"]),
                         ("watchdog.guard = false", "checkpoint.ram_every_steps = 0", "no snapshots", 'elastic.grow = "off"',
                          'verdict.preset = "watch"'))


class ClassesTest(unittest.TestCase):
    def test_a_rank_that_ends_its_steps_late_is_no_time_between_them(self):
        """Rank 0 waits for the other one at the end of a step or in the next, as all ranks always do."""
        late = 12
        with harness.Scene(24, 2) as scene:
            run = scene.run("late", ["--checkpoint.ram_every_steps=0", "--checkpoint.every_steps=0"])
            run.start(2, faults=",".join(f"step.end@{step}:1=sleep:300" for step in range(5, 5 + late))).expect_exit(0)
            seconds = json.loads(harness.program_output("status", run.directory, "--json"))["seconds"]
            self.assertGreater(seconds["training"], 0.3 * late)
            self.assertLess(seconds["between steps"], 0.1 * late)


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS)
        cls.addClassCleanup(cls.scene.close)
        # A rank dies in step 25, and the other goes on from an older step.
        cls.run_of_all = cls.scene.run("faults", OPTIONS)
        cls.start = cls.run_of_all.start(2, faults="step.before_reduce@50:1=kill")
        cls.start.expect_exit(0)
        cls.text = (cls.run_of_all.directory / "metrics.prom").read_text()

    def program(self, *words):
        return harness.program_output(*map(str, words))

    def test_the_file_is_what_the_log_says(self):
        self.assertEqual(self.program("metrics", self.run_of_all.directory), self.text)
        found = families(self.text)
        steps = self.run_of_all.events("step")
        self.assertEqual(found["holdfast_steps_total"][""], len(steps))
        self.assertEqual(found["holdfast_steps_again_total"][""], sum(1 for event in steps if event.get("recomputed")))
        self.assertGreater(len(steps), STEPS, "some steps were made again")
        self.assertEqual(found["holdfast_step"][""], STEPS)
        self.assertEqual(found["holdfast_loss"][""], steps[-1]["loss"])
        self.assertEqual(found["holdfast_under_way"][""], 0)
        self.assertEqual(found["holdfast_fault_events_total"]['{what="rank",cause="rank-died"}'], 1)
        whole = (self.run_of_all.events("finish")[-1]["time_us"] - self.run_of_all.events("start")[0]["time_us"]) / 1e6
        times = found["holdfast_time_seconds"]
        startup = times['{use="start-up"}']
        self.assertAlmostEqual(sum(times.values()), whole + startup, delta=0.001 * whole + startup)
        self.assertAlmostEqual(found["holdfast_goodput_ratio"][""], times['{use="training"}'] / sum(times.values()), delta=1e-9)
        self.assertGreaterEqual(len({name for name in found if name.startswith("holdfast_")}), 15)

    def test_each_class_of_time_has_its_price(self):
        found = families(self.text)
        money = {json.loads(re.search(r'use=("[^"]*")', label)[1]): value for label, value in found["holdfast_time_cost"].items()}
        state = json.loads(self.program("status", self.run_of_all.directory, "--json"))
        self.assertEqual({use: value for use, value in money.items() if abs(state["money"][use] - value) > 1e-6}, {})
        self.assertAlmostEqual(found["holdfast_cost"]['{currency="EUR "}'], sum(money.values()), places=6)
        seconds = state["seconds"]
        self.assertLessEqual(sum(seconds.values()) * 0.99, sum(money.values()))  # one rank at least
        self.assertLessEqual(sum(money.values()), 2 * sum(seconds.values()) * 1.01)  # and two at most
        self.assertEqual(state["currency"], "EUR ")
        self.assertRegex(self.start.output(), r"\ncost: EUR [\d.]+: training EUR [\d.]+, ")
        self.assertRegex(self.program("status", self.run_of_all.directory), r"\ncost +EUR [\d.]+: training EUR ")
        self.program("report", self.run_of_all.directory)
        self.assertIn("Cost: EUR ", (self.run_of_all.directory / "report.html").read_text())

    def test_official_parsers_read_it(self):
        if not PYTHON.exists():
            self.skipTest("there are no readers of metrics: tools/bootstrap --tests")
        outcome = subprocess.run([PYTHON, READER, self.run_of_all.directory], capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        read = json.loads(outcome.stdout)
        found = families(self.text)
        for parser in ("openmetrics", "prometheus"):
            samples = {(name, tuple((label, text) for label, text in labels if label != "run")): value for name, labels, value in read[parser]}
            self.assertEqual(samples[("holdfast_steps_total", ())], found["holdfast_steps_total"][""], parser)
            self.assertEqual(samples[("holdfast_fault_events_total", (("cause", "rank-died"), ("what", "rank")))], 1, parser)
            self.assertEqual(len(samples), sum(len(values) for values in found.values()), parser)
        # TensorBoard has each step once, with the loss of the last time that it was made.
        losses = {event["step"]: event["loss"] for event in self.run_of_all.events("step")}
        curve = read["tensorboard"]["train/loss"]
        self.assertEqual([step for step, _ in curve], list(range(1, STEPS + 1)))
        for step, value in curve:
            self.assertAlmostEqual(value, losses[step], delta=1e-6)
        self.assertEqual([step for step, _ in read["tensorboard"]["held_out/loss"]], [10, 20, 30, 40])

    def test_dashboard_and_alerts_ask_for_what_is_there(self):
        """Or for what other events would bring: a metric of each kind that this run had none of is made by its name."""
        known = set(families(self.text))
        kinds = re.findall(r"^## `(\w+)`$", self.program("config", "events"), re.M)
        known |= {name for kind in kinds for name in (f"holdfast_{kind}_events_total", f"holdfast_last_{kind}_timestamp_seconds")}
        fields = {kind: re.findall(r"^\| `(\w+)`", section, re.M)
                  for kind, section in zip(kinds, re.split(r"^## `\w+`$", self.program("config", "events"), flags=re.M)[1:], strict=True)}
        for kind, names in fields.items():
            known |= {f"holdfast_{'' if kind == 'step' else f'last_{kind}_'}{re.sub('_ms$', '_seconds', name)}" for name in names}
        dashboard = json.loads((harness.ROOT / "configs/grafana/holdfast.json").read_text())
        asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
        rules = (harness.ROOT / "configs/prometheus/holdfast_rules.yml").read_text()
        for name in set(re.findall(r"\bholdfast_\w+", asked + " ".join(re.findall(r"expr: ((?:.*\n)(?: {10}.*\n)*)", rules)))):
            self.assertIn(name, known)
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))

    def test_the_dashboard_is_one_of_grafana(self):
        """Read and written by Grafana's own library, which leaves out what its schema does not have."""
        if not PYTHON.exists():
            self.skipTest("there is no library of Grafana: tools/bootstrap --tests")
        checker, board = harness.ROOT / "tests/system/read_dashboard.py", harness.ROOT / "configs/grafana/holdfast.json"
        outcome = subprocess.run([PYTHON, checker, board], capture_output=True, text=True, check=False, timeout=60)
        # A key of the Prometheus data source, which the schema of dashboards does not know.
        self.assertEqual(outcome.stdout + outcome.stderr, "/annotations/list/0/titleFormat is in no dashboard of Grafana\n")
        text = json.loads(board.read_text())
        text["panels"][0]["options"]["colourMode"] = "value"
        wrong = self.scene.directory / "wrong.json"
        wrong.write_text(json.dumps(text))
        outcome = subprocess.run([PYTHON, checker, wrong], capture_output=True, text=True, check=False, timeout=60)
        self.assertIn("/panels/0/options/colourMode", outcome.stdout, outcome.stderr)

    def test_alerts_fire(self):
        """By promtool, on series as a run writes them."""
        if not PROMTOOL.exists():
            self.skipTest("there is no promtool: tools/bootstrap --tests")
        rules = harness.ROOT / "configs/prometheus/holdfast_rules.yml"
        subprocess.run([PROMTOOL, "check", "rules", rules], check=True, stdout=subprocess.DEVNULL)
        labels = {"job": "train", "instance": "n0"}
        healthy = {name: {each: f"{value}x60" for each, value in values.items()} for name, values in families(self.text).items()}
        # The time of promtool begins at 0, with a minute between two values.
        healthy["holdfast_event_timestamp_seconds"] = {f'{{kind="{kind}"}}': "0+60x60" if kind == "step" else "-9999x60"
                                                       for kind in ("step", "straggler", "health")}
        healthy["holdfast_under_way"] = {"": "1x60"}
        # Of long ago: a host that was sick, one that is to be watched now, and a rank that is as fast again.
        healthy["holdfast_last_health_timestamp_seconds"] = {'{host="n1",rule="xid",action="drain"}': "-9999x60",
                                                             '{host="n5",rule="gpu-hot",action="watch"}': "3000x60"}
        healthy["holdfast_last_straggler_timestamp_seconds"] = {'{rank="2",host="n1",of="rank"}': "3000x60"}
        healthy["holdfast_last_straggler_until_step"] = {'{rank="2",host="n1",of="rank"}': "77x60"}
        healthy["holdfast_goodput_ratio"] = {"": "0.99x60"}
        healthy |= {"holdfast_step": {"": "100+6x60"}, "holdfast_last_checkpoint_step": {"": "99+6x60"}, "holdfast_step_duration_seconds": {"": "10x60"},
                    "holdfast_last_failure_cost_job_seconds": {"": "100x60"}, "holdfast_compute_seconds": {"": "8x60"}, "holdfast_waited_seconds": {"": "1x60"}}
        healthy["holdfast_last_failure_cost_lose_at_most_seconds"] = {"": "100x60"}  # what it has told is no more
        healthy["holdfast_last_failure_cost_process_seconds"] = {"": "30x60"}
        healthy["holdfast_time_seconds"] = {'{use="training"}': "0+57x60", '{use="saving"}': "0+3x60", '{use="paused"}': "0+600x60"}
        cases = {
            None: {},
            "HoldfastNoProgress": {"holdfast_event_timestamp_seconds": {'{kind="step"}': "0x60"}},
            "HoldfastGoodputLow": {"holdfast_goodput_ratio": {"": "0.8x60"}, "holdfast_steps_total": {"": "200x60"}},
            "HoldfastSavesFail": {"holdfast_fault_events_total": {'{what="save",cause="save-failed"}': "0x50 1x10"}},
            "HoldfastFaults": {"holdfast_fault_events_total": {'{what="rank",cause="rank-died"}': "0x30 2x30", '{what="rank",cause="rank-hangs"}': "0x30 3x30"}},
            "HoldfastExposed": {"holdfast_last_failure_cost_job_seconds": {"": "7200x60"}, "holdfast_last_failure_cost_lose_at_most_seconds": {}},
            "HoldfastSlowRank": {"holdfast_last_straggler_timestamp_seconds": {'{rank="1",host="n1",of="rank"}': "3000x60"}},
            "HoldfastSickHost": {"holdfast_last_health_timestamp_seconds": {'{host="n1",rule="disk-errors",action="drain"}': "3000x60"}},
            "HoldfastSlower": {"holdfast_tokens_per_sec": {"": "1000x30 500x30"}},
            "HoldfastGoodputFalls": {"holdfast_time_seconds": {'{use="training"}': "0+30x60", '{use="restart"}': "0+30x60"}},
            "HoldfastWaitsMore": {"holdfast_waited_seconds": {"": "1x25 20x35"}},
            "HoldfastExposedBeyondPromise": {"holdfast_last_checkpoint_step": {"": "99x60"}},
            "HoldfastExposedBeyondPromise without a checkpoint": {"holdfast_last_checkpoint_step": {}},
            "HoldfastExposedBeyondPromise without a promise": {"holdfast_last_failure_cost_job_seconds": {}, "holdfast_last_checkpoint_step": {"": "99x60"},
                                                               "holdfast_step_duration_seconds": {"": "100x60"},
                                                               "holdfast_last_failure_cost_lose_at_most_seconds": {}},
            "HoldfastPromiseNotKept where all is lost": {"holdfast_last_failure_cost_job_seconds": {}},
            "HoldfastPromiseNotKept": {"holdfast_last_failure_cost_lose_at_most_seconds": {"": "30x60"}},
            "HoldfastPromiseNotKept of a process": {"holdfast_last_failure_cost_lose_at_most_seconds": {"": "200x60"},
                                                    "holdfast_last_failure_cost_process_seconds": {"": "300x60"}},
            "HoldfastNotFinite": {"holdfast_loss": {"": "NaN" + " NaN" * 60}},
        }
        self.assertEqual(set(re.findall(r"alert: (\w+)", rules.read_text())), {case.split()[0] for case in cases if case}, "every alert has a case")
        for case, changed in cases.items():
            fires = case and case.split()[0]
            series = [{"series": name + self.with_labels(each, labels), "values": values}
                      for name, all_values in (healthy | changed).items() for each, values in all_values.items()]
            tested = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [{
                "interval": "1m", "input_series": series,
                "alert_rule_test": [{"eval_time": "55m", "alertname": name, "exp_alerts": []}
                                    for name in {each.split()[0] for each in cases if each} - {fires}]}]}
            file = self.scene.directory / "alerts.json"  # which is YAML, too
            file.write_text(json.dumps(tested))
            outcome = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False)
            self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
            if fires:
                tested["tests"][0]["alert_rule_test"] = [{"eval_time": "55m", "alertname": fires, "exp_alerts": []}]
                file.write_text(json.dumps(tested))
                outcome = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False)
                self.assertNotEqual(outcome.returncode, 0, f"{case} does not fire")
                self.assertIn(f'alertname="{fires}"', outcome.stdout + outcome.stderr)

    @staticmethod
    def with_labels(written, more):
        added = ",".join(f'{name}="{value}"' for name, value in more.items())
        return f"{{{added}}}" if not written else written[:-1] + "," + added + "}"

    def test_events_for_people_and_programs(self):
        run = self.run_of_all.directory
        as_json = [json.loads(line) for line in self.program("events", run, "--json").splitlines()]
        self.assertEqual(as_json, [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()])
        rows = list(csv.DictReader(io.StringIO(self.program("events", run, "--kind", "step", "--csv"))))
        self.assertEqual([(int(row["step"]), float(row["loss"])) for row in rows],
                         [(event["step"], event["loss"]) for event in self.run_of_all.events("step")])
        self.assertRegex(self.program("events", run, "--kind=fault"), r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  fault .*rank 1")
        self.assertEqual(self.program("events", run, "--follow"), self.program("events", run), "a run that has ended has no more")
        for words, sentence in ((["--csv"], "add --kind step"), (["--kind=stp"], "--kind must be one of"), (["--json", "--csv"], "not both")):
            refused = harness.call_program("events", run, *words)
            self.assertEqual((refused.returncode, sentence in refused.stdout), (2, True), refused)

    def test_events_are_followed(self):
        run = self.scene.run("followed", OPTIONS)
        start = run.start(1, faults="step.begin@5=sleep:2000")
        self.assertTrue(start.wait_for_step(3), start.output())
        followed = self.program("events", run.directory, "--follow", "--json")
        start.expect_exit(0)
        self.assertEqual([json.loads(line)["step"] for line in followed.splitlines() if '"event":"step"' in line], list(range(1, STEPS + 1)))

    def test_off(self):
        run = self.scene.run("off", ["--training.steps=6", "--metrics.every=0s"])
        run.start(1).expect_exit(0)
        self.assertFalse((run.directory / "metrics.prom").exists() or (run.directory / "tensorboard").exists())

    def test_metrics_that_cannot_be_written_end_nothing(self):
        """Their place is taken by a directory: the run has its bits."""
        run = self.scene.run("taken", ["--training.steps=6", "--metrics.every=1ms"])
        other = self.scene.run("other", ["--training.steps=6", "--metrics.every=0s"])
        (run.directory / "metrics.prom").mkdir(parents=True)
        for each in (run, other):
            each.start(1).expect_exit(0)
        self.assertEqual(run.digest(), other.digest())


if __name__ == "__main__":
    harness.main()
