"""Kernels for some calls of an op ([[kernels.rules]]), by layer and by shape, and beside those of a run ([[kernels.shadow]])."""
import re
import subprocess
import unittest

import errors_test
import harness
import hosts
import kernel_test

ROWS = errors_test.read_table(lambda heading: heading == errors_test.RULES)
SETTLE_S = 90  # no start and its restarts take so long

# A rotary that has the bits of Holdfast's own, or SCALE times them.
ROTARY = """#include "holdfast_kernel.h"
#include <math.h>
static int launch(const hf_call* call, void* workspace, void* stream) {
  const hf_rotary* op = (const hf_rotary*)call->op;
  const int64_t half = op->head_size / 2;
  (void)workspace, (void)stream;
  for (int64_t row = 0; row < op->rows; ++row) {
    const float* cosine = op->cosine + row % op->sequence_length * half;
    const float* sine = op->sine + row % op->sequence_length * half;
    for (int64_t head = 0; head < op->heads; ++head) {
      float* x = (float*)op->x + row * op->row_stride + head * op->head_size;
      for (int64_t i = 0; i < half; ++i) {
        const float low = x[i], high = x[i + half], turned = op->inverse ? -sine[i] : sine[i];
        x[i] = fmaf(low, cosine[i], -(high * turned)) * SCALE;
        x[i + half] = fmaf(high, cosine[i], low * turned);
      }
    }
  }
  COMPUTE
  return 0;
}
static int supports(const hf_call* call) { return ((const hf_rotary*)call->op)->dtype == HF_FP32; }
static const hf_kernel kernels[] = {{ABI, HF_CPU, HF_SAME_BITS_TWICE | HF_LAYOUT_FREE, 0, "rotary", HF_SCHEMA_ROTARY, NAME, 0, supports, 0, launch}};
HF_EXPORT const hf_kernel* hf_kernels(int* count) { *count = 1; return kernels; }
"""


