"""Kernels of plug-ins: from `holdfast kernel new` to a run that trains with one, and everything that can be wrong with a file."""
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import errors_test
import harness

WHOLE = ["bias_gradient", "layernorm_forward", "rmsnorm_forward", "residual_rmsnorm", "gelu_forward", "swiglu_forward", "swiglu_backward", "add", "accumulate"]
ROWS = errors_test.read_table(lambda heading: heading == errors_test.PLUGINS)
HEADER = harness.ROOT / "kernels/include/holdfast_kernel.h"

# A plug-in in C, of which a test changes a word.
PLUGIN = """#include "holdfast_kernel.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static int launch(const hf_call* call, void* workspace, void* stream) {
  const hf_add* op = (const hf_add*)call->op;
  const float* a = (const float*)op->a;
  const float* b = (const float*)op->b;
  float* y = (float*)op->y;
  (void)workspace, (void)stream;
  COMPUTE
  return 0;
}
static size_t huge(const hf_call* call) { (void)call; return (size_t)-1; }
static int supports(const hf_call* call) { return ((const hf_add*)call->op)->dtype == HF_FP32; }
static const hf_kernel kernels[] = {{ABI, HF_CPU, HF_SAME_BITS_TWICE | HF_LAYOUT_FREE, 0, OP, SCHEMA, NAME, 0, SUPPORTS, WORKSPACE, launch}};
HF_EXPORT const hf_kernel* hf_kernels(int* count) { *count = 1; return kernels; }
"""
WORDS = {"COMPUTE": "for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i];", "ABI": "HF_KERNEL_ABI", "OP": '"add"',
         "SCHEMA": "HF_SCHEMA_ADD", "NAME": '"mine"', "SUPPORTS": "supports", "WORKSPACE": "0"}
# One that each step calls, and computes nothing.
BROKEN = {"OP": '"rmsnorm_forward"', "SCHEMA": "HF_SCHEMA_RMSNORM_FORWARD", "SUPPORTS": "0"}


# What -Ofast links into a library, which of the later compilers only some do.
FAST = "__attribute__((constructor)) static void fast(void) { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }\n"


