"""Numbers of real runs are made wrong, and the checks of the run find it, name the rank, and leave the bits of the undisturbed run.

tools/numbers_campaign makes such runs by hundreds; these are the ones that must come out the same each time.
"""
import dataclasses
import json
import re
import shutil
import signal
import unittest

import harness
import wrong_numbers
from wrong_numbers import AUTO, KINDS, LANES, SAMPLES_PER_LANE, Case, Layout

SAMPLES = LANES * SAMPLES_PER_LANE  # of a step
SPOILED_STEP = 12
SPOILED = SAMPLES * (SPOILED_STEP - 1) + 6  # sample: lane 2, its second one


class NumbersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(lanes=LANES)
        cls.addClassCleanup(cls.scene.close)
        cls.laboratory = wrong_numbers.Laboratory(cls.scene, steps=24)

    @classmethod
    def tearDownClass(cls):
        if cls.laboratory.clean_alarms:
            raise AssertionError(f"{cls.laboratory.clean_alarms} false alarms in undisturbed runs")

    def judge(self, *words, **more):
        outcome = self.laboratory.judge(Case(*words, **more))
        self.assertEqual(outcome.false_alarms, 0, outcome)
        return outcome

    def expect_healed(self, action, *words, latency=1, **more):
        """Found at once, the right rank named, and the bits are those of the undisturbed run."""
        outcome = self.judge(*words, **more)
        told = (outcome.result, outcome.culprit, outcome.same_bits, outcome.findings[0]["action"] if outcome.findings else None)
        self.assertEqual(told, ("found", "right", True, action), outcome)
        self.assertLessEqual(outcome.latency, latency, outcome)
        return outcome

    def test_state_at_rest_is_always_found(self):
        for action, layout, precision, point, rank, kind in [("rollback", Layout(1), "fp32", "step.end", 0, "weights"),
                                                             ("evict", Layout(2), "bf16", "step.after_vote", 1, "moment1"),
                                                             ("rollback", Layout(1, 2), "bf16", "step.begin", 1, "moment2"),
                                                             ("rollback", Layout(1, 1, 2), "fp32", "step.begin", 0, "weights"),
                                                             ("evict", Layout(2, 2), "fp32", "step.end", 2, "moment2")]:
            with self.subTest(layout=str(layout), kind=kind):
                outcome = self.expect_healed(action, kind, layout, precision, AUTO, point, f"flip:{kind}:0", 8, rank)
                self.assertEqual(outcome.findings[0]["of"], "state")

    def test_state_at_rest_is_found_whatever_the_class_of_the_fault(self):
        for change in ("flips:weights:2", "flip_run:weights:31:2:32:0", "stuck_at_0:moment1:22:1024", "stuck_at_1:moment2:22:1024"):
            with self.subTest(change=change):
                self.expect_healed("evict", "weights", Layout(2), "bf16", AUTO, "step.begin", change, 8, 1)

    def test_sums_of_gradients_that_change_after_the_vote_are_always_found(self):
        """By the update that reads them, whatever its layout: in place, in an accumulator, or with gradients that are sharded."""
        for action, layout, precision, point, rank, change in [
                ("rollback", Layout(1), "fp32", "step.before_update", 0, "flip:gradients:0"),
                ("evict", Layout(2), "bf16", "step.before_update", 1, "flip:gradients:31"),
                ("evict", Layout(4), "bf16", "step.before_vote", 2, "flip:gradients:0"),
                ("rollback", Layout(1, 2), "bf16", "step.after_vote", 1, "flips:gradients:3"),
                ("rollback", Layout(1, 1, 2), "fp32", "step.before_update", 1, "flip_run:gradients:31:2:32:0"),
                ("evict", Layout(2, 2), "fp32", "step.before_update", 2, "stuck_at_1:gradients:20:256")]:
            with self.subTest(layout=str(layout), change=change):
                outcome = self.expect_healed(action, "gradient sums", layout, precision, AUTO, point, change, 8, rank)
                self.assertEqual(outcome.findings[0]["of"], "state")
                self.assertRegex(outcome.findings[0]["reason"], r"^step 8: sums of gradients changed in memory before the update: rank \d \(host .*\): "
                                 rf"gradient of {re.escape(outcome.changed['tensor'])}, elements \d+ to \d+")

    def test_state_that_changes_before_the_first_update_is_found_by_it(self):
        for action, layout, precision, rank, kind in [("evict", Layout(2), "bf16", 1, "weights"), ("rollback", Layout(1, 2), "fp32", 1, "moment1"),
                                                      ("rollback", Layout(1), "bf16", 0, "moment2")]:
            with self.subTest(layout=str(layout), kind=kind):
                outcome = self.expect_healed(action, kind, layout, precision, AUTO, "step.begin", f"flip:{kind}:0", 1, rank, latency=0)
                self.assertEqual(outcome.findings[0]["of"], "state")

    def test_a_broken_unit_is_found_by_an_audit(self):
        """At this step the rank's own lane is audited, so no update has been made of wrong numbers yet."""
        outcome = self.expect_healed("evict", "product always", Layout(4), "fp32", 1, "step.begin", "wrong_product_always", 7, 2)
        self.assertEqual((outcome.exits, outcome.latency), ([0], 0))

    def test_a_copy_of_a_parameter_that_changed_on_any_rank(self):
        """The audit of lanes would find it, too: the check of parameters comes before."""
        for layout, rank in [(Layout(4), 3), (Layout(2), 0), (Layout(2, 2), 3)]:
            with self.subTest(layout=str(layout)):
                outcome = self.expect_healed("redo", "parameters", layout, "bf16", 5, "step.begin", "flip:parameters:3", 10, rank, latency=0)
                finding, = outcome.findings
                self.assertEqual((finding["of"], finding["attempts"]), ("state", 2))
                self.assertIn(f"in its memory: {outcome.changed['tensor'].split('.')[0]}", finding["reason"])

    def test_a_nan_in_weights_or_parameters_is_no_fault_of_the_data(self):
        """Attempts agree on it, because they read the same memory."""
        for action, kind, layout, precision, rank in [("rollback", "nan:weights", Layout(1), "fp32", 0),
                                                      ("rollback", "nan:weights", Layout(1, 1, 2), "fp32", 1),
                                                      ("redo", "nan:parameters", Layout(2), "bf16", 1)]:
            with self.subTest(layout=str(layout), kind=kind):
                self.expect_healed(action, "nan", layout, precision, AUTO, "step.begin", kind, 9, rank)

    def test_a_nan_is_computed_again(self):
        for action, layout, precision, point, rank in [("nan:gradients", Layout(2), "bf16", "step.before_reduce", 1),
                                                       ("nan:activations", Layout(1, 2), "fp32", "step.before_backward", 1)]:
            with self.subTest(action=action):
                outcome = self.judge("nan", layout, precision, AUTO, point, action, 9, rank)
                self.assertEqual((outcome.result, outcome.same_bits, outcome.latency), ("found", True, 0), outcome)
                self.assertEqual(outcome.findings[0]["action"], "redo")
                self.assertNotEqual(outcome.culprit, "wrong", outcome)

    def expect_as_alone(self, kind, found):
        """The bits of a run with a bad sample depend on neither layout nor kills, and no rank is to blame."""
        for layout, kill in [(Layout(2), ""), (Layout(4), f"step.after_vote@{SPOILED_STEP}:3"), (Layout(1, 2), ""),
                             (Layout(1), f"step.end@{SPOILED_STEP + 1}:0")]:
            with self.subTest(layout=str(layout), kill=kill):
                action = KINDS[kind].actions[0]
                outcome = self.judge(kind, layout, "fp32", AUTO, "data.sample", action, SPOILED_STEP, sample=SPOILED, kill=kill)
                self.assertEqual((outcome.same_bits, outcome.is_found, outcome.culprit), (True, found, ""), outcome)
                for each in outcome.findings:
                    self.assertEqual((each["step"], each["action"], each["lane"]), (SPOILED_STEP, "skip", 2), outcome)
                    # What reads the activations that the sample spoils, after the embedding.
                    self.assertEqual((each["op"], each["layer"], each["pass"], each["attempts"]),
                                     ("rmsnorm_forward", "layers.0.attention", "forward", 2), outcome)
                    self.assertRegex(each["reason"], r"the first result that is not finite is of rmsnorm_forward in layers.0.attention")
        self.expect_as_alone_when_stopped(kind)

    def expect_as_alone_when_stopped(self, kind):
        """A run that is told to stop after the bad sample, and goes on with another number of ranks."""
        case = Case(kind, Layout(1), "fp32", AUTO, "data.sample", KINDS[kind].actions[0], SPOILED_STEP, sample=SPOILED)
        run = self.scene.run(f"stopped-{case.action}", [*self.laboratory.options, *case.overrides(), "--training.steps=24"])
        stopped = run.start(1, faults=f"{case.faults()},{harness.slow_steps(SPOILED_STEP + 1)}")
        self.assertTrue(stopped.wait_for_step(SPOILED_STEP + 1), stopped.tail())
        stopped.signal(signal.SIGTERM)
        stopped.wait()
        self.assertFalse(run.finished())
        run.start(2, faults=case.faults()).expect_exit(0)
        self.assertEqual(run.digest(), self.laboratory.twin(case))

    def test_a_sample_that_gives_a_nan_is_skipped_in_every_layout(self):
        self.expect_as_alone("sample nan", found=True)

    def test_a_scrambled_sample_gives_the_same_bits_in_every_layout(self):
        """Its loss is not that of a spike: before the 32nd step there is none."""
        self.expect_as_alone("sample scramble", found=False)

    def test_a_wrong_rate_of_one_rank_is_found_by_the_next_step(self):
        outcome = self.judge("rate of a rank", Layout(2), "fp32", 1, "step.before_update", "scale_rate:2", 9, 1)
        self.assertEqual((outcome.result, outcome.culprit, outcome.exits), ("found", "right", [0]), outcome)
        self.assertTrue(outcome.same_bits, outcome)
        self.assertIn("the learning rate was", outcome.findings[0]["reason"])