class RulesTest(unittest.TestCase):
    def setUp(self):
        self.scene = harness.Scene(steps=6)
        self.addCleanup(self.scene.close)
        for name, scale in [("same", "1"), ("other", "(1 + 0x1p-23f)")]:
            kernel_test.build(self.scene.directory / f"{name}.so", source=ROTARY, link=["-lm"], NAME=f'"{name}"', SCALE=scale, COMPUTE="")
        self.add_to_config('[kernels]\nplugins = ["same.so", "other.so"]\n')

    def add_to_config(self, text):
        self.scene.config.write_text(self.scene.config.read_text() + text)

    def trained(self, name, *overrides, ranks=1):
        run = self.scene.run(name)
        run.start(ranks, overrides=overrides).expect_exit(0)
        return run

    def test_same_bits_in_every_layout_and_after_a_kill(self):
        words = ["--parallel.tensor_lanes=2"]
        default = self.trained("default", *words).digest()
        rule = '[[kernels.rules]]\nop = "rotary"\nlayers = "0"\nuse = "{}"\n'
        self.add_to_config(rule.format("same"))
        same = self.trained("same", *words)
        self.assertEqual(same.digest(), default, "a kernel with the same bits")
        start = same.events("start")[0]
        self.assertEqual(start["kernels"]["rotary in layers 0"]["name"], "same")
        self.assertNotEqual(start["kernels"]["rotary"]["name"], "same")
        self.assertRegex((same.checkpoints()[-1] / "manifest.json").read_text(), r"rotary same [0-9a-f]{16} in layers 0")

        text = self.scene.config.read_text()
        self.scene.config.write_text(text.replace('use = "same"', 'use = "other"'))
        other = self.trained("other", *words)
        self.assertNotEqual(other.digest(), default, "it is what computes")
        everywhere = self.trained("everywhere", *words, '--kernels.rules=[]', "--kernels.rotary=other")
        self.assertNotEqual(other.digest(), everywhere.digest(), "in one of the layers alone")
        for name, layout in [("data", []), ("tensor", ["--parallel.tensor=2"]), ("pipeline", ["--parallel.pipeline=2"])]:
            with self.subTest(name):
                self.assertEqual(self.trained(name, *words, *layout, ranks=2).digest(), other.digest())
        killed = self.scene.run("killed")
        killed.start(1, overrides=words, faults="step.end@4=kill:0").wait()
        again = killed.start(1, overrides=words)
        again.expect_exit(0)
        self.assertNotIn("numeric", again.output())
        self.assertEqual(killed.digest(), other.digest())

        changed = other.start(1, overrides=[*words, "--training.steps=8", "--kernels.rules=[]"])
        changed.expect_exit(0)
        self.assertRegex(changed.output(), r'kernels.rules: \[\{ op = "rotary", layers = "0", use = "other" \}\] -> \[\]  \(numeric')
        self.assertRegex(changed.output(), r'made on "cpu, .*rotary other [0-9a-f]{16} in layers 0.*", now on "cpu[^"]*"  \(numeric')

    def test_shapes(self):
        """Of the layers' matrix products and the head's, those with as many columns as the vocabulary has tokens."""
        shown = harness.program_output("check", self.scene.config, "--kernels", '--kernels.rules=[{op="matmul",where={n=256},use="reference"}]')
        self.assertIn("    matmul where n = 256: reference, chosen by kernels.rules[0]", shown)
        self.assertRegex(shown, r"matmul reference where n = 256")
        rule = '--kernels.rules=[{op="rotary",where={rows="%s",inverse=false},use="other"}]'
        default = self.trained("default")
        self.assertNotEqual(self.trained("large", rule % ">=1").digest(), default.digest())

    def test_commands_compute_with_the_run_s_kernels(self):
        run = self.trained("run", '--kernels.rules=[{op="rotary",layers="1",use="other"}]')
        plugins = f"--kernels.plugins={self.scene.directory}/other.so"
        replayed = harness.program_output("replay", run.directory, "--step", 5, plugins)
        self.assertIn("comparison same bits", replayed)
        words = ["evaluate", run.directory, "--data", self.scene.text, "--sequence-length=64"]
        scaled = kernel_test.build(self.scene.directory / "scaled.so", source=ROTARY, link=["-lm"], NAME='"other"', SCALE="1.5f", COMPUTE="")
        own = harness.program_output(*words, plugins)
        self.assertNotEqual(own, harness.program_output(*words, f"--kernels.plugins={scaled}"))
        default = harness.call_program(*words)
        self.assertEqual(default.returncode, 0, default.stdout)
        self.assertRegex(default.stdout, r'the run has kernels.rules with rotary = "other", which is not here: the default computes in its place')
        texts = [harness.without_rate(harness.program_output("sample", run.directory, "--tokens=4", plugins)) for _ in range(2)]
        self.assertEqual(*texts)
        refused = harness.call_program("sample", run.directory, "--tokens=4", "--kernels.rotary=other")
        self.assertEqual(refused.returncode, 2, refused.stdout)
        compared = harness.call_program("kernel", "ab", self.scene.config, "--steps=2", "--from=start", '--kernels.rules=[{op="rotary",layers="1",use="other"}]')
        self.assertEqual(compared.returncode, 0, compared.stdout)
        self.assertRegex(compared.stdout, r"rotary: A \w+, B \w+, other in layers 1\n")
        self.assertRegex(compared.stdout, r"first in result 0 of rotary in layers.1.attention")