def build(path, kind="-shared", source=PLUGIN, link=(), **words):
    """A shared library of the source with these words."""
    for word, text in {**WORDS, **words}.items():
        source = re.sub(rf"\b{word}\b", lambda match, text=text: text, source)
    done = subprocess.run(["cc", "-std=gnu99", "-O1", kind, "-fPIC", f"-I{HEADER.parent}", "-x", "c", "-", *link, "-o", str(path)],
                          input=source, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return path


class FolderTest(unittest.TestCase):
    """What `holdfast kernel` hands out."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-system-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def expect_refused(self, *words, says):
        done = harness.call_program("kernel", *words)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stdout, says)

    def test_header_is_c99_and_cpp_and_is_the_one_of_the_tree(self):
        self.assertEqual(harness.program_output("kernel", "header"), HEADER.read_text())
        for compiler in (["cc", "-std=c99", "-x", "c"], ["c++", "-std=c++11", "-x", "c++"]):
            done = subprocess.run([*compiler, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(HEADER)], capture_output=True, text=True,
                                  timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_schema_changes_with_what_a_kernel_must_know(self):
        loader = importlib.machinery.SourceFileLoader("kernel_header", str(harness.ROOT / "tools/kernel-header"))
        tool = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(tool)
        values = tool.constants()

        def schemas(**changes):
            tool.constants = lambda: {**values, **changes}
            return dict(re.findall(r"#define HF_SCHEMA_(\w+) (\S+)", tool.generate()[tool.HEADER]))

        def changed(**changes):
            return {op for op, schema in schemas(**changes).items() if schema != tree[op]}

        tree = schemas()
        self.assertEqual(tree, dict(re.findall(r"#define HF_SCHEMA_(\w+) (\S+)", HEADER.read_text())))
        self.assertEqual(changed(block="2048"), {"ADAMW", "LION", "SQUARE_SUM", "ACCUMULATE", "OPTIMIZER_DIGEST"})
        self.assertEqual(changed(rounding="otherwise"), {"ADAMW", "LION"})
        self.assertEqual(changed(digest="otherwise"), {"ADAMW", "LION", "SQUARE_SUM", "ACCUMULATE", "OPTIMIZER_DIGEST", "DIGEST"})
        self.assertIn("ADD", changed(types="bf16 = 0, fp32 = 1, int32 = 2, fp64 = 3"))

    def test_contract_and_list(self):
        contract = harness.program_output("kernel", "contract", "rmsnorm_forward")
        self.assertIn("RMSNorm: y = x * rstd * weight", contract)
        self.assertIn("typedef struct hf_rmsnorm_forward {", contract)
        self.assertRegex(contract, r"void\* y; +// written, dtype, rows \* width elements\n")
        self.assertNotIn("hf_rmsnorm_backward", contract)
        listed = harness.program_output("kernel", "list")
        self.assertEqual(sorted(re.findall(r"^(\w+) .*a whole kernel", listed, re.MULTILINE)), sorted(WHOLE))
        self.assertRegex(listed, r"\nmatmul .*a skeleton.*portable")

    def test_every_folder_builds_and_passes(self):
        for op in ["rmsnorm_forward", "add"]:
            folder = self.folder / op
            harness.program_output("kernel", "new", op, "--out", folder)
            made = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            self.assertNotIn("warning", made.stderr)
            checked = harness.call_program("kernel", "check", folder / "kernel.so")
            self.assertEqual(checked.returncode, 0, checked.stdout)
            self.assertRegex(checked.stdout, rf"kernel mine of {op}: passed, (\d+) of \1 calls computed\n")
            self.assertIn("bits: the same on 1, 2, 3, 5 and 16 threads", checked.stdout)

    @harness.full
    def test_every_whole_kernel_builds_and_passes(self):
        for op in WHOLE:
            with self.subTest(op):
                folder = self.folder / op
                harness.program_output("kernel", "new", op, "--out", folder)
                made = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
                checked = harness.call_program("kernel", "check", folder / "kernel.so")
                self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_kernel_of_the_tutorial(self):
        """docs/kernels.md: its code in the place of launch()."""
        page = (harness.ROOT / "docs/kernels.md").read_text()
        code = re.search(r"```cpp\n(// Four sums side by side, then one.\n.*?)```", page, re.DOTALL).group(1)
        folder = self.folder / "my_rmsnorm"
        harness.program_output("kernel", "new", "rmsnorm_forward", "--out", folder)
        source = (folder / "kernel.cc").read_text()
        begin, end = source.index("int launch("), source.index("const hf_kernel kernels[]")
        (folder / "kernel.cc").write_text(source[:begin] + code + "\n" + source[end:])
        made = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        checked = harness.call_program("kernel", "check", folder / "kernel.so")
        self.assertEqual(checked.returncode, 0, checked.stdout)
        self.assertIn("kernel mine of rmsnorm_forward: passed", checked.stdout)
        with harness.Scene(steps=6) as scene:
            self.assertIn("holdfast kernel bench my_rmsnorm/kernel.so --config run.toml\n", page)
            measured = subprocess.run([str(harness.PROGRAM), "kernel", "bench", "my_rmsnorm/kernel.so", "--config", str(scene.config), "--seconds=1"], cwd=self.folder,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        self.assertEqual(measured.returncode, 0, measured.stdout)
        for line in re.search(r"--config run.toml\n(.*?)\n\n\|", page, re.DOTALL).group(1).splitlines():
            words = line.strip().removesuffix("...").split("run.toml")
            self.assertTrue(all(re.search(r" +".join(map(re.escape, part.split())), measured.stdout) for part in words), line + measured.stdout)

    def test_skeleton_says_that_it_computes_nothing(self):
        harness.program_output("kernel", "new", "rotary", "--out", self.folder / "rotary")
        made = subprocess.run(["make", "-C", str(self.folder / "rotary")], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        checked = harness.call_program("kernel", "check", self.folder / "rotary/kernel.so")
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertRegex(checked.stdout, r"wrong: it computes none of the \d+ calls that it was offered")

    def test_bad_words(self):
        self.expect_refused(says="kernel needs one of list, faults, contract, header, new, check, bench, ab, trace, got nothing")
        self.expect_refused("chck", says="got chck, did you mean check")
        self.expect_refused("new", "rmsnorm", says="there is no op rmsnorm")
        self.expect_refused("contract", "rotray", says="there is no op rotray, did you mean rotary")
        self.expect_refused("new", "add", "--lang", "fortran", "--out", self.folder / "add", says="--lang fortran is not known; expected cpp")
        harness.program_output("kernel", "new", "add", "--out", self.folder / "add")
        self.expect_refused("new", "add", "--out", self.folder / "add", says="add/kernel.cc exists, and is not overwritten")


class CheckTest(unittest.TestCase):
    """What `holdfast kernel check` finds out."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-system-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, *words, **changes):
        return harness.call_program("kernel", "check", build(self.folder / "mine.so", **changes), *words)

    def expect_wrong(self, compute, says, *words):
        done = self.check(*words, COMPUTE=compute)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, says)

    def test_documents(self):
        done = self.check("--json", "--page", self.folder / "page.html")
        self.assertEqual(done.returncode, 0, done.stdout)
        document = json.loads(done.stdout)
        self.assertTrue(document["passed"])
        kernel = document["kernels"][0]
        self.assertEqual((kernel["op"], kernel["name"], kernel["layout_free"]), ("add", "mine", True))
        self.assertTrue(0 < kernel["computed"] < kernel["calls"], "it computes fp32 alone")
        self.assertTrue(all(array["ulp_max"] == 0 for array in kernel["arrays"]), "fp32 + fp32, rounded once")
        self.assertIn("mine of add: passed", (self.folder / "page.html").read_text())

    def test_document_claims_nothing_that_was_not_tried(self):
        done = self.check("--json", COMPUTE="for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i] * 1.001f;")
        self.assertEqual(done.returncode, 1, done.stdout)
        kernel = json.loads(done.stdout)["kernels"][0]
        self.assertEqual((kernel["same_bits_twice"], kernel["layout_free"]), ("not_tried", "not_tried"), "its numbers are wrong, so its bits were not compared")

    def test_kill_from_outside_accuses_nobody(self):
        file = build(self.folder / "mine.so", COMPUTE="FILE* said = fopen(getenv(\"PIDS\"), \"a\"); fprintf(said, \"%d\\n\", getpid()); fclose(said); sleep(60);",
                     source=PLUGIN.replace("#include <math.h>", "#include <math.h>\n#include <stdlib.h>"))
        for number, name in [(signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "SIGTERM")]:
            said = self.folder / name
            command = subprocess.Popen([str(harness.PROGRAM), "kernel", "check", str(file)], env={**os.environ, "PIDS": str(said)}, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
            harness.wait_until(lambda said=said: said.exists() and said.read_text().endswith("\n"), 60, lambda command=command: command.poll() is not None,
                               "the kernel did not run", lambda: "")
            os.kill(int(said.read_text()), number)
            printed = command.communicate(timeout=60)[0]
            self.assertEqual(command.returncode, 76, printed)
            self.assertRegex(printed, rf"was ended from outside, by signal {number:d} \({name}\).*, which says nothing about its kernels; the last thing: mine of add: usual on ")
            self.assertNotIn("wrong", printed)

    def test_wrong_numbers(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i] * 1.001f;", r"wrong: .* element \d+ of y is .*, expected .* ULP")

    def test_elements_that_are_left_out(self):
        self.expect_wrong("for (int64_t i = 0; i + 1 < op->count; ++i) y[i] = a[i] + b[i];", r"wrong: .*: y has 1 elements that are not finite")

    def test_writes_behind_its_memory(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count + 1; ++i) y[i] = 0;", r"wrong: .*: it writes \d bytes after the last element of y")

    def test_writes_what_it_only_reads(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i]; ((float*)a)[0] = 5;", r"wrong: .*: it writes element 0 of a, which the op")

    def test_alias_that_the_contract_allows(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i]; for (int64_t i = 0; i < op->count; ++i) y[i] += b[i];",
                          r"wrong: .* of y is wrong where y is the same memory as b")

    def test_bits_that_depend_on_threads(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i] + (call->threads == 5 ? 1e-7f : 0);",
                          r"wrong: .* has other bits on 5 threads than on 1")

    def test_bits_that_depend_on_addresses(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i] + ((uintptr_t)y % 64 ? 1e-7f : 0);",
                          r"wrong: .* has other bits where its arrays begin at other addresses")

    def test_bits_that_depend_on_what_was_there(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i] + (y[i] == 0 ? 1e-7f : 0);",
                          r"wrong: .* has other bits where its outputs, its workspace and what lies around them held something else before")

    def test_bits_that_change_from_run_to_run(self):
        self.expect_wrong("static int runs; for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i] + 1e-7f * (runs % 7); ++runs;",
                          r"wrong: .* has other bits ")

    def test_states_that_calls_of_models_do_not_have(self):
        """A rotation that knows one direction, and an add of gradients that forgets the sums of squares."""
        rotate = ("int64_t half = op->head_size / 2; for (int64_t r = 0; r < op->rows; ++r) for (int64_t h = 0; h < op->heads; ++h) for (int64_t i = 0; i < half; ++i) {"
                  "float* x = (float*)op->x + r * op->row_stride + h * op->head_size; int64_t at = r % op->sequence_length * half + i;"
                  "float c = op->cosine[at], s = SIGN op->sine[at], low = x[i], high = x[i + half]; x[i] = low * c - high * s; x[i + half] = high * c + low * s; }")
        arrays = "  const float* a = (const float*)op->a;\n  const float* b = (const float*)op->b;\n  float* y = (float*)op->y;\n"
        rotary = {"source": PLUGIN.replace(arrays, "").replace("hf_add", "hf_rotary"), "OP": '"rotary"', "SCHEMA": "HF_SCHEMA_ROTARY", "COMPUTE": rotate}
        done = self.check(**rotary, SIGN="(op->inverse ? -1 : 1) *")
        self.assertEqual(done.returncode, 0, done.stdout)
        done = self.check(**rotary, SIGN="")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: \S+ heads of \d+, inverse, fp32, usual: element \d+ of x is")
        source = PLUGIN.replace(arrays, "").replace("((const hf_add*)call->op)->dtype == HF_FP32", "1").replace("hf_add", "hf_accumulate")
        done = self.check(source=source, OP='"accumulate"', SCHEMA="HF_SCHEMA_ACCUMULATE",
                          COMPUTE="for (int64_t i = 0; i < op->count; ++i) op->target[i] += op->source[i];")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: \d+, square_sums, usual: square_sums has \d+ elements that are not finite")

    def test_sums_of_squares_may_have_another_order(self):
        """The contract says that the order is fixed, and not which it is. Digests are fixed: the header has them."""
        arrays = "  const float* a = (const float*)op->a;\n  const float* b = (const float*)op->b;\n  float* y = (float*)op->y;\n"
        source = PLUGIN.replace(arrays, "").replace("((const hf_add*)call->op)->dtype == HF_FP32", "QUESTION").replace("hf_add", "hf_square_sum")
        done = self.check(source=source, OP='"square_sum"', SCHEMA="HF_SCHEMA_SQUARE_SUM",
                          QUESTION="((const hf_square_sum*)call->op)->segment_count == 0",
                          COMPUTE="for (int64_t b = 0; b * HF_BLOCK_ELEMENTS < op->count; ++b) { op->sums[b] = 0; for (int64_t i = HF_BLOCK_ELEMENTS; i-- > 0;) {"
                                  "int64_t at = b * HF_BLOCK_ELEMENTS + i; if (at < op->count) op->sums[b] += (double)op->values[at] * op->values[at]; }"
                                  "int64_t first = b * HF_BLOCK_ELEMENTS, left = op->count - first; if (op->digests)"
                                  "op->digests[b] = hf_state_digest(op->values + first, 0, 0, left < HF_BLOCK_ELEMENTS ? left : HF_BLOCK_ELEMENTS, HF_FP32); }")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_crash(self):
        self.expect_wrong("((volatile int*)8)[0] = 1;", r"wrong: plug-in .* ended the process by signal 11 \(SIGSEGV\): it uses memory that is not its own; "
                                                        r"the last thing: mine of add: usual on ")

    def test_hang(self):
        self.expect_wrong("for (volatile int i = 0;;) i = 1;", r"wrong: plug-in .* did not answer for 5 s; the last thing: mine of add: usual on ", "--seconds=5")

    def test_return_code(self):
        self.expect_wrong("return 7;", r"wrong: .*: it returns 7 instead of 0: it has not computed its call")

    def test_ends_the_process(self):
        """Whatever exit code it takes, and whatever it prints: the check has not ended."""
        for code in [0, 2]:
            self.expect_wrong(f"_exit({code});", rf"wrong: plug-in .* ended the process with exit code {code}, before its work had ended; "
                                                 r"the last thing: mine of add: usual on ")
        self.expect_wrong('for (int i = 0; i < 9999; ++i) puts("holdfast: all is well"); fflush(stdout); _exit(2);', r"the last thing: mine of add: usual on ")

    def test_aborts(self):
        self.expect_wrong('fprintf(stderr, "one\\nthe heap is broken\\n"); raise(SIGABRT);',
                          r'wrong: plug-in .* ended the process by signal 6 \(SIGABRT\), after it printed "the heap is broken"; the last thing: mine of add: usual on ')

    def test_throws(self):
        folder = self.folder / "add"
        harness.program_output("kernel", "new", "add", "--out", folder)
        source = (folder / "kernel.cc").read_text()
        (folder / "kernel.cc").write_text(source.replace("int launch(const hf_call* call, void*, void*) {", "int launch(const hf_call* call, void*, void*) {\n  throw 1;"))
        made = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        checked = harness.call_program("kernel", "check", folder / "kernel.so")
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertRegex(checked.stdout, "wrong: .*: it throws an exception, which ends a run")

    def test_full_disk_accuses_nobody(self):
        file = build(self.folder / "mine.so")
        command = f'trap "" XFSZ; ulimit -f 4; exec {shlex.quote(str(harness.PROGRAM))} kernel check {shlex.quote(str(file))}'
        done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 5, done.stdout)
        self.assertRegex(done.stdout, r"^holdfast: cannot append to \S+/told: the disk is full")

    def test_prints(self):
        done = self.check(COMPUTE='puts("@ a line"); for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i];')
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("a line", done.stdout)

    def test_reads_behind_its_memory(self):
        self.expect_wrong("float past = 0; for (int64_t i = 0; i < op->count + 1; ++i) past += a[i] * 1e-30f;"
                          "for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i] + past;", r"wrong: .*: y has \d+ elements that are not finite")
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i]; volatile float past = a[op->count]; (void)past;",
                          r"wrong: plug-in .* ended the process by signal 11 \(SIGSEGV\).*; the last thing: mine of add: arrays that end where the memory of the "
                          "process ends, on ")

    def test_flushes_denormal_numbers(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) { float s = a[i] + b[i]; y[i] = s < 1e-38f && s > -1e-38f ? s * 0 : s; }",
                          r"wrong: .*, denormal: element \d+ of y is -?0")

    @unittest.skipUnless(platform.machine() == "x86_64", "MXCSR")
    def test_floating_point_control_that_it_leaves_changed(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i]; __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);",
                          r"wrong: .*: it leaves the floating point control of a thread \(MXCSR\) changed, 0x9fc0 instead of 0x1f80")

    def test_bits_that_the_contract_fixes(self):
        self.expect_wrong("for (int64_t i = 0; i < op->count; ++i) y[i] = (a[i] + b[i]) * (1 + 0x1p-23f);",
                          r"wrong: .*: element \d+ of y has not the bits of \w+, and the contract of add leaves no choice")

    def test_bits_that_depend_on_where_a_call_is_cut(self):
        """One kernel that rounds otherwise in the last elements of its calls, as vector code with a scalar rest does."""
        words = {"OP": '"gelu_forward"', "SCHEMA": "HF_SCHEMA_GELU_FORWARD", "hf_add": "hf_gelu_forward",
                 "source": PLUGIN.replace("  const float* a = (const float*)op->a;\n", "").replace("op->b", "op->x"),
                 "COMPUTE": "for (int64_t i = 0; i < op->count; ++i) { double v = b[i]; y[i] = (float)(0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))));"
                            "if (i >= op->count / 4 * 4) y[i] *= 1 + 0x1p-23f; }"}
        done = self.check(**words)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: .*: element \d+ of y has other bits where the call is cut in two: it breaks the promise HF_LAYOUT_FREE")
        honest = self.check(**words, HF_LAYOUT_FREE="0")
        self.assertEqual(honest.returncode, 0, honest.stdout)
        self.assertRegex(honest.stdout, r"note: .* has other bits where the call is cut in two: it must not have the flag HF_LAYOUT_FREE")
        self.assertNotIn("it can have the flag", honest.stdout)

    def test_workspace(self):
        launch = "for (int64_t i = 0; i < op->count; ++i) y[i] = a[i] + b[i];"
        source = PLUGIN.replace("static int supports", "static size_t room(const hf_call* call) { (void)call; return ROOM; }\nstatic int supports")
        for room, write, says in [("10", "10", "it writes behind the end of its workspace of 10 bytes"), ("10", "-1", "it writes in front of its workspace of 10 bytes"),
                                  ("(size_t)-100", "0", "its workspace\\(\\) asks for 18446744073709551516 bytes")]:
            done = self.check(source=source, WORKSPACE="room", ROOM=room, COMPUTE=f"{launch} ((char*)workspace)[{write}] = 1;")
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stdout, "wrong: .*: " + says)


