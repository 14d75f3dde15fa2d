"""What a run does after a kernel of a plug-in has crashed or hung (kernels.on_failure). The oracle: the bits of a run that trains with the
plug-in to the state that it goes back to, and is resumed from there without it by hand."""
import json
import re
import unittest

import harness
import kernel_rules_test
import kernel_test

STEPS = 12
CRASH, HANG = "((volatile int*)8)[0] = 1", "for (volatile int i = 0;;) i = 1"
# Fails in the AT-th call of a process that has the rank, or is no rank of mpirun.
FAIL = '{ static int calls = 0; const char* rank = getenv("OMPI_COMM_WORLD_RANK"); if (++calls == AT && (rank == 0 || rank[0] == \'RANK\')) { HOW; } }'


def build(path, at=0, how=CRASH, rank=1):
    """A rotary with other bits than Holdfast's own. One that does not fail has the bits of one that does."""
    compute = FAIL.replace("AT", str(at)).replace("HOW", how).replace("'RANK'", f"'{rank}'") if at else ""
    return kernel_test.build(path, source="#include <stdlib.h>\n" + kernel_rules_test.ROTARY, link=["-lm"], NAME='"mine"',
                             SCALE="(1 + 0x1p-20f)", COMPUTE=compute)


class FallBackTest(unittest.TestCase):
    CALLS = 8  # of rotary in a step of one lane: two layers, two microbatches, forward and backward

    def setUp(self):
        self.scene = harness.Scene(steps=STEPS, lanes=3)
        self.addCleanup(self.scene.close)
        self.bad, self.good = self.scene.directory / "bad.so", self.scene.directory / "good.so"
        build(self.good)

    def words(self, *more, file=None, kernel="mine", on_failure="fall_back"):
        return [f"--kernels.plugins={file or self.bad}", f"--kernels.rotary={kernel}", f"--kernels.on_failure={on_failure}", "--checkpoint.every_steps=0",
                "--checkpoint.ram_every_steps=1", "--elastic.grow=off", *more]

    def by_hand(self, step):
        """The digest of a run that is resumed from that step of one with the kernel, and has the default from there on."""
        whole = self.scene.run("whole")
        words = [f"--kernels.plugins={self.good}", "--kernels.rotary=mine", "--checkpoint.every_steps=1", f"--checkpoint.keep={STEPS}"]
        whole.start(1, overrides=words).expect_exit(0)
        if step == 0:
            resumed = self.scene.run("default")
            resumed.start(1).expect_exit(0)
        else:
            resumed = self.scene.run("resumed")
            state = whole.directory / f"checkpoints/step-{step:08}"
            resumed.start(1, overrides=[f"--run.resume={state}"]).expect_exit(0)
        self.assertNotEqual(resumed.digest(), whole.digest(), "the kernel decides bits")
        return resumed.digest()

    def expect_left_out(self, run, how="crash", op="rotary"):
        told = [event for event in run.events("kernel_left_out") if event["op"] == op]
        self.assertEqual([(event["kernel"], event["how"], event["library"]) for event in told], [("mine", how, str(self.bad))], "once")
        return told[0]

    def crashed_alone(self, at):
        """A run of one process whose kernel crashes in that call."""
        build(self.bad, at)
        run = self.scene.run("run")
        self.crash(run, self.words())
        return run

    def crash(self, run, words, kept=1):
        """A start that a kernel ends, after which so many are known to fail: the guard writes that when the rank has gone."""
        start = run.start(1, overrides=words)
        start.expect_failure()
        harness.wait_until(lambda: len(list(run.directory.glob("kernel_faults/*.json"))) == kept, 20, lambda: False, "no fault was kept", start.tail)

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_a_later_start_leaves_it_out_for_good(self):
        run = self.crashed_alone(5 * 3 * self.CALLS + 1)
        listed = harness.program_output("kernel", "faults", run.directory)
        self.assertRegex(listed, rf"kernel mine of rotary, of the plug-in {self.bad}, crashed on rank 0 \(host \S+\) after step \d+ \(digest [0-9a-f]{{16}}\)")
        second = run.start(1, overrides=self.words())
        output = second.expect_exit(0)
        self.assertRegex(output, r'resume: kernels.rotary: "mine" -> "auto"  \(numeric')
        self.assertRegex(output, r"kernels: kernel mine of rotary, of the plug-in \S+, crashed on rank 0 \(host \S+\) after step \d+: the run goes on from step \d+ without it")
        event = self.expect_left_out(run)
        self.assertGreater(event["step"], 1)
        self.assertEqual(event["step"], run.events("start")[-1]["resumed_from_step"])
        self.assertEqual(run.digest(), self.by_hand(event["step"]))
        self.assertIn("kernel    kernel mine of rotary", harness.program_output("status", run.directory))
        status = json.loads(harness.program_output("status", run.directory, "--json"))
        self.assertEqual([(each["op"], each["kernel"], each["how"]) for each in status["kernel_faults"]], [("rotary", "mine", "crash")])
        self.assertRegex((run.directory / "metrics.prom").read_text(), r'holdfast_kernel_left_out_events_total\{[^}]*op="rotary",kernel="mine",how="crash"\} 1')

        third = run.start(1, overrides=self.words(f"--training.steps={STEPS + 2}")).expect_exit(0)
        self.assertNotIn("numeric", third)
        self.assertIn("kernels: left out: kernel mine of rotary", third)
        self.expect_left_out(run)
        build(self.bad, 1_000_000)  # the library has other bytes
        fourth = run.start(1, overrides=self.words(f"--training.steps={STEPS + 4}")).expect_exit(0)
        self.assertRegex(fourth, r'resume: kernels.rotary: "auto" -> "mine"  \(numeric')
        self.assertNotIn("left out", fourth)

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_before_the_first_state_it_starts_again(self):
        run = self.crashed_alone(1)
        harness.program_output("kernel", "faults", run.directory)
        run.start(1, overrides=self.words()).expect_exit(0)
        self.assertEqual(self.expect_left_out(run)["step"], 0)
        self.assertEqual(run.digest(), self.by_hand(0))

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_taken_again_where_the_user_says_so(self):
        run = self.crashed_alone(5 * 3 * self.CALLS + 1)
        self.assertIn("forgotten: kernel mine of rotary", harness.program_output("kernel", "faults", run.directory, "--forget=rotary"))
        self.assertEqual(harness.program_output("kernel", "faults", run.directory), "")
        again = run.start(1, overrides=self.words())
        again.expect_failure()
        self.assertNotIn("left out", again.output())

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_two_that_fail_one_after_the_other(self):
        norm = kernel_test.build(self.scene.directory / "norm.so", **{**kernel_test.BROKEN, "COMPUTE": f"{CRASH};"})
        build(self.bad, 1)
        words = self.words("--kernels.rmsnorm_forward=mine", file=f"['{self.bad}', '{norm}']")
        run = self.scene.run("run")
        self.crash(run, words)
        self.crash(run, words, kept=2)
        run.start(1, overrides=words).expect_exit(0)
        self.assertEqual({event["op"] for event in run.events("kernel_left_out")}, {"rotary", "rmsnorm_forward"})
        self.assertEqual(run.digest(), self.by_hand(0))

    def in_place(self, *more, name="run", how=CRASH, faults="", **words):
        build(self.bad, 5 * self.CALLS + 1, how)
        run = self.scene.run(name)
        return run, run.start(3, "ft", self.words(*more, **words), faults)

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_in_place(self):
        run, start = self.in_place()
        output = start.expect_exit(0)
        fault = run.events("fault")[0]
        self.assertEqual((fault["op"], fault["kernel"], fault["library"]), ("rotary", "mine", str(self.bad)))
        self.assertRegex(output, r"generation \d+ begins after step \d+ \(changed: kernels.rotary")
        event = self.expect_left_out(run)
        self.assertEqual(event["rank"], 1)
        self.assertEqual([recovery["resumed_from_step"] for recovery in run.events("recovery")], [event["step"]])
        self.assertGreater(event["step"], 1)
        self.assertEqual(run.digest(), self.by_hand(event["step"]))

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_another_start_of_the_launcher(self):
        build(self.bad, 5 * 3 * self.CALLS + 1, rank=0)
        run = self.scene.run("run")
        start = run.start_command([str(harness.PROGRAM), "launch", "-np", "1", *run.train_arguments(*self.words())[2:]])
        output = start.expect_exit(0, kernel_rules_test.SETTLE_S)
        fault = run.events("fault")[0]
        self.assertEqual((fault["level"], fault["op"], fault["kernel"], fault["library"]), (2, "rotary", "mine", str(self.bad)), output)
        event = self.expect_left_out(run)
        self.assertGreater(event["step"], 1)
        self.assertEqual(run.digest(), self.by_hand(event["step"]))

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_killed_while_it_falls_back(self):
        """The state of the next start may be older or newer; it never has steps of both kernels beyond the one that is told."""
        for point in ("recover.before_load", "generation.before_publish", "generation.after_publish"):
            with self.subTest(point):
                run, start = self.in_place(name=point.replace(".", "-"), faults=f"{point}=kill")
                start.wait()
                start.expect_passed(point)
                again = run.start(3, "ft", self.words())
                output = again.expect_exit(0)
                told = run.events("kernel_left_out")
                self.assertTrue(told, output)
                self.assertEqual(len({event["step"] for event in told}), 1)
                self.assertEqual(run.digest(), self.by_hand(told[-1]["step"]), output)

    def test_hang_in_place(self):
        run, start = self.in_place("--watchdog.floor=2s", "--watchdog.ceiling=20s", how=HANG)
        start.expect_exit(0)
        event = self.expect_left_out(run, "hang")
        self.assertEqual(run.events("fault")[0]["kernel"], "mine")
        self.assertEqual(run.digest(), self.by_hand(event["step"]))

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_off_by_default(self):
        """The fault names the kernel, and the run goes on with it."""
        run, start = self.in_place(on_failure="retry")
        output = start.expect_exit(0)
        self.assertEqual(run.events("fault")[0]["kernel"], "mine")
        self.assertEqual(run.events("kernel_left_out"), [])
        self.assertFalse(re.search("left out|numeric", output))
        whole = self.scene.run("with")
        whole.start(1, overrides=[f"--kernels.plugins={self.good}", "--kernels.rotary=mine"]).expect_exit(0)
        self.assertEqual(run.digest(), whole.digest())

    def test_of_other_deaths_it_leaves_nothing_out(self):
        run, start = self.in_place(faults="step.begin@5:2=kill", file=self.good)
        start.expect_exit(0)
        self.assertEqual(run.events("kernel_left_out"), [])
        self.assertFalse((run.directory / "kernel_faults").exists())
        self.assertNotIn("kernel", run.events("fault")[0])

    @harness.needs(harness.TELLS_CAUSES, "the system does not say for certain how a process ended")
    def test_a_shadow_is_turned_off(self):
        build(self.bad, 1)
        run = self.scene.run("shadow")
        output = run.start(3, "ft", self.words('--kernels.shadow=[{op="rotary",use="mine",every=4}]', kernel="auto")).expect_exit(0)
        self.assertNotIn("numeric: the steps from here on may differ", output)
        self.expect_left_out(run)
        default = self.scene.run("default")
        default.start(1).expect_exit(0)
        self.assertEqual(run.digest(), default.digest())


if __name__ == "__main__":
    harness.main()