class ShadowTest(unittest.TestCase):
    """Kernels that are compared with those of the run."""

    def setUp(self):
        self.scene = harness.Scene(steps=6)
        self.addCleanup(self.scene.close)
        self.file = self.scene.directory / "mine.so"
        self.build("(1 + 0x1p-20f)")
        self.words = ["--parallel.tensor_lanes=2", f"--kernels.plugins={self.file}"]

    def build(self, scale, compute=""):
        kernel_test.build(self.file, source=ROTARY, link=["-lm"], NAME='"mine"', SCALE=scale, COMPUTE=compute)

    def trained(self, name, *overrides, ranks=1):
        run = self.scene.run(name)
        start = run.start(ranks, overrides=[*self.words, *overrides])
        start.expect_exit(0)
        return run, start.output()

    def test_compares_and_changes_no_bit(self):
        default = self.trained("default")[0]
        shadow = '--kernels.shadow=[{op="rotary",use="mine",every=3},{op="matmul",layers="1",use="portable",every=6}]'
        shapes = {}
        for name, ranks, layout in [("alone", 1, []), ("data", 2, []), ("tensor", 2, ["--parallel.tensor=2"]), ("pipeline", 2, ["--parallel.pipeline=2"])]:
            with self.subTest(name):
                run, output = self.trained(name, shadow, *layout, ranks=ranks)
                self.assertEqual(run.digest(), default.digest())
                found = run.events("kernel_shadow")
                shapes[name] = [(each["step"], each["op"], each["layer"], each["kernel"], each["calls"], each["ulp_max"], each["nonfinite"]) for each in found]
                self.assertEqual([each[:4] for each in sorted(shapes[name], key=str)],
                                 sorted([(step, "rotary", layer, "mine") for step in (3, 6) for layer in (0, 1)] + [(6, "matmul", 1, "portable")], key=str))
                for each in found:
                    self.assertTrue(each["chosen_ms"] > 0 and each["shadow_ms"] > 0)
                    self.assertLessEqual(each["ulp_mean"], each["ulp_max"])
                    if each["op"] == "rotary":
                        self.assertTrue(4 <= each["ulp_max"] <= 17, each)
                        self.assertRegex(each["worst"], r"^x\[\d+\]$")
                self.assertRegex(output, r"step 6/6 +shadow mine of rotary: at most \S+ ULP from \w+ \(x\[\d+\] in layer [01]\), \S+ in the mean; \S+ of its time, in \d+ calls\n")
        for name in ("data", "pipeline"):
            self.assertCountEqual(shapes[name], shapes["alone"], "the calls of all ranks are those of one")

    def test_a_step_that_a_fault_ended_counts_once(self):
        """The survivor has computed the step when the other one dies, and computes it again after the recovery."""
        shadow = '--kernels.shadow=[{op="rotary",use="mine",every=2}]'
        alone = self.trained("alone", shadow)[0]
        run = self.scene.run("recovers")
        words = [*self.words, shadow, "--checkpoint.ram_every_steps=1", "--elastic.grow=off"]
        run.start(2, "ft", words, faults="step.before_reduce@4:1=kill").expect_exit(0)
        self.assertEqual(run.digest(), alone.digest())
        self.assertEqual(len(run.events("recovery")), 1)
        calls = [[(each["step"], each["layer"], each["calls"]) for each in of.events("kernel_shadow")] for of in (alone, run)]
        self.assertCountEqual(calls[1], calls[0])

    def test_replay_needs_no_plugin_of_a_shadow(self):
        run = self.trained("run", '--kernels.shadow=[{op="rotary",use="mine",every=2}]')[0]
        self.assertIn("comparison same bits", harness.program_output("replay", run.directory, "--step", 5))

    def test_one_that_supports_nothing_is_told(self):
        self.file.unlink()
        source = ROTARY.replace("->dtype == HF_FP32", "->dtype == HF_BF16")
        kernel_test.build(self.file, source=source, link=["-lm"], NAME='"mine"', SCALE="1", COMPUTE="")
        run, output = self.trained("run", '--kernels.shadow=[{op="rotary",use="mine",every=6}]')
        self.assertRegex(output, r"step 6/6 +shadow mine of rotary: it supports none of the calls, which \w+ computes\n")
        self.assertEqual({each["calls"] for each in run.events("kernel_shadow")}, {0})

    def test_is_no_part_of_the_run(self):
        shadow = '--kernels.shadow=[{op="rotary",use="mine",every=2}]'
        run = self.trained("run", "--training.steps=5")[0]
        start = run.start(1, overrides=[*self.words, shadow, "--training.steps=6"])
        start.expect_exit(0)
        self.assertRegex(start.output(), r'kernels.shadow: \[\] -> .*  \(safe\)')
        self.assertNotIn("numeric", start.output())
        self.build("1")
        same = run.start(1, overrides=[*self.words, shadow, "--training.steps=8"])
        same.expect_exit(0)
        self.assertNotIn("numeric", same.output())
        self.assertEqual({each["ulp_max"] for each in run.events("kernel_shadow") if each["step"] > 6}, {0})

    def test_crash_is_named(self):
        self.build("1", "((volatile int*)8)[0] = 1;")
        start = self.scene.run("crash").start(1, overrides=[*self.words, '--kernels.shadow=[{op="rotary",use="mine",every=2}]'])
        start.wait()
        self.assertRegex(start.output(), f"rank 0 .*died{harness.cause_of_death('signal 11 (SIGSEGV), while it ran kernel mine of rotary, of the plug-in')}")

    def test_bad_shadows(self):
        for shadow, says in [('{op="adamw",use="portable"}', r'kernels.shadow\[0\] \(command line\), adamw = "portable": only ops of the model'),
                             ('{op="rotary",use="portable",every=0}', r"kernels.shadow\[0\].every must be a number of steps from 1"),
                             ('{op="rotary",use="portable",layers="5"}', "no call of rotary is in layers 5"),
                             ('{op="rotary",use="portable"},{op="rotary",use="reference"}', r'kernels.shadow\[1\].*: kernels.shadow\[0\] says "portable"')]:
            with self.subTest(shadow):
                done = harness.call_program("check", self.scene.config, f"--kernels.shadow=[{shadow}]")
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertRegex(done.stdout, says)