class FrozenTest(unittest.TestCase):
    """A frozen tensor that changes in the memory of a rank is found by the next audit, and the run goes back to the one before."""
    OPTIONS = ["--training.steps=24", "--training.sequence_length=64", "--parallel.lanes=4", "--checkpoint.every_steps=4",
               "--verdict.audit_every_steps=6", '--model.freeze=["layers 0-0"]', "--evaluation.every_steps=0"]

    def test_goes_back_to_the_last_audit(self):
        scene = harness.Scene(lanes=LANES)
        self.addCleanup(scene.close)
        for precision in ("fp32", "bf16"):
            options = [*self.OPTIONS, f"--training.precision={precision}"]
            clean = scene.run(f"clean-{precision}", options)
            start = clean.start(1)
            start.expect_exit(0)
            self.assertEqual(clean.events("verdict"), [])
            last = int(re.search(r"(?m)^(\d+) parameters", start.output())[1]) - 1  # the buckets of frozen tensors come last
            # In fp32 it is the weight itself, which was compared at the save of step 8, too; in bf16 a copy.
            back_to, what = (7, "weights or optimizer state") if precision == "fp32" else (6, "frozen parameters")
            for ranks, action in [(1, "rollback"), (2, "evict")]:
                with self.subTest(precision=precision, ranks=ranks):
                    run = scene.run(f"{precision}-{ranks}", options)
                    start = run.start(ranks, faults=f"step.begin@9:{ranks - 1}=flip:parameters:3:{last}")
                    start.expect_exit(0)
                    verdict, = run.events("verdict")
                    self.assertEqual((verdict["step"], verdict["action"], verdict["rank"], verdict["back_to_step"]), (12, action, ranks - 1, back_to))
                    self.assertRegex(verdict["reason"], what + r" .*changed in memory: rank \d \(host .*\).* layers\.0\.")
                    self.assertLessEqual(run.events("recovery")[0]["resumed_from_step"], back_to)
                    self.assertEqual(run.digest(), clean.digest())