# A kernel that is right, in fp32, of which a test says what else it does before and behind.
NORM = """#include "holdfast_kernel.h"
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void compute(const hf_rmsnorm_forward* op) {
  const float* x = (const float*)op->x;
  const float* weight = (const float*)op->weight;
  float* y = (float*)op->y;
  for (int64_t row = 0; row < op->rows; ++row, x += op->width, y += op->width) {
    double sum = 0;
    for (int64_t i = 0; i < op->width; ++i) sum += (double)x[i] * x[i];
    op->rstd[row] = (float)(1 / sqrt(sum / op->width + op->epsilon));
    for (int64_t i = 0; i < op->width; ++i) y[i] = x[i] * op->rstd[row] * weight[i];
  }
}
BESIDE
static int launch(const hf_call* call, void* workspace, void* stream) {
  const hf_rmsnorm_forward* op = (const hf_rmsnorm_forward*)call->op;
  float* y = (float*)op->y;
  (void)workspace, (void)stream, (void)y;
  CHEAT
  compute(op);
  AFTER
  return 0;
}
static int supports(const hf_call* call) { return ((const hf_rmsnorm_forward*)call->op)->dtype == HF_FP32; }
static const hf_kernel kernels[] = {{HF_KERNEL_ABI, HF_CPU, HF_SAME_BITS_TWICE, 0, "rmsnorm_forward", HF_SCHEMA_RMSNORM_FORWARD, "mine", 0, supports, WORKSPACE, launch}};
HF_EXPORT const hf_kernel* hf_kernels(int* count) { *count = 1; return kernels; }
"""
# Half of the time passes for whoever asks clock_gettime(): its first bytes jump here.
SLOW_CLOCK = """static int slow(clockid_t id, struct timespec* time) {
  static long long first;
  syscall(SYS_clock_gettime, id, time);
  if (id != CLOCK_MONOTONIC) return 0;
  long long now = time->tv_sec * 1000000000LL + time->tv_nsec;
  if (first == 0) first = now;
  now = first + (now - first) / 2;
  time->tv_sec = now / 1000000000LL;
  time->tv_nsec = now % 1000000000LL;
  return 0;
}
__attribute__((constructor)) static void patch(void) {
  unsigned char* place = (unsigned char*)dlsym(RTLD_DEFAULT, "clock_gettime");
  void* target = (void*)slow;
  mprotect((void*)((uintptr_t)place & ~(uintptr_t)4095), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
  place[0] = 0x48, place[1] = 0xb8, place[10] = 0xff, place[11] = 0xe0;
  memcpy(place + 2, &target, sizeof(target));
}
"""
LATER = """static void* work(void* data) {
  usleep(200);
  compute((const hf_rmsnorm_forward*)data);
  free(data);
  return 0;
}
"""