class ComposedTest(unittest.TestCase):
    """A plug-in for an op that is others in turn: it computes where it is named, and its parts do elsewhere."""
    NAMED = '[kernels]\nplugins = ["residual/kernel.so"]\nresidual_rmsnorm = "mine"\n'

    def setUp(self):
        self.scene = harness.Scene(steps=6)
        self.addCleanup(self.scene.close)
        folder = self.scene.directory / "residual"
        harness.program_output("kernel", "new", "residual_rmsnorm", "--lang", "cpp", "--out", folder)
        made = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        self.file = folder / "kernel.so"
        self.plain = self.scene.directory / "plain.toml"
        self.plain.write_text(self.scene.config.read_text())
        self.scene.config.write_text(self.scene.config.read_text() + self.NAMED)

    def trained(self, name, *overrides, ranks=1):
        run = self.scene.run(name)
        run.start(ranks, overrides=overrides).expect_exit(0)
        return run

    def test_same_bits_in_every_layout_and_after_a_kill(self):
        for lanes in (1, 2):
            words = [f"--parallel.tensor_lanes={lanes}"]
            parts = self.trained(f"parts-{lanes}", *words, "--kernels.residual_rmsnorm=auto")
            for own in ("portable", "parts"):
                self.assertEqual(self.trained(f"{own}-{lanes}", *words, f"--kernels.residual_rmsnorm={own}").digest(), parts.digest())
            mine = self.trained(f"mine-{lanes}", *words)
            self.assertNotEqual(mine.digest(), parts.digest(), "its norm is in double")
            self.assertRegex((mine.checkpoints()[-1] / "manifest.json").read_text(), r"residual_rmsnorm mine [0-9a-f]{16}")
            layouts = [("data", 2, []), ("pipeline", 2, ["--parallel.pipeline=2"]), ("recompute", 1, ["--training.recompute=full"])]
            for name, ranks, layout in layouts + [("tensor", 2, ["--parallel.tensor=2"])] * (lanes - 1):
                with self.subTest(name, lanes=lanes):
                    self.assertEqual(self.trained(f"{name}-{lanes}", *words, *layout, ranks=ranks).digest(), mine.digest())
            killed = self.scene.run(f"killed-{lanes}")
            killed.start(1, overrides=words, faults="step.end@4=kill:0").wait()
            again = killed.start(1, overrides=words)
            again.expect_exit(0)
            self.assertNotIn("numeric", again.output())
            self.assertEqual(killed.digest(), mine.digest())
        self.assertIn("comparison same bits", harness.program_output("replay", mine.directory, "--step", 5, f"--kernels.plugins={self.file}"))
        changed = mine.start(1, overrides=[*words, "--training.steps=8", "--kernels.residual_rmsnorm=auto"])
        changed.expect_exit(0)
        self.assertRegex(changed.output(), r'kernels.residual_rmsnorm: "mine" -> "auto"  \(numeric')
        same = parts.start(1, overrides=[*words, "--training.steps=8", "--kernels.residual_rmsnorm=portable"])
        same.expect_exit(0)
        self.assertNotIn("numeric", same.output())

    def test_the_kit_knows_it(self):
        checked = harness.call_program("kernel", "check", self.file)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        self.assertRegex(checked.stdout, r"and in \d+ calls cut in two; others than its parts")
        compared = harness.call_program("kernel", "ab", self.plain, "--steps=2", "--from=start", f"--plugin={self.file}")
        self.assertEqual(compared.returncode, 0, compared.stdout)
        self.assertRegex(compared.stdout, r"residual_rmsnorm: A parts, B mine\n")
        self.assertRegex(compared.stdout, r"first in result [12] of residual_rmsnorm in layers.0.feed_forward")
        same = harness.call_program("kernel", "ab", self.plain, "--steps=2", "--from=start",
                                    '--kernels.rules=[{op="residual_rmsnorm",layers="1",use="portable"}]')
        self.assertEqual(same.returncode, 0, same.stdout)
        self.assertNotIn("first in result", same.stdout)
        run = self.trained("run", "--kernels.shadow=[{op='residual_rmsnorm',use='portable',every=3}]")
        found = run.events("kernel_shadow")
        self.assertEqual({(each["step"], each["layer"], each["kernel"]) for each in found}, {(step, layer, "portable") for step in (3, 6) for layer in (0, 1)})
        trace = self.scene.directory / "trace"
        done = harness.call_program("kernel", "trace", run.directory, "--steps=5", "--ops=residual_rmsnorm", "--out", trace, f"--kernels.plugins={self.file}")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(harness.call_program("kernel", "check", self.file, "--trace", trace).returncode, 0)

    def test_a_kernel_that_rounds_elsewhere_is_wrong(self):
        """The norm of a sum before it is rounded, and a tree in another order."""
        source = self.file.parent / "kernel.cc"
        text = source.read_text()
        for before, after, says in [("double(get(sum, i)) * get(sum, i)", "double(value) * value", r"wrong: .* of rstd is"),
                                    ("tree(parts, count / 2, i) + tree(parts + count / 2, count / 2, i)", "tree(parts, count - 1, i) + parts[count - 1][i]",
                                     r"wrong: .* of sum has not the bits of \w+, and the contract of residual_rmsnorm leaves no choice"),
                                    ("HF_SAME_BITS_TWICE | HF_LAYOUT_FREE", "HF_SAME_BITS_TWICE | HF_LAYOUT_FREE | HF_BITS_OF_PARTS", r"breaks the promise HF_BITS_OF_PARTS")]:
            with self.subTest(after):
                self.assertIn(before, text)
                source.write_text(text.replace(before, after))
                subprocess.run(["make", "-C", str(source.parent)], capture_output=True, timeout=60, check=True)
                checked = harness.call_program("kernel", "check", self.file)
                self.assertEqual(checked.returncode, 1, checked.stdout)
                self.assertRegex(checked.stdout, says)