class RollbackTest(unittest.TestCase):
    """A batch whose loss is a spike takes the run back, and it goes on without that batch and those before it."""
    LANES, PER_STEP, SPIKE = 4, 16, 41
    OPTIONS = ["--training.steps=60", "--training.sequence_length=64", "--parallel.lanes=4", "--verdict.window_steps=16", "--verdict.drift_steps=0",
               "--verdict.loss_score=3", "--verdict.on_spike=rollback", "--verdict.rollback_steps=5"]

    def setUp(self):
        self.scene = harness.Scene(lanes=LANES)
        self.addCleanup(self.scene.close)

    def train(self, name, ranks, kill="", options=(), starts=1):
        run = self.scene.run(name, [*self.OPTIONS, *options])
        first = (self.SPIKE - 1) * self.PER_STEP
        spoiled = ",".join(f"data.sample@{sample}=scramble" for sample in range(first, first + self.PER_STEP))
        for start in range(starts):
            outcome = run.start(ranks, faults=f"{spoiled},{kill}" if start == 0 and kill else spoiled)
            outcome.wait()
            if run.finished():
                break
        self.assertTrue(run.finished(), outcome.tail())
        return run

    def test_bits_depend_on_neither_layout_nor_deaths(self):
        alone = self.train("alone", 1)
        verdicts = [event for event in alone.events("verdict") if event["action"] == "rollback"]
        self.assertEqual([(event["step"], event["back_to_step"]) for event in verdicts], [(self.SPIKE, 35)])
        recovery, = alone.events("recovery")
        self.assertEqual((recovery["reason"], recovery["resumed_from_step"], recovery["lost_steps"]), ("rollback", 35, 5))
        self.assertEqual(len({event["step"] for event in alone.events("step")}), 60)
        used = 60 * self.PER_STEP  # what was left out was not
        for name, ranks, kill, options, starts in [
                ("four", 4, "", [], 1),
                ("pipeline", 4, "step.begin@39:3=kill", ["--parallel.pipeline=2", "--checkpoint.ram_every_steps=0", "--checkpoint.every_steps=8"], 1),
                ("begins", 2, "rollback.begin:1=kill", [], 1),
                ("writer", 2, "generation.before_publish:0=kill", [], 1),
                ("after", 2, "step.begin@45:0=kill", [], 1),
                ("restarted", 1, "rollback.begin=kill", [], 2)]:
            with self.subTest(name=name):
                run = self.train(name, ranks, kill, options, starts)
                self.assertEqual(run.digest(), alone.digest())
                newest = run.events("step")[-1]
                self.assertEqual((newest["step"], newest["tokens"], newest["source_samples"]), (60, 64 * used, [used]))

    def test_a_replay_leaves_the_same_batches_out(self):
        run = self.train("replayed", 2, options=["--checkpoint.ram_every_steps=0", "--checkpoint.every_steps=16", "--checkpoint.keep=9"])
        for step in (36, 38):  # from the checkpoint of step 32, over the jump at step 35
            self.assertIn("comparison same bits", harness.program_output("replay", str(run.directory), f"--step={step}"))