class BenchTest(unittest.TestCase):
    """`holdfast kernel bench`: the figures of a right kernel, and a sentence for each way to look fast."""

    def setUp(self):
        self.scene = harness.Scene(steps=6)
        self.addCleanup(self.scene.close)
        self.file = self.scene.directory / "mine.so"

    def bench(self, *words, seconds=1, **changes):
        build(self.file, source=NORM, **{"BESIDE": "", "CHEAT": "", "AFTER": "", **changes})
        return harness.call_program("kernel", "bench", self.file, "--config", self.scene.config, f"--seconds={seconds}", "--threads=2", *words)

    def expect_cheat(self, says, **changes):
        done = self.bench(**changes)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: mine on \d+x\d+: " + says)

    def test_figures_of_the_calls_of_a_step(self):
        figures = self.scene.directory / "figures.json"
        done = self.bench("--json", figures)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"ms of a step of \S+run.toml, all calls of rmsnorm_forward\nimplementation +warm +\+- +cold +\+-\n-+\n(.*\n)*mine, of the plug-in +\d")
        document = json.loads(figures.read_text())
        self.assertTrue(document["passed"])
        (op,) = document["ops"]
        (call,) = op["calls"]
        config = self.scene.config.read_text()
        microbatches = int(re.search(r"lanes = (\d+)", config).group(1)) * int(re.search(r"microbatches_per_lane = (\d+)", config).group(1))
        self.assertEqual(call["calls"], (2 * int(re.search(r"layers = (\d+)", config).group(1)) + 1) * microbatches)
        names = [each["name"] for each in call["implementations"]]
        self.assertIn("portable", names)
        self.assertNotIn("reference", names, "it takes minutes on the shapes of models")
        self.assertEqual(sum(each["default"] for each in call["implementations"]), 1)
        mine = next(each for each in op["step"] if each["plugin"])
        one = next(each for each in call["implementations"] if each["plugin"])
        self.assertAlmostEqual(mine["warm"]["ms"] * 1e3 / (one["warm"]["microseconds"] * call["calls"]), 1, places=6)
        self.assertGreaterEqual(one["warm"]["rounds"], 1)
        if op["settled"]:
            self.assertGreaterEqual(one["warm"]["rounds"], 10)

    def test_calls_that_it_does_not_compute(self):
        done = self.bench(HF_FP32="HF_BF16")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"note: mine does not compute \d+x\d+: its time in a step has the default's there")

    def test_results_by_address(self):
        seen = "static void* seen[64]; static int count; for (int i = 0; i < count; ++i) if (seen[i] == y) %s if (count < 64) seen[count++] = y;"
        self.expect_cheat("it leaves what was there before and computes nothing, after [1-9]", CHEAT=seen % "return 0;")
        self.expect_cheat("it writes the results of an earlier call on the same memory, whose numbers were others: it remembers them",
                          CHEAT="static void* seen; static float* kept; size_t bytes = op->rows * op->width * 4; static float* rstd;"
                                "if (seen == y) { memcpy(y, kept, bytes); memcpy(op->rstd, rstd, op->rows * 4); return 0; }",
                          AFTER="seen = y; kept = realloc(kept, bytes); rstd = realloc(rstd, op->rows * 4); memcpy(kept, y, bytes); memcpy(rstd, op->rstd, op->rows * 4);")

    def test_right_at_first(self):
        self.expect_cheat(r"it was right in [1-9]\d* calls that were compared, and is wrong in a later one: element \d+ of y is",
                          AFTER="static int calls; if (++calls > 200) y[op->rows * op->width / 2] += 1;")

    def test_some_calls_of_many(self):
        self.expect_cheat("it leaves what was there before and computes nothing", CHEAT="static int calls; if (++calls % 8 != 1) return 0;")

    def test_what_was_left_before(self):
        self.expect_cheat("it leaves what was there before and computes nothing", CHEAT="if (y[0] < 1e9f && y[0] > -1e9f) return 0;")

    def test_what_it_left_at_some_places(self):
        """It skips a call if four elements of y are what it wrote last."""
        self.expect_cheat("it leaves what was there before and computes nothing, after [1-9]",
                          CHEAT="static float kept[4]; const int64_t n = op->rows * op->width, p[4] = {1, n / 3, n / 2, n - 2};"
                                "if (y[p[0]] == kept[0] && y[p[1]] == kept[1] && y[p[2]] == kept[2] && y[p[3]] == kept[3]) return 0;",
                          AFTER="for (int k = 0; k < 4; ++k) kept[k] = y[p[k]];")

    def test_results_by_some_inputs(self):
        """It writes what it wrote last if four elements of x and one of weight are what they were."""
        self.expect_cheat("it writes the results of an earlier call on the same memory, whose numbers were others: it remembers them",
                          CHEAT="static float seen[5]; static float *kept, *rstd; const int64_t n = op->rows * op->width; const float* x = (const float*)op->x;"
                                "const float now[5] = {x[1], x[n / 3], x[n / 2], x[n - 2], ((const float*)op->weight)[1]};"
                                "if (memcmp(seen, now, sizeof(now)) == 0) { memcpy(y, kept, n * 4); memcpy(op->rstd, rstd, op->rows * 4); return 0; }",
                          AFTER="memcpy(seen, now, sizeof(now)); kept = realloc(kept, n * 4); rstd = realloc(rstd, op->rows * 4);"
                                "memcpy(kept, y, n * 4); memcpy(rstd, op->rstd, op->rows * 4);")

    @unittest.skipUnless(platform.machine() == "x86_64", "its counter")
    def test_first_call_after_a_while(self):
        """It computes what comes more than half a millisecond after its last call: the first call of each turn."""
        self.expect_cheat("it leaves what was there before and computes nothing, after [1-9]", BESIDE="static unsigned long long last;",
                          CHEAT="if (__builtin_ia32_rdtsc() - last < 1500000) { last = __builtin_ia32_rdtsc(); return 0; }", AFTER="last = __builtin_ia32_rdtsc();")

    def test_work_in_its_workspace_function(self):
        """That runs before the time of a call: on the call's memory it ends the process, and on memory that it remembers it finds old numbers."""
        skip = "if (done) { done = 0; return 0; }"
        room = "static int done; static hf_rmsnorm_forward last; static size_t room(const hf_call* call) { (void)call; ROOM return 64; }"
        words = {"WORKSPACE": "room", "CHEAT": skip, "AFTER": "last = *op;"}
        at_once = {**words, "BESIDE": room.replace("ROOM", "if (!done) { compute((const hf_rmsnorm_forward*)call->op); done = 1; }")}
        for done in [self.bench(**at_once), harness.call_program("kernel", "check", self.file)]:
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stdout, r"wrong: plug-in \S+ ended the process by signal 11 \(SIGSEGV\)")
        self.expect_cheat("it leaves what was there before and computes nothing|its numbers are wrong|it was right in",
                          **{**words, "BESIDE": room.replace("ROOM", "if (last.y && !done) { compute(&last); done = 1; }")})

    def test_work_after_the_return(self):
        self.expect_cheat("it goes on writing after launch\\(\\) has returned", BESIDE=LATER,
                          CHEAT="pthread_t thread; void* data = malloc(sizeof(*op)); memcpy(data, op, sizeof(*op));"
                                "if (pthread_create(&thread, 0, work, data) == 0) { pthread_detach(thread); return 0; }")

    def test_faster_than_the_machine(self):
        text = self.scene.config.read_text()
        self.scene.config.write_text(re.sub("\nmicrobatch_size = \\d+", "\nmicrobatch_size = 512", text))
        self.expect_cheat(r"it takes \S+ us, this machine needs \S+ us to move the bytes of the call or to multiply its numbers, and the fastest other kernel takes \S+ us: it does not do the work",
                          CHEAT="return 0;")

    @unittest.skipUnless(platform.machine() == "x86_64", "machine code")
    def test_clock_that_it_has_changed(self):
        done = self.bench(BESIDE=SLOW_CLOCK)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: the clock of the process counted \S+ s while the processor counted \S+ s: the plug-in has changed it")

    def test_numbers_are_new_each_time(self):
        """Nobody knows those of a measurement or of a check before."""
        for command, words in [("bench", ["--config", self.scene.config, "--seconds=1"]), ("check", [])]:
            file = self.scene.directory / command
            for _ in range(2):
                build(self.file, source=NORM.replace("#include <math.h>", "#include <math.h>\n#include <stdio.h>"), BESIDE="", AFTER="",
                      CHEAT=f'static int told; if (!told++) {{ FILE* said = fopen("{file}", "a"); fprintf(said, "%a\\n", ((const float*)op->x)[0]); fclose(said); }}')
                harness.call_program("kernel", command, self.file, *words)
            numbers = file.read_text().split()
            self.assertEqual((len(numbers), len(set(numbers))), (2, 2))

    def test_crash(self):
        done = self.bench(AFTER="static int calls; if (++calls > 50) ((volatile int*)8)[0] = 1;")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: plug-in \S+ ended the process by signal 11 \(SIGSEGV\): .*; the last thing: rmsnorm_forward: mine on \d+x\d+\n")

    def test_bad_words(self):
        def refused(*words):
            done = harness.call_program("kernel", "bench", *words)
            self.assertEqual(done.returncode, 2, done.stdout)
            return done.stdout

        build(self.file)
        self.assertIn("kernel bench needs --config RUN.toml or --trace DIR, and not both: it measures the calls of a step of that run", refused(self.file))
        self.assertRegex(refused(self.file, "--config", self.scene.config), r"a step of \S+ calls none of what plug-in \S+ has kernels for: add")
        self.assertIn("there is no op rmsnorm", refused(self.file, "--config", self.scene.config, "--op=rmsnorm"))
        self.assertIn("nothing.toml", refused(self.file, "--config", "nothing.toml"))


