"""holdfast timeline: what a traced run recorded is all there and right, in every schedule, and costs no bit."""
import json
import re
import unittest

import harness

STEPS, FIRST, TRACED, LANES, MICROBATCHES_PER_LANE = 8, 3, 2, 4, 2
# Interleaved needs as many microbatches in a lane as there are stages.
LAYOUTS = {
    "alone": (1, []),
    "1f1b": (2, ["--parallel.pipeline=2"]),
    "gpipe": (2, ["--parallel.pipeline=2", "--parallel.pipeline_schedule=gpipe"]),
    "interleaved": (2, ["--parallel.pipeline=2", "--parallel.pipeline_schedule=interleaved", "--parallel.pipeline_chunks=2"]),
    "two copies": (4, ["--parallel.pipeline=2"]),
}
TRACE = [f"--trace.first_step={FIRST}", f"--trace.steps={TRACED}"]


class TimelineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS, LANES)
        cls.addClassCleanup(cls.scene.close)
        cls.overrides = ["--threads=1", "--model.layers=4"]
        cls.digest = harness.reference_digest(cls.scene, cls.overrides)

    def traced_run(self, layout, name=None):
        ranks, overrides = LAYOUTS[layout]
        run = self.scene.run(name or layout.replace(" ", "-"), [*self.overrides, *TRACE, *overrides])
        run.start(ranks).expect_exit(0)
        return run

    def timeline(self, run, *options):
        return harness.program_output("timeline", run.directory, *options)

    def test_every_schedule(self):
        for layout, (ranks, _) in LAYOUTS.items():
            with self.subTest(layout):
                run = self.traced_run(layout)
                self.assertEqual(run.digest(), self.digest, "tracing changes no bit")
                trace = run.directory / "trace.json"
                output = self.timeline(run, f"--trace={trace}")
                self.check_summary(output, layout, ranks)
                self.check_trace(json.loads(trace.read_text()), layout, ranks)

    def check_summary(self, output, layout, ranks):
        self.assertIn(f"steps {FIRST} to {FIRST + TRACED - 1} of {ranks} rank", output)
        shares = {name: float(share) for name, share in
                  re.findall(r"(measured|measured parts|formula) (\d+\.\d) %", output)}
        microbatches = LANES * MICROBATCHES_PER_LANE
        formula = {"alone": 0, "1f1b": 1 / (microbatches + 1), "gpipe": 1 / (microbatches + 1),
                   "interleaved": 1 / (2 * MICROBATCHES_PER_LANE + 1), "two copies": 1 / (microbatches / 2 + 1)}[layout]
        self.assertAlmostEqual(shares["formula"], 100 * formula, delta=0.06)
        self.assertLess(shares["measured parts"], 60)
        self.assertLess(0 if layout == "alone" else shares["formula"] / 2, shares["measured"] + 0.1)

    def check_trace(self, trace, layout, ranks):
        chunks = 2 if layout == "interleaved" else 1
        lanes = LANES // 2 if layout == "two copies" else LANES
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        for rank in range(ranks):
            mine = [span for span in spans if span["pid"] == rank]
            compute = sorted((span for span in mine if span["tid"] == 1), key=lambda span: span["ts"])
            for before, after in zip(compute, compute[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.002, "a device does one thing at a time")
            for step in range(FIRST, FIRST + TRACED):
                whole = next(span for span in mine if span["cat"] == "step" and span["args"]["step"] == step)
                for work in ("forward", "backward"):
                    found = sorted((span["args"]["chunk"], span["args"]["microbatch"]) for span in compute
                                   if span["cat"] == work and span["args"]["step"] == step)
                    self.assertEqual(found, [(chunk, i) for chunk in range(chunks)
                                             for i in range(lanes * MICROBATCHES_PER_LANE)])
                inside = [span for span in mine if span["args"]["step"] == step and span["cat"] not in ("evaluation", "save")]
                for span in inside:
                    self.assertLessEqual(whole["ts"] - 0.002, span["ts"])
                    self.assertLessEqual(span["ts"] + span["dur"], whole["ts"] + whole["dur"] + 0.002)
                self.assertEqual({"update", "wait_vote"} - {span["cat"] for span in inside}, set())
        self.check_messages(trace, spans, layout, chunks)

    def check_messages(self, trace, spans, layout, chunks):
        """An activation leaves after its forward and arrives before that of the next stage begins; gradients likewise."""
        arrows = [event for event in trace["traceEvents"] if event["ph"] in "sf"]
        if layout == "alone":
            self.assertEqual(arrows, [])
            return
        copies, boundaries = (2 if layout == "two copies" else 1), 2 * chunks - 1
        microbatches = TRACED * LANES * MICROBATCHES_PER_LANE // copies
        self.assertEqual(len(arrows), 2 * copies * 2 * boundaries * microbatches)
        if layout == "two copies":
            self.assertTrue(any(span["cat"] == "exchange_bucket" and span["args"].get("bytes", 0) > 0 for span in spans))
        one = {(span["cat"], span["args"]["step"], span["args"]["microbatch"]): span for span in spans
               if span["pid"] < 2 and span["args"].get("chunk") == 0 and (span["pid"] == 1) == (span["cat"] in (
                   "receive_activation", "send_gradient"))}
        stages = {(span["pid"], span["cat"], span["args"]["step"], span["args"]["microbatch"]): span for span in spans
                  if span["cat"] in ("forward", "backward") and span["args"]["chunk"] == 0}
        for step in range(FIRST, FIRST + TRACED):
            for microbatch in range(2):
                sent, arrived = one["send_activation", step, microbatch], one["receive_activation", step, microbatch]
                first, second = stages[0, "forward", step, microbatch], stages[1, "forward", step, microbatch]
                self.assertLessEqual(first["ts"] + first["dur"], sent["ts"] + 0.002)
                self.assertLessEqual(sent["ts"], arrived["ts"] + arrived["dur"])
                self.assertLessEqual(arrived["ts"], second["ts"])
                self.assertEqual(sent["args"]["bytes"], 4 * harness.MICROBATCH_SIZE * harness.SEQUENCE_LENGTH * harness.WIDTH)
                self.assertLessEqual(stages[1, "backward", step, microbatch]["ts"], stages[0, "backward", step, microbatch]["ts"])

    def test_seconds_lost_to_a_rank_that_sleeps(self):
        """In the second recorded step, of replicas, of stages, of slices of every layer. On a busy machine others are late, too,
        while it sleeps, so a part of it is not lost to it alone."""
        late_s, late = 3, 2
        for name, overrides in {"replicas": [], "stages": ["--parallel.pipeline=2"],
                                "slices": ["--parallel.tensor=2", "--parallel.tensor_lanes=2"]}.items():
            with self.subTest(name):
                run = self.scene.run(f"late-{name}", [*self.overrides, *TRACE, *overrides])
                run.start(4, faults=f"step.begin@{FIRST + 1}:{late}=sleep:{int(1000 * late_s)}").expect_exit(0)
                answer = json.loads(self.timeline(run, "--json"))
                self.assertEqual(answer["steps"], TRACED)
                self.assertEqual(answer["blamed"], [late], answer)
                lost = {rank["rank"]: rank["lost_s"] for rank in answer["ranks"]}
                self.assertAlmostEqual(lost.pop(late), late_s, delta=0.3 * late_s)
                self.assertLess(max(lost.values()), 0.3 * late_s, lost)
                self.assertRegex(self.timeline(run), rf"[23]\.\d+ s lost to rank {late}, mostly in host")
                self.assertRegex((run.directory / "report.html").read_text(), r"Seconds lost to ranks")

    def test_a_run_without_a_trace_says_how_to_record_one(self):
        run = self.scene.run("untraced", self.overrides)
        run.start(1).expect_exit(0)
        self.assertFalse((run.directory / "trace").exists())
        done = harness.call_program("timeline", run.directory)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, r"holds no trace.*--trace\.steps=3")

    def test_a_later_recording_replaces_the_first(self):
        """Of fewer ranks, on a run that goes on; a run that ends among the steps writes those it has."""
        run = self.traced_run("1f1b", "again")
        overrides = [f"--training.steps={STEPS + 4}", f"--trace.first_step={STEPS + 3}", "--trace.steps=10", "--parallel.pipeline=1"]
        run.start(1, overrides=overrides).expect_exit(0)
        self.assertEqual([path.name for path in (run.directory / "trace").iterdir()], ["rank-00000.jsonl"])
        self.assertIn(f"steps {STEPS + 3} to {STEPS + 4} of 1 rank", self.timeline(run))
        self.assertIn(f"step {STEPS + 4} of 1 rank", self.timeline(run, f"--steps={STEPS + 4}"))


if __name__ == "__main__":
    harness.main(at_once=1)