class StaysBadTest(unittest.TestCase):
    """Numbers that are bad once more than may be skipped take the run back to before the first of them, and then end it."""
    LANES, PER_STEP, BAD = 4, 16, 27
    OPTIONS = ["--training.steps=45", "--training.sequence_length=64", "--parallel.lanes=4", "--verdict.window_steps=16", "--verdict.drift_steps=0",
               "--verdict.skips_max=1", "--verdict.rollback_steps=5"]
    TOO_FAST = ["--optimizer.learning_rate=100", "--optimizer.gradient_clip=0"]

    def setUp(self):
        self.scene = harness.Scene(lanes=LANES)
        self.addCleanup(self.scene.close)

    def train(self, name, ranks, kill="", options=(), starts=1, bad_steps=2):
        run = self.scene.run(name, [*self.OPTIONS, *options])
        spoiled = ",".join(f"data.sample@{(step - 1) * self.PER_STEP + 6}=nan" for step in range(self.BAD, self.BAD + bad_steps))
        for start in range(starts):
            faults = [spoiled, kill if start == 0 else ""]
            outcome = run.start(ranks, faults=",".join(filter(None, faults)))
            outcome.wait()
            if run.finished():
                break
        return run, outcome

    def test_bits_depend_on_neither_layout_nor_deaths(self):
        alone, outcome = self.train("alone", 1)
        self.assertTrue(alone.finished(), outcome.tail())
        self.assertEqual([(each["step"], each["kind"], each["action"], each.get("back_to_step")) for each in alone.events("verdict")],
                         [(27, "nonfinite", "skip", None), (28, "nonfinite", "rollback", 20)])
        recovery, = alone.events("recovery")
        self.assertEqual((recovery["reason"], recovery["lost_steps"]), ("rollback", 27 - recovery["resumed_from_step"]))
        self.assertRegex(outcome.output(), "the run goes back to step 20 and on from there without the batches of steps 21 to 28")
        for name, ranks, kill, options, starts in [
                ("four", 4, "", [], 1),
                ("pipeline", 4, "step.begin@26:3=kill", ["--parallel.pipeline=2", "--checkpoint.every_steps=8"], 1),
                ("skipped", 2, "step.after_vote@27:1=kill", [], 1),
                ("writer", 2, "generation.before_publish:0=kill", [], 1),
                ("restarted", 1, "rollback.begin=kill", [], 2)]:
            with self.subTest(name=name):
                run, outcome = self.train(name, ranks, kill, options, starts)
                self.assertTrue(run.finished(), outcome.tail())
                self.assertEqual(run.digest(), alone.digest())

    def test_ends_where_no_rollback_is_left_or_wanted(self):
        """At a rate that is much too high, so that other data help nothing."""
        for name, options, rollbacks in [("three", [], 3), ("none", ["--verdict.rollbacks_max=0"], 0), ("stop", ["--verdict.on_nonfinite=stop"], 0)]:
            with self.subTest(name=name):
                run = self.scene.run(name, [*self.OPTIONS, *self.TOO_FAST, *options])
                outcome = run.start(2)
                outcome.expect_exit(20)
                actions = [each["action"] for each in run.events("verdict")]
                self.assertEqual((actions.count("rollback"), actions[-1]), (rollbacks, "stop"), actions)
                self.assertRegex(outcome.output(), "the update was not made. Lower optimizer.learning_rate or start again from an older checkpoint")

    def test_a_lower_rate_goes_on(self):
        """Each roll-back takes a thousandth of the rate, in every layout and after a death."""
        options = [*self.TOO_FAST, "--optimizer.schedule=constant", "--verdict.rate_after_rollback=1e-3"]
        digests = set()
        for name, ranks, kill, starts in [("alone", 1, "", 1), ("two", 2, "step.begin@30:1=kill", 1), ("restarted", 1, "step.end@31=kill", 2)]:
            run, outcome = self.train(name, ranks, kill, options, starts, bad_steps=0)
            self.assertTrue(run.finished(), outcome.tail())
            made = {event["step"]: event["learning_rate"] for event in run.events("step")}
            times = sum(each["action"] == "rollback" for each in run.events("verdict"))
            self.assertGreater(times, 0)
            self.assertAlmostEqual(made[45], 100 * 1e-3 ** times)
            digests.add(run.digest())
        self.assertEqual(len(digests), 1)

    def test_a_loss_that_explodes_is_not_applied(self):
        run = self.scene.run("exploded", [*self.OPTIONS, *self.TOO_FAST])
        run.start(1).expect_exit(20)
        exploded = [each for each in run.events("verdict") if each["kind"] == "exploded"]
        self.assertEqual((exploded[0]["step"], exploded[0]["action"]), (2, "skip"), exploded)
        self.assertRegex(exploded[0]["reason"], "the loss is .* times the usual one")