class FaultsTest(unittest.TestCase):
    """Rules and shadows in runs that lose ranks and get new ones, have a spare, several parts of the model on a stage, or several hosts:
    each call has its kernel and is compared once, whoever computes it."""
    STEPS, HOSTS = 24, 3
    LAYERS = "--model.layers=4"
    SLOW_STEPS = harness.slow_steps(6)

    def setUp(self):
        self.scene = harness.Scene(steps=self.STEPS, lanes=self.HOSTS)
        self.addCleanup(self.scene.close)
        for name, scale in [("other", "(1 + 0x1p-23f)"), ("mine", "(1 + 0x1p-20f)")]:
            kernel_test.build(self.scene.directory / f"{name}.so", source=ROTARY, link=["-lm"], NAME=f'"{name}"', SCALE=scale, COMPUTE="")
        text = self.scene.config.read_text()
        self.scene.config.write_text(text + """[kernels]
plugins = ["other.so", "mine.so"]
rules = [{ op = "rotary", layers = "1-2", use = "other" }]
shadow = [{ op = "rotary", layers = "2-", use = "mine", every = 3 }]
""")
        self.words = [self.LAYERS, "--checkpoint.ram_every_steps=1"]
        self.alone = self.scene.run("alone", self.words)
        self.alone.start(1).expect_exit(0)

    def compared(self, run):
        """What was compared in each step; a step that was computed again is compared again."""
        return sorted({(each["step"], each["layer"], each["kernel"], each["calls"]) for each in run.events("kernel_shadow")})

    def expect_alike(self, run, output):
        self.assertEqual(run.digest(), self.alone.digest(), output)
        self.assertEqual(self.compared(run), self.compared(self.alone), output)
        for start in run.events("start"):
            self.assertEqual(start["kernels"]["rotary in layers 1-2"]["name"], "other", output)

    def finished(self, name, ranks, *options, faults=""):
        run = self.scene.run(name, self.words)
        start = run.start(ranks, "ft", options, faults)
        start.expect_exit(0)
        self.expect_alike(run, start.output())
        return run

    def test_growth(self):
        run = self.finished("grows", self.HOSTS, "--elastic.grow_after=0s", faults=f"step.begin@5:2=kill,{self.SLOW_STEPS}")
        self.assertIn("growth", [event["reason"] for event in run.events("recovery")])

    def test_interleaved_pipeline(self):
        self.finished("interleaved", 2, "--parallel.pipeline=2", "--parallel.pipeline_schedule=interleaved", "--parallel.pipeline_chunks=2")

    @harness.full
    def test_spare(self):
        run = self.finished("spare", self.HOSTS, "--elastic.spares=1", "--elastic.grow=off", faults="step.begin@5:1=kill")
        self.assertEqual([event["spares"] for event in run.events("recovery")], [0])

    @harness.full
    def test_several_hosts(self):
        """One of them loses its rank."""
        if reason := hosts.why_not():
            harness.skip(reason)
        del self.scene.environment["OMPI_MCA_btl_sm_backing_directory"]
        cluster = hosts.Cluster(self.HOSTS)
        self.addCleanup(cluster.close)
        run = self.scene.run("hosts", [*self.words, "--elastic.grow=off"])
        words = [str(harness.PROGRAM), "launch", "-np", str(self.HOSTS), "--host", cluster.host_list(1), str(run.scene.config),
                 f"--run.directory={run.directory}", *run.overrides]
        start = cluster.start(run, words, faults=self.SLOW_STEPS)
        self.assertTrue(start.wait_for_step(7, SETTLE_S), start.tail())
        cluster.kill_ranks(run, "n2")
        self.expect_alike(run, start.expect_exit(0, SETTLE_S))
        self.assertNotEqual(run.events("recovery"), [])