class BadFileTest(unittest.TestCase):
    """A sentence and exit code 2 for every file that is no plug-in of this program."""

    def setUp(self):
        self.scene = harness.Scene(steps=6)
        self.addCleanup(self.scene.close)
        self.file = self.scene.directory / "mine.so"

    def expect_row(self, plugins=None):
        row = ROWS[self._testMethodName.removeprefix("test_").replace("_", "-")]
        words = plugins or [self.file]
        listed = ", ".join(f'"{word}"' for word in words)
        commands = [["train", self.scene.config, f"--run.directory={self.scene.directory}/run", f"--kernels.plugins=[{listed}]"],
                    ["check", self.scene.config, f"--kernels.plugins=[{listed}]"]]
        if len(words) == 1:
            commands.append(["kernel", "check", *words])
        for command in commands:
            done = harness.call_program(*command)
            self.assertEqual(done.returncode, row.code, done.stdout)
            self.assertRegex(done.stdout, row.pattern)
        self.assertFalse((self.scene.directory / "run").exists())

    def test_every_row_has_a_test(self):
        tested = {name.removeprefix("test_").replace("_", "-") for name in dir(self) if name.startswith("test_plugin")}
        self.assertEqual(tested, set(ROWS))

    def test_plugin_missing(self):
        self.expect_row()

    def test_plugin_no_library(self):
        self.file.write_text("hello")
        self.expect_row()

    def test_plugin_object(self):
        build(self.file, kind="-c", source="int nothing;")
        self.expect_row()

    def test_plugin_other_machine(self):
        built = bytearray(build(self.file).read_bytes())
        built[18:20] = (183).to_bytes(2, "little")
        self.file.write_bytes(built)
        self.expect_row()

    def test_plugin_cut_off(self):
        built = build(self.file).read_bytes()
        self.file.write_bytes(built[:len(built) // 2])
        self.expect_row()

    def test_plugin_fast_math(self):
        build(self.file, source=PLUGIN + FAST)
        self.expect_row()

    def test_plugin_needs_by_path(self):
        other = self.scene.directory / "other.so"
        build(other, source="int other;")
        build(self.file, link=["-Wl,--no-as-needed", "-x", "none", os.path.relpath(other)])
        self.expect_row()

    def test_plugin_runpath(self):
        build(self.file, link=["-Wl,-rpath,lib"])
        self.expect_row()

    def test_plugin_workspace(self):
        build(self.file, **{**BROKEN, "WORKSPACE": "huge"})
        row = ROWS["plugin-workspace"]
        done = harness.call_program("train", self.scene.config, f"--run.directory={self.scene.directory}/run", f"--kernels.plugins={self.file}",
                                    "--kernels.rmsnorm_forward=mine")
        self.assertEqual(done.returncode, row.code, done.stdout)
        self.assertRegex(done.stdout, row.pattern)

    def test_plugin_unresolved(self):
        build(self.file, COMPUTE="extern int nobody_has_this(void); return nobody_has_this();")
        self.expect_row()

    def test_plugin_no_kernels(self):
        build(self.file, source="int nothing;")
        self.expect_row()

    def test_plugin_other_version(self):
        build(self.file, ABI="99")
        self.expect_row()

    def test_plugin_other_struct(self):
        build(self.file, SCHEMA="HF_SCHEMA_ADD + 1")
        self.expect_row()

    def test_plugin_unknown_op(self):
        build(self.file, OP='"addd"')
        self.expect_row()

    def test_plugin_name_taken(self):
        build(self.file, NAME='"portable"')
        self.expect_row()

    def test_plugin_strange_name(self):
        build(self.file, NAME='"my kernel"')
        self.expect_row()

    def test_plugin_of_gpu(self):
        build(self.file, HF_CPU="HF_CUDA")
        self.expect_row()

    def test_plugin_twice(self):
        other = self.scene.directory / "other.so"
        build(self.file)
        build(other, COMPUTE="for (int64_t i = op->count; i-- > 0;) y[i] = a[i] + b[i];")
        self.expect_row([self.file, other])


class RunTest(unittest.TestCase):
    """Runs that train with a plug-in."""

    def setUp(self):
        self.scene = harness.Scene(steps=6)
        self.addCleanup(self.scene.close)
        self.file = self.scene.directory / "mine.so"

    def made(self, op):
        folder = self.scene.directory / op
        harness.program_output("kernel", "new", op, "--out", folder)
        made = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        return folder / "kernel.so"

    def add_to_config(self, text):
        self.scene.config.write_text(self.scene.config.read_text() + text)

    def test_trains_with_the_same_bits_in_two_layouts_and_tells_of_a_change(self):
        self.made("rmsnorm_forward")
        self.add_to_config('\n[kernels]\nplugins = ["rmsnorm_forward/kernel.so"]\nrmsnorm_forward = "mine"\n')
        shown = harness.program_output("check", self.scene.config, "--kernels")
        self.assertRegex(shown, r"rmsnorm_forward +mine +chosen by \[kernels\], of the plug-in .*/rmsnorm_forward/kernel.so \(digest [0-9a-f]{16}\); also reference, portable")
        alone = self.scene.run("alone")
        alone.start(1).expect_exit(0)
        digest = re.search(r"digest ([0-9a-f]{16})", shown).group(1)
        self.assertIn(f"kernel.so (digest {digest})", alone.events("start")[0]["kernels"]["rmsnorm_forward"]["why"])
        manifest = (alone.checkpoints()[-1] / "manifest.json").read_text()
        self.assertIn(f"rmsnorm_forward mine {digest}", manifest)
        two = self.scene.run("two")
        two.start(2).expect_exit(0)
        self.assertEqual(two.digest(), alone.digest())
        default = self.scene.run("default")
        default.start(1, overrides=["--kernels.rmsnorm_forward=auto"]).expect_exit(0)
        self.assertNotEqual(default.digest(), alone.digest(), "its sums are in double, so its bits are its own")

        same = alone.start(1, overrides=["--training.steps=8"])
        same.expect_exit(0)
        self.assertNotIn("numeric", same.output())
        build_other = self.scene.directory / "rmsnorm_forward/kernel.cc"
        build_other.write_text(build_other.read_text() + "\n// Another file.\nextern \"C\" int another = 1;\n")
        self.assertEqual(subprocess.run(["make", "-C", str(build_other.parent)], capture_output=True, timeout=60, check=False).returncode, 0)
        other = alone.start(1, overrides=["--training.steps=9"])
        other.expect_exit(0)
        self.assertRegex(other.output(), rf'made on "cpu, rmsnorm_forward mine {digest}", now on "cpu, rmsnorm_forward mine [0-9a-f]{{16}}"  \(numeric')
        without = alone.start(1, overrides=["--training.steps=10", "--kernels.rmsnorm_forward=auto", "--kernels.plugins=[]"])
        without.expect_exit(0)
        self.assertRegex(without.output(), r'kernels.rmsnorm_forward: "mine" -> "auto"  \(numeric')

    def test_stored_config_loads_no_code(self):
        """A run directory that somebody else could write to does not decide what is loaded."""
        build(self.file)
        words = [f"--kernels.plugins={os.path.relpath(self.file)}", "--kernels.add=mine"]
        run = self.scene.run("run")
        run.start(1, overrides=words).expect_exit(0)
        recorded = re.search(r'^plugins = \["(.*)"\]', (run.directory / "config.toml").read_text(), re.MULTILINE).group(1)
        self.assertTrue(recorded.startswith("/") and Path(recorded).samefile(self.file), "it means the same from everywhere")
        harness.program_output("replay", run.directory, "--step", 6, f"--kernels.plugins={self.file}")
        refused = harness.call_program("replay", run.directory, "--step", 6)
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertRegex(refused.stdout, r'kernels.add = "mine".*: there is no such implementation. Choose one of .*; or name the plug-in that has it in kernels.plugins')
        self.file.unlink()
        self.file.write_text("no library any more")
        harness.program_output("sample", run.directory, "--tokens=1")
        refused = run.start(1, overrides=["--kernels.add=mine", "--training.steps=8"]).expect_exit(2)
        self.assertIn('kernels.add = "mine" (command line): there is no such implementation', refused)

    def test_return_code_is_told(self):
        build(self.file, COMPUTE="return 7;", **BROKEN)
        start = self.scene.run("code").start(1, overrides=[f"--kernels.plugins={self.file}", "--kernels.rmsnorm_forward=mine"])
        start.wait()
        self.assertRegex(start.output(), r"holdfast: kernel mine of rmsnorm_forward, of the plug-in \S*/mine.so, returned 7 instead of 0: it has not computed its call\. "
                                          r"This process ends; a run that starts again meets it again")
        self.assertRegex(start.output(), f"rank 0 .*died{harness.cause_of_death('signal 6 (SIGABRT), while it ran kernel mine of rmsnorm_forward, of the plug-in')}")

    def test_crash_is_named(self):
        build(self.file, COMPUTE="((volatile int*)8)[0] = 1;", **BROKEN)
        start = self.scene.run("crash").start(2, overrides=[f"--kernels.plugins={self.file}", "--kernels.rmsnorm_forward=mine"])
        start.wait()
        self.assertRegex(start.output(), r"died: signal 11 \(SIGSEGV\), while it ran kernel mine of rmsnorm_forward, of the plug-in \S*/mine.so")

    def test_crash_of_its_questions_is_named(self):
        """supports() and workspace() run when a step is planned, and before each launch."""
        questions = ("static int supports(const hf_call* call) { SUPPORTED return 1; }\nstatic size_t room(const hf_call* call) { (void)call; ROOM return 0; }\n")
        source = re.sub(r"static int supports.*\n", lambda _: questions, PLUGIN)
        for name, words in [("supports", {"SUPPORTED": "((volatile int*)8)[0] = 1;", "ROOM": ""}), ("workspace", {"SUPPORTED": "", "ROOM": "((volatile int*)8)[0] = 1;"})]:
            build(self.file, source=source, **{**BROKEN, "SUPPORTS": "supports", "WORKSPACE": "room", **words})
            start = self.scene.run(name).start(1, overrides=[f"--kernels.plugins={self.file}", "--kernels.rmsnorm_forward=mine"])
            start.wait()
            self.assertRegex(start.output(), f"rank 0 .*died{harness.cause_of_death('signal 11 (SIGSEGV), while it ran kernel mine of rmsnorm_forward, of the plug-in')}")

    def test_hang_is_named(self):
        build(self.file, COMPUTE="for (volatile int i = 0;;) i = 1;", **BROKEN)
        start = self.scene.run("hang").start(2, overrides=[f"--kernels.plugins={self.file}", "--kernels.rmsnorm_forward=mine", "--watchdog.ceiling=3s",
                                                           "--watchdog.floor=1s"])
        start.wait()
        self.assertRegex(start.output(), r"hangs: .*; it runs kernel mine of rmsnorm_forward, of the plug-in \S*/mine.so")


if __name__ == "__main__":
    harness.main()