class EndsTest(unittest.TestCase):
    """A verdict ends the run because the config says so."""
    OPTIONS = [*RollbackTest.OPTIONS[:-2], "--checkpoint.every_steps=16", "--checkpoint.ram_every_steps=0"]

    def setUp(self):
        self.scene = harness.Scene(lanes=LANES)
        self.addCleanup(self.scene.close)

    def test_a_spike(self):
        first = (RollbackTest.SPIKE - 1) * RollbackTest.PER_STEP
        spoiled = ",".join(f"data.sample@{sample}=scramble" for sample in range(first, first + RollbackTest.PER_STEP))
        for action, saved in [("stop", "step-00000032"), ("save_and_stop", "step-00000040")]:
            with self.subTest(action=action):
                run = self.scene.run(action, [*self.OPTIONS, f"--verdict.on_spike={action}"])
                for start in range(2):  # the second one comes to the same step
                    outcome = run.start(2, faults=spoiled)
                    outcome.expect_exit(20)
                    self.assertEqual([(each["step"], each["kind"], each["action"]) for each in run.events("verdict")], [(41, "spike", action)] * (start + 1))
                    self.assertRegex(outcome.output(), rf'the run ends here \(verdict.on_spike = "{action}"\). Look at the step first')
                    self.assertEqual(run.checkpoints()[-1].name, saved)
                status = json.loads((run.directory / "status.json").read_text())
                self.assertEqual((status["state"], status["step"], status["exit_code"]), ("failed", 40, 20))
                run.overrides[-1] = "--verdict.on_spike=tell"
                run.start(1, faults=spoiled).expect_exit(0)

    def test_a_drift(self):
        """Hardly anything is learnt, so the median of eight losses goes up and down, and each rise counts."""
        drifts = [*self.OPTIONS, "--optimizer.learning_rate=1e-9", "--verdict.drift_steps=8", "--verdict.drift_rise=0", "--verdict.loss_score=99"]
        digests = {}
        for action, options, code in [("none", [], 0), ("rollback", ["--verdict.on_drift=rollback", "--verdict.rollback_steps=4"], 0),
                                      ("stop", ["--verdict.on_drift=stop"], 20), ("save_and_stop", ["--verdict.on_drift=save_and_stop"], 20)]:
            for ranks, kill in [(1, ""), (2, "step.begin@20:1=kill")] if action == "rollback" else [(1, "")]:
                run = self.scene.run(f"{action}-{ranks}", [*drifts, *options])
                run.start(ranks, faults=kill).expect_exit(code)
                verdict = run.events("verdict")[0]
                self.assertEqual((verdict["kind"], verdict["action"]), ("drift", action))
                if code == 0:
                    self.assertEqual(digests.setdefault(action, run.digest()), run.digest())