class BadRuleTest(unittest.TestCase):
    """A sentence and exit code 2 for each rule that cannot be, from check and from train, which writes nothing."""
    RULES = {
        "rule-unknown-op": '{op="rotray",use="portable"}',
        "rule-unknown-kernel": '{op="rotary",use="portabel"}',
        "rule-incomplete": '{op="rotary"}',
        "rule-unknown-key": '{op="rotary",use="portable",layer="1"}',
        "rule-bad-layers": '{op="rotary",use="portable",layers="x*"}',
        "rule-no-such-layer": '{op="rotary",use="portable",layers="7-9"}',
        "rule-of-no-layer": '{op="adamw",use="portable",layers="0"}',
        "rule-unknown-shape": '{op="rotary",use="portable",where={row=4}}',
        "rule-bad-shape": '{op="rotary",use="portable",where={rows="four"}}',
        "rule-no-such-shape": '{op="rotary",use="portable",where={rows=5}}',
        "rule-no-such-call": '{op="gelu_forward",use="portable"}',
        "rule-no-place": '{op="residual_rmsnorm",use="portable"}',
        "rule-recompute": '{op="residual_rmsnorm",use="reference"}',
        "rule-contradiction": '{op="rotary",use="portable",layers="0"},{op="rotary",use="reference"}',
    }

    # What else the run has.
    WORDS = {"rule-no-place": ["--model.style=gpt2"], "rule-recompute": ["--training.recompute=selective"]}

    def test_every_row(self):
        self.assertEqual(set(self.RULES), set(ROWS))
        with harness.Scene(steps=6) as scene:
            for name, rules in self.RULES.items():
                for command in (["check"], ["train"]):
                    with self.subTest(name, command=command):
                        done = harness.call_program(*command, scene.config, f"--run.directory={scene.directory}/run", f"--kernels.rules=[{rules}]", *self.WORDS.get(name, []))
                        self.assertEqual(done.returncode, ROWS[name].code, done.stdout)
                        self.assertRegex(done.stdout, ROWS[name].pattern)
                        self.assertFalse(re.search(r"^step ", done.stdout, re.MULTILINE))
            self.assertFalse((scene.directory / "run/checkpoints").exists())


if __name__ == "__main__":
    harness.main()