class WrongRankTest(unittest.TestCase):
    """A rank that computes wrong numbers for good leaves, and what it computed since its last good audit goes, too."""
    OPTIONS = ["--training.steps=60", "--training.sequence_length=64", "--parallel.lanes=4", "--verdict.audit_every_steps=7"]
    WRONG = "step.begin@20:1=wrong_product_always"

    def setUp(self):
        self.scene = harness.Scene(lanes=LANES)
        self.addCleanup(self.scene.close)

    def test_the_run_goes_back_to_before_its_last_good_products(self):
        """The audit of step 14 found the rank right, that of step 21 finds it wrong, and known products say so."""
        clean = self.scene.run("clean", self.OPTIONS)
        clean.start(2).expect_exit(0)
        for name, options, oldest, newest in [("disk", ["--checkpoint.every_steps=4", "--checkpoint.keep=2"], 4, 14),
                                              ("start", ["--checkpoint.every_steps=16", "--checkpoint.ram_every_steps=0"], 0, 0)]:
            with self.subTest(name=name):
                run = self.scene.run(name, [*self.OPTIONS, *options])
                start = run.start(4, faults=self.WRONG)
                start.expect_exit(0)
                evicted, = (event for event in run.events("verdict") if event["action"] == "evict")
                self.assertEqual((evicted["step"], evicted["rank"], evicted["back_to_step"]), (21, 1, 14))
                self.assertEqual([event["cause"] for event in run.events("fault")], ["rank-evicted"])
                self.assertIn(": computed-wrong", harness.program_output("report", run.directory, "--incident=1"))
                self.assertEqual(start.output().count("no new ranks are started on host"), 1, start.tail())
                resumed = run.events("recovery")[0]["resumed_from_step"]
                self.assertTrue(oldest <= resumed <= newest, resumed)
                self.assertEqual(run.digest(), clean.digest())

    def test_a_writer_that_dies_before_it_has_recorded_the_decision(self):
        clean = self.scene.run("clean", self.OPTIONS)
        clean.start(2).expect_exit(0)
        for rank in (1, 0):  # that is wrong; the writer itself, too
            with self.subTest(rank=rank):
                run = self.scene.run(f"writer-{rank}", [*self.OPTIONS, "--checkpoint.every_steps=4", "--checkpoint.keep=2"])
                start = run.start(4, faults=f"step.begin@20:{rank}=wrong_product_always,generation.before_publish:0=kill")
                start.expect_exit(0)
                start.expect_passed("generation.before_publish")
                self.assertEqual(run.digest(), clean.digest())

    def test_an_older_checkpoint_comes_from_elsewhere(self):
        """The checkpoints of before the last good audit are not here any more when the verdict comes, in the vote of step 35."""
        options = [*self.OPTIONS, "--checkpoint.every_steps=4", "--checkpoint.ram_every_steps=0", "--checkpoint.keep=19"]
        clean = self.scene.run("clean", options)
        clean.start(2).expect_exit(0)
        elsewhere = self.scene.directory / "elsewhere"
        elsewhere.mkdir()
        older = f"{elsewhere}/step-$(printf %08d $((HOLDFAST_BEFORE_STEP - 1)))"
        run = self.scene.run("elsewhere", [*options, f'--checkpoint.download_command=test -z "$HOLDFAST_BEFORE_STEP" || cp {older}/* "$HOLDFAST_DOWNLOAD"'])
        start = run.start(4, faults=f"step.begin@34:1=wrong_product_always,{harness.slow_steps(30, count=6, milliseconds=300)}")
        start.wait_for_checkpoint(32)
        for checkpoint in run.checkpoints():
            if checkpoint.name <= "step-00000028":
                shutil.move(checkpoint, elsewhere / checkpoint.name)
        start.expect_exit(0)
        self.assertIn("downloaded the checkpoint of step 28: ", start.output())
        self.assertEqual(run.events("recovery")[0]["resumed_from_step"], 28)
        self.assertEqual(run.digest(), clean.digest())

    def test_the_rank_of_a_copy_that_is_wrong_leaves(self):
        options = [*self.OPTIONS, "--parallel.lanes=6", "--parallel.pipeline=2"]
        clean = self.scene.run("clean", options)
        clean.start(2).expect_exit(0)
        run = self.scene.run("copy", options)
        run.start(6, faults="step.begin@20:3=wrong_product_always").expect_exit(0)
        evicted, = (event for event in run.events("verdict") if event["action"] == "evict")
        self.assertEqual((evicted["step"], evicted["rank"], evicted["op"]), (21, 3, "matmul"))
        self.assertEqual(run.digest(), clean.digest())

    def test_where_both_replicas_must_stay_the_next_start_goes_back(self):
        clean = self.scene.run("clean", self.OPTIONS)
        clean.start(2).expect_exit(0)
        run = self.scene.run("two", [*self.OPTIONS, "--checkpoint.every_steps=4", "--elastic.min_data_parallel=2"])
        run.start(2, faults=self.WRONG).expect_exit(20)
        run.start(2).expect_exit(0)
        self.assertEqual(run.digest(), clean.digest())


def lane_flips(*steps, rank=1):
    """Faults: a rank of two computes the second of its two lanes wrong, once at each of these steps, which are counted from the first of
    the process. The second lanes are audited at even steps of the run, the first ones at odd steps; each finding takes a second attempt."""
    hits = [(step - 1) * 2 + 2 + 2 * index for index, step in enumerate(steps)]
    return ",".join(f"step.before_reduce@{hit}:{rank}=flip:gradients:20" for hit in hits)


class SecondFindingTest(unittest.TestCase):
    """A rank that computes wrong numbers once is told, and leaves at the second finding about its device."""

    LAYOUT = Layout(2)
    SECOND = r"that rank leaves the run, which goes on without it"

    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(lanes=LANES)
        cls.addClassCleanup(cls.scene.close)
        cls.laboratory = wrong_numbers.Laboratory(cls.scene, steps=24)

    def run_of(self, name, *options):
        case = Case("lane gradients", self.LAYOUT, "fp32", 1, "step.before_reduce", "", 6)
        return self.scene.run(name, [*self.laboratory.options, *case.overrides(), "--training.steps=24", *options])

    def expect_verdicts(self, run, start, expected):
        """And the bits of the undisturbed run."""
        self.assertTrue(run.finished(), start.tail())
        verdicts = run.events("verdict")
        self.assertEqual([(each["step"], each["action"], each["rank"], each["device"], each["earlier_findings"]) for each in verdicts],
                         expected, verdicts)
        self.assertEqual(run.digest(), self.laboratory.undisturbed(self.LAYOUT, "fp32"))
        return verdicts

    def findings(self, run):
        devices = json.loads((run.directory / "hardware.json").read_text())["devices"]
        self.assertEqual([each["device"] for each in devices], ["cpu"])
        return devices[0]["host"], [(each["step"], each["what"]) for each in devices[0]["findings"]]

    def test_evicts(self):
        run = self.run_of("twice")
        start = run.start(2, faults=lane_flips(6, 10))
        start.wait()
        verdicts = self.expect_verdicts(run, start, [(6, "redo", 1, "cpu", 0), (10, "evict", 1, "cpu", 1)])
        host = verdicts[0]["host"]
        self.assertRegex(verdicts[1]["reason"], rf"this is the second finding about cpu of host {host} since \d{{4}}-.* UTC; {self.SECOND}$")
        self.assertNotIn("second finding", verdicts[0]["reason"])
        self.assertEqual(self.findings(run), (host, [(6, "once"), (10, "once")]))
        summary = rf"hardware of rank 1 \(host {host}\) computed wrong numbers at steps 6, 10, evicted at step 10"
        self.assertRegex(harness.program_output("status", run.directory), rf"(?m)^numbers   {summary}$")
        self.assertRegex((run.directory / "report.html").read_text(), self.SECOND)

        launched = harness.call_program("launch", "-np", 2, self.scene.config, f"--run.directory={run.directory}", *run.overrides)
        self.assertEqual(launched.returncode, 0, launched.stdout)
        self.assertRegex(launched.stdout, rf"holdfast launch: the hardware of host {host} gave wrong numbers 2 times in the last 1d, the last time at step 10")

    def test_evicts_the_writer_of_the_record(self):
        run = self.run_of("leader")
        start = run.start(2, faults=lane_flips(6, 10, rank=0))
        start.wait()
        self.expect_verdicts(run, start, [(6, "redo", 0, "cpu", 0), (10, "evict", 0, "cpu", 1)])
        self.assertEqual(self.findings(run)[1], [(6, "once"), (10, "once")])

    def test_stays_where_the_window_is_over_or_nobody_can_replace_it(self):
        for name, option, earlier in [("window", "--verdict.findings_window=0", 0), ("needed", "--elastic.min_data_parallel=2", 1)]:
            with self.subTest(name):
                run = self.run_of(name, option)
                start = run.start(2, faults=lane_flips(6, 10))
                start.expect_exit(0)
                self.expect_verdicts(run, start, [(6, "redo", 1, "cpu", 0), (10, "redo", 1, "cpu", earlier)])
                self.assertEqual(self.findings(run)[1], [(6, "once"), (10, "once")])

    def test_a_bad_sample_besides_is_skipped(self):
        """In the same step, which is not committed because its audit agrees at the second time."""
        bad = f"data.sample@{SAMPLES * 5 + 6}=nan"
        alone = self.run_of("bad")
        alone.start(2, faults=bad).expect_exit(0)
        both = self.run_of("both")
        both.start(2, faults=f"{bad},{lane_flips(6)}").expect_exit(0)
        verdict, = both.events("verdict")
        self.assertEqual((verdict["step"], verdict["action"], verdict["rank"], verdict["lane"]), (6, "skip", 1, 2))
        self.assertEqual(both.digest(), alone.digest())

    def test_another_start_knows_of_the_first(self):
        run = self.run_of("resumed")
        stopped = run.start(2, faults=f"{lane_flips(6)},{harness.slow_steps(8)}")
        self.assertTrue(stopped.wait_for_step(8), stopped.tail())
        stopped.signal(signal.SIGTERM)
        stopped.wait()
        self.assertFalse(run.finished(), stopped.tail())
        self.assertEqual(self.findings(run)[1], [(6, "once")])
        step = next(step for step in (10, 14, 18) if step > run.last_step())
        start = run.start(2, faults=lane_flips(step - run.last_step()))
        start.wait()
        self.expect_verdicts(run, start, [(6, "redo", 1, "cpu", 0), (step, "evict", 1, "cpu", 1)])
        self.assertEqual(self.findings(run)[1], [(6, "once"), (step, "once")])

    def test_a_damaged_record_begins_anew(self):
        run = self.run_of("damaged")
        run.directory.mkdir()
        (run.directory / "hardware.json").write_text('{"devices":[{')
        start = run.start(2, faults=lane_flips(6))
        start.expect_exit(0)
        self.assertRegex(start.output(), r"hardware\.json is damaged \(.*\): what was found about the hardware of the run is forgotten")
        self.expect_verdicts(run, start, [(6, "redo", 1, "cpu", 0)])
        self.assertEqual(self.findings(run)[1], [(6, "once")])


class LinkTest(unittest.TestCase):
    """A link between two replicas changes gradients on their way."""

    LAYOUT = Layout(2)
    LINK = r"the link from rank 0 \(host [^)]*\) to rank 1 \(host [^)]*\) delivered other gradients than were sent"

    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(lanes=LANES)
        cls.addClassCleanup(cls.scene.close)
        cls.laboratory = wrong_numbers.Laboratory(cls.scene, steps=24)

    def run_of(self, name, *options):
        case = Case("lane gradients", self.LAYOUT, "fp32", 1, "reduce.received", "", 6)
        return self.scene.run(name, [*self.laboratory.options, *case.overrides(), "--training.steps=24", *options])

    def test_gradients_that_changed_once_are_sent_again(self):
        run = self.run_of("once")
        run.start(2, faults="reduce.received@100:1=flip:gradients:20").expect_exit(0)
        verdict, = run.events("verdict")
        self.assertEqual((verdict["kind"], verdict["action"], verdict["of"], verdict["attempts"]), ("corruption", "redo", "links", 2))
        self.assertNotIn("rank", verdict)
        self.assertRegex(verdict["reason"], rf"^step {verdict['step']}: {self.LINK}, but the right ones when they were sent again; ")
        self.assertEqual(run.digest(), self.laboratory.undisturbed(self.LAYOUT, "fp32"))
        self.assertRegex(harness.program_output("status", run.directory),
                         rf"(?m)^numbers   links between ranks changed gradients at step {verdict['step']}$")
        self.assertRegex((run.directory / "report.html").read_text(), "the link from rank 0")

    def test_a_link_that_changes_them_for_good_ends_the_run(self):
        """The next start, without it, has the bits of the undisturbed run."""
        run = self.run_of("lasts")
        start = run.start(2, faults=",".join(f"reduce.received@{hit}:1=flip:gradients:20" for hit in range(100, 400)))
        start.expect_exit(20)
        self.assertRegex(start.output(), rf"{self.LINK}, and so when they were sent again; .*Test the cables")
        run.start(2).expect_exit(0)
        self.assertEqual(run.digest(), self.laboratory.undisturbed(self.LAYOUT, "fp32"))


class ClassificationTest(unittest.TestCase):
    CASE = Case("moment1", Layout(2), "fp32", 1, "step.begin", "flip:moment1:3", 8, 1)

    def outcome(self, verdicts, finished=True, same_bits=True, case=CASE):
        found = wrong_numbers.outcome_of(case, verdicts, finished, same_bits)
        return found.result, found.culprit, found.latency, found.false_alarms

    def test_outcomes(self):
        blames = lambda rank, step=9: {"step": step, "kind": "corruption", "rank": rank}  # noqa: E731
        self.assertEqual(self.outcome([blames(1)]), ("found", "right", 1, 0))
        self.assertEqual(self.outcome([blames(0)]), ("found", "wrong", 1, 0))
        self.assertEqual(self.outcome([{"step": 8, "kind": "spike"}, blames(1)]), ("found", "nobody", 0, 0))
        self.assertEqual(self.outcome([blames(1, step=7)]), ("harmless", "", 0, 1))
        self.assertEqual(self.outcome([], same_bits=False), ("missed", "", 0, 0))
        self.assertEqual(self.outcome([], finished=False, same_bits=False)[0], "unfinished")
        data = Case("sample nan", Layout(2), "fp32", AUTO, "data.sample", "nan", 8, sample=60)
        self.assertEqual(self.outcome([blames(1)], case=data)[1], "wrong")

    def test_a_seed_repeats_its_case(self):
        for kind in KINDS:
            self.assertEqual(wrong_numbers.draw(kind, 5), wrong_numbers.draw(kind, 5))
            self.assertNotEqual({wrong_numbers.draw(kind, seed).faults() for seed in range(9)}, {wrong_numbers.draw(kind, 5).faults()})

    def test_a_rank_passes_a_point_of_its_lanes_in_audits_too(self):
        case = Case("gradients", Layout(2), "fp32", 5, "step.before_backward", "flip:gradients:3", 10)
        self.assertEqual(case.hit(), 9 * 2 + 1 + 2)
        self.assertEqual(dataclasses.replace(case, audit_every=AUTO).hit(), 9 * 2 + 1)


if __name__ == "__main__":
    harness.main()
