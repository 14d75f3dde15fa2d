"""`holdfast kernel trace`: calls of a run with what their arrays held, and checks and measurements of kernels on them."""
import ast
import json
import math
import re
import shlex
import shutil
import struct
import subprocess
import unittest

import errors_test
import harness
import kernel_ab_test
import kernel_test
import replay_test

STEPS = 12
ROWS = errors_test.read_table(lambda heading: heading == errors_test.TRACES)
REFERENCES = ("matmul", "rmsnorm_forward", "rmsnorm_backward", "swiglu_forward", "swiglu_backward")
TYPES = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "int8": "I8"}  # of the schema that a call's inputs may have


def build_norm(file, wrong=""):
    """RMSNorm of fp32 rows; `wrong` stands behind each row."""
    return kernel_test.build(file, source=kernel_ab_test.SOURCE, link=("-lm",), OP='"rmsnorm_forward"', SCHEMA="HF_SCHEMA_RMSNORM_FORWARD",
                             COMPUTE=kernel_ab_test.NORM.replace("BEFORE", "").replace("AFTER", wrong))


def header_of(path):
    """({name: entry}, bytes behind the header) of a safetensors file."""
    content = path.read_bytes()
    end = 8 + struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8:end])
    header.pop("__metadata__")
    return header, content[end:]


def floats(path):
    """{name: values} of a safetensors file, each of fp32."""
    header, data = header_of(path)
    return {name: struct.unpack(f"<{entry['shape'][0]}f", data[slice(*entry["data_offsets"])]) for name, entry in header.items() if entry["dtype"] == "F32"}


class Matrix:
    """Of PyTorch's tensors what the references in Python use, in one or two dimensions; a vector is one row."""

    def __init__(self, rows):
        self.rows = [list(row) for row in rows]

    def values(self):
        return [value for row in self.rows for value in row]

    def double(self):
        return self

    def to(self, _):
        return self

    def reshape(self, height, width=None):
        values = self.values()
        width = width or len(values)
        return Matrix([values[at:at + width] for at in range(0, len(values), width)])

    def sum(self, dim, keepdim=False):
        if dim == 0:
            return Matrix([[math.fsum(column) for column in zip(*self.rows)]])
        return Matrix([[math.fsum(row)] for row in self.rows] if keepdim else [[math.fsum(row) for row in self.rows]])

    def each(self, other, work):
        other = other if isinstance(other, Matrix) else Matrix([[other]])
        height, width = max(len(self.rows), len(other.rows)), max(len(self.rows[0]), len(other.rows[0]))

        def at(one, i, j):
            row = one.rows[i if len(one.rows) > 1 else 0]
            return row[j if len(row) > 1 else 0]

        return Matrix([[work(at(self, i, j), at(other, i, j)) for j in range(width)] for i in range(height)])

    def __add__(self, other):
        return self.each(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self.each(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self.each(other, lambda a, b: a * b)

    def __truediv__(self, other):
        return self.each(other, lambda a, b: a / b)

    def __rtruediv__(self, other):
        return self.each(other, lambda a, b: b / a)

    def __rsub__(self, other):
        return self.each(other, lambda a, b: b - a)

    def __neg__(self):
        return self * -1

    __radd__, __rmul__ = __add__, __mul__

    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        return Matrix([[math.fsum(map(float.__mul__, row, column)) for column in columns] for row in self.rows])

    def __getitem__(self, places):
        return Matrix([row[places[1]] for row in self.rows[places[0]]])

    @property
    def T(self):
        return Matrix(zip(*self.rows))


class Torch:
    """Of the module what the references use."""

    def __getattr__(self, name):
        if name in ("sqrt", "exp"):
            return lambda one: one.each(0.0, lambda a, _: getattr(math, name)(a))
        return name  # a type

    @staticmethod
    def cat(parts, dim):
        assert dim == -1
        return Matrix([sum(rows, []) for rows in zip(*(part.rows for part in parts))])

    @staticmethod
    def as_strided(one, shape, strides):
        values = one.values()
        return Matrix([values[i * strides[0]:i * strides[0] + shape[1]] for i in range(shape[0])])


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=STEPS)
        cls.addClassCleanup(cls.scene.close)
        cls.run_of_one = cls.scene.run("one", ["--threads=2"])
        cls.run_of_one.start(1).expect_exit(0)
        cls.folder = cls.scene.directory / "trace"
        cls.said = cls.trace("--steps=7,12", "--ops", "rmsnorm_*,swiglu_*,adamw,embedding_*,cross_entropy,attention_*,rotary,matmul", "--out", cls.folder)

    @classmethod
    def trace(cls, *words, run=None):
        return harness.program_output("kernel", "trace", run or cls.run_of_one.directory, *words)

    def calls(self, op):
        """(definition, workload) of each call that was kept."""
        for path in sorted((self.folder / "workloads" / op).glob("*.jsonl")):
            definition = json.loads((self.folder / "definitions" / op / f"{path.stem}.json").read_text())
            for line in path.read_text().splitlines():
                yield definition, json.loads(line)["workload"]

    def test_what_is_said(self):
        announced = re.search(r"keeps (\d+) of (\d+) calls of 12 ops in (\d+) shapes, the first 1 of each shape in each of 2 steps: about (\S+) MiB in ", self.said)
        self.assertIsNotNone(announced, self.said)
        kept, every, shapes, size = announced.groups()
        self.assertEqual(int(kept), 2 * int(shapes))
        self.assertGreater(int(every), int(kept))
        written = re.search(rf"\n{kept} calls in {self.folder}, (\S+) MiB; made again from what was kept, each has the bits of the run\n", self.said)
        self.assertIsNotNone(written, self.said)
        self.assertAlmostEqual(float(written[1]) / float(size), 1, places=2)
        self.assertTrue(self.said.endswith("\nsteps: same bits as the run recorded\n"), self.said)
        self.assertEqual(len(list(self.folder.glob("blob/workloads/*/*/*.safetensors"))), int(kept))
        trace = json.loads((self.folder / "trace.json").read_text())["trace"]
        self.assertEqual((trace["steps"], trace["threads"], trace["precision"]), ([7, 12], 2, "fp32"))
        self.assertEqual(sum(sum(shape["calls"]) for shape in trace["shapes"]), int(every))
        self.assertEqual({kept["step"] for shape in trace["shapes"] for kept in shape["kept"]}, {7, 12})

    def test_the_arrays_are_those_of_the_op(self):
        """By arithmetic of this file, and by what one op leaves for the next."""
        seen = 0
        for _, workload in self.calls("rmsnorm_forward"):
            arrays = floats(self.folder / workload["inputs"]["x"]["path"])
            width, epsilon = len(arrays["weight"]), workload["inputs"]["epsilon"]["value"]
            for row in range(0, len(arrays["rstd"]), 7):
                x = arrays["x"][row * width:(row + 1) * width]
                rstd = 1 / math.sqrt(sum(value * value for value in x) / width + epsilon)
                self.assertAlmostEqual(arrays["rstd"][row] / rstd, 1, places=5)
                for i in range(width):
                    self.assertAlmostEqual(arrays["y"][row * width + i], x[i] * rstd * arrays["weight"][i], places=4)
                seen += 1
        self.assertGreater(seen, 10)
        for definition, workload in self.calls("attention_backward"):
            self.assertEqual((sorted(definition["inputs"]), list(definition["outputs"])), (["dout", "lse", "out", "qkv"], ["dqkv"]))
            self.assertTrue(any(floats(self.folder / workload["inputs"]["qkv"]["path"])["dqkv"]))

    def test_dataset_of_flashinfer_bench(self):
        """What its documentation (flashinfer-bench, docs/flashinfer-trace and flashinfer_bench/data, April 2026) demands of files."""
        definitions = {}
        for path in self.folder.glob("definitions/*/*.json"):
            one = json.loads(path.read_text())
            definitions[one["name"]] = one
            self.assertEqual((path.stem, path.parent.name), (one["name"], one["op_type"]))
            self.assertTrue(all(isinstance(tag, str) and tag for tag in one["tags"]))
            self.assertFalse(set(one["inputs"]) & set(one["outputs"]))
            for axis in one["axes"].values():
                self.assertEqual((axis["type"], type(axis["value"])), ("const", int))
                self.assertGreaterEqual(axis["value"], 0)
            for spec in [*one["inputs"].values(), *one["outputs"].values()]:
                self.assertIn(spec["dtype"], {*TYPES, "int64"})
                self.assertLessEqual(set(spec["shape"] or []), set(one["axes"]))
            self.assertTrue(any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in ast.parse(one["reference"]).body))
        self.assertLessEqual({"rmsnorm_backward", "swiglu_backward", "attention_backward", "adamw"}, {one["op_type"] for one in definitions.values()})
        uuids = []
        for path in self.folder.glob("workloads/*/*.jsonl"):
            for line in path.read_text().splitlines():
                one = json.loads(line)
                definition, workload = definitions[one["definition"]], one["workload"]
                self.assertEqual((path.stem, one["solution"], one["evaluation"]), (one["definition"], None, None))
                self.assertEqual((workload["axes"], set(workload["inputs"])), ({}, set(definition["inputs"])))
                uuids.append(workload["uuid"])
                for name, given in workload["inputs"].items():
                    spec = definition["inputs"][name]
                    if given["type"] == "scalar":
                        self.assertIsNone(spec["shape"])
                        continue
                    tensor = header_of(self.folder / given["path"])[0][given["tensor_key"]]
                    self.assertEqual((tensor["dtype"], tensor["shape"]),
                                     (TYPES[spec["dtype"]], [definition["axes"][axis]["value"] for axis in spec["shape"]]))
        self.assertEqual(len(uuids), len(set(uuids)))

    def test_references_in_python(self):
        """What they compute of the inputs is what the run has computed, but for roundings."""
        tried = {}
        for op in REFERENCES:
            for definition, workload in sorted(self.calls(op), key=lambda each: each[0]["axes"].get("m", {"value": 0})["value"])[:4]:
                self.assertIn("import torch\n", definition["reference"])
                code = {"torch": Torch()}
                exec(definition["reference"].replace("import torch\n", ""), code)
                arrays = floats(self.folder / next(each["path"] for each in workload["inputs"].values() if "path" in each))
                given = [Matrix([arrays[name]]) if "path" in each else each["value"] for name, each in workload["inputs"].items()]
                made = code["run"](*given)
                for name, one in zip(definition["outputs"], made if isinstance(made, tuple) else [made]):
                    values, largest = one.values(), max(map(abs, arrays[name]))
                    self.assertEqual(len(values), len(arrays[name]))
                    self.assertLess(max(abs(a - b) for a, b in zip(values, arrays[name])), 1e-5 * largest, (definition["name"], name))
                tried[op] = tried.get(op, 0) + 1
        self.assertEqual(set(tried), set(REFERENCES))

    def test_the_run_is_only_read(self):
        before = replay_test.files_of(self.run_of_one.directory)
        said = self.trace("--steps=3", "--ops=swiglu_forward", "--calls=2", "--out", self.scene.directory / "again")
        self.assertEqual(replay_test.files_of(self.run_of_one.directory), before)
        self.assertIn("keeps 2 of ", said)
        self.assertIn("from the initial weights: 3 steps to compute", said)

    def test_all_ops_of_a_run_in_bf16(self):
        run = self.scene.run("bf16", ["--training.precision=bf16", "--training.steps=6", "--optimizer.moments=bf16"])
        run.start(1).expect_exit(0)
        folder = self.scene.directory / "bf16-trace"
        said = self.trace("--steps=2", "--ops=*", "--out", folder, run=run.directory)
        self.assertIn("each has the bits of the run", said)
        kinds = {array["type"] for shape in json.loads((folder / "trace.json").read_text())["trace"]["shapes"] for kept in shape["kept"] for array in kept["arrays"]}
        self.assertLessEqual({"fp32", "bf16", "int32"}, kinds)

    def test_check_tries_what_the_run_had(self):
        file = build_norm(self.scene.directory / "mine.so")
        done = harness.call_program("kernel", "check", file, "--trace", self.folder, "--json")
        self.assertEqual(done.returncode, 0, done.stdout)
        document = json.loads(done.stdout)
        self.assertEqual(document["trace"], {"folder": str(self.folder), "calls": len(list(self.calls("rmsnorm_forward")))})
        traced = [array for array in document["kernels"][0]["arrays"] if array["call"].endswith("traced")]
        self.assertEqual(len(traced), 2 * document["trace"]["calls"], "y and rstd of each")
        self.assertTrue(any("step 7, layers.0.attention" in array["call"] for array in traced), traced)

    def test_check_names_the_layer_where_a_kernel_is_wrong(self):
        """In one number of the run, which no random call has."""
        _, workload = next(self.calls("rmsnorm_forward"))
        first = floats(self.folder / workload["inputs"]["x"]["path"])["x"][0]
        file = build_norm(self.scene.directory / "wrong.so", wrong=f"if (row == 0 && x[0] == {first.hex()}f) y[1] += 1;")
        self.assertEqual(harness.call_program("kernel", "check", file).returncode, 0)
        done = harness.call_program("kernel", "check", file, "--trace", self.folder)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: .*, step \d+, layers\.0\.attention, traced: element 1 of y is ")

    def test_bench_counts_the_calls_of_the_run(self):
        file, by_trace, by_config = build_norm(self.scene.directory / "fast.so"), self.scene.directory / "trace.out", self.scene.directory / "config.out"
        said = harness.program_output("kernel", "bench", file, "--trace", self.folder, "--seconds=1", "--json", by_trace)
        harness.program_output("kernel", "bench", file, "--config", self.scene.config, "--seconds=1", "--json", by_config)
        counts = [{call["call"]: call["calls"] for op in json.loads(path.read_text())["ops"] for call in op["calls"]} for path in (by_trace, by_config)]
        self.assertEqual(counts[0], counts[1])
        self.assertIn(f"ms of a step of {self.folder}, all calls of rmsnorm_forward", said)
        self.assertIn(", 2 threads\n", said)

    def test_bench_gives_no_kernel_its_numbers_twice(self):
        source = kernel_ab_test.SOURCE.replace("#include <math.h>", "#include <math.h>\n#include <string.h>")
        cheat = ("static float kept[1 << 16]; static const void* of; if (of == op->x) { memcpy(op->y, kept, sizeof(float) * op->rows * op->width); return 0; }"
                 "of = op->x;")
        file = kernel_test.build(self.scene.directory / "cheat.so", source=source, link=("-lm",), OP='"rmsnorm_forward"', SCHEMA="HF_SCHEMA_RMSNORM_FORWARD",
                                 COMPUTE=kernel_ab_test.NORM.replace("BEFORE", cheat).replace("AFTER", "") + "memcpy(kept, op->y, sizeof(float) * op->rows * op->width);")
        done = harness.call_program("kernel", "bench", file, "--trace", self.folder, "--seconds=1")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"wrong: mine on \d+x\d+: it (writes the results of an earlier call|was right in \d+ calls that were compared, and is wrong)")

    def test_bench_records_what_it_found(self):
        """Solution and Trace as the documentation of FlashInfer-Bench demands them: which members an evaluation has follows from its status."""
        kernel = self.scene.directory / "recorded"
        harness.program_output("kernel", "new", "rmsnorm_forward", "--out", kernel)
        source = (kernel / "kernel.cc").read_text()
        for number, (old, new, status) in enumerate((("", "", "PASSED"), ("op.epsilon", "op.epsilon + 1", "INCORRECT_NUMERICAL"))):
            self.assertIn(old, source)
            (kernel / "kernel.cc").write_text(source.replace(old, new) if old else source)
            subprocess.run(["make", "-C", str(kernel)], capture_output=True, timeout=60, check=True)
            done = harness.call_program("kernel", "bench", kernel / "kernel.so", "--trace", self.folder, "--seconds=1", "--record")
            self.assertEqual(done.returncode, int(status != "PASSED"), done.stdout)
            for path in self.folder.glob("traces/rmsnorm_forward/*.jsonl"):
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                self.assertEqual(len(lines), number + 1)
                line, evaluation = lines[-1], lines[-1]["evaluation"]
                solution = json.loads((self.folder / "solutions/rmsnorm_forward" / f"{line['solution']}.json").read_text())
                self.assertEqual((path.stem, line["solution"]), (line["definition"], solution["name"]))
                self.assertIn(line["workload"], [workload for _, workload in self.calls("rmsnorm_forward")])
                self.assertEqual(evaluation["status"], status)
                self.assertRegex(evaluation["timestamp"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
                self.assertTrue(evaluation["environment"]["hardware"])
                self.assertEqual("performance" in evaluation, status == "PASSED")
                if status == "PASSED":
                    performance = evaluation["performance"]
                    self.assertAlmostEqual(performance["speedup_factor"], performance["reference_latency_ms"] / performance["latency_ms"], places=6)
                self.assertEqual(evaluation["correctness"]["max_relative_error"] < 1e-5, status == "PASSED")
                self.assertEqual(solution["spec"]["entry_point"].split("::")[0], solution["sources"][0]["path"])
                self.assertEqual(solution["sources"][0]["content"], (kernel / "kernel.cc").read_text())
                self.assertEqual((solution["definition"], solution["spec"]["language"], solution["spec"]["target_hardware"]), (path.stem, "cpp", ["cpu"]))
        refused = harness.call_program("kernel", "bench", kernel / "kernel.so", "--config", self.scene.config, "--record")
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("--record writes into a trace: give --trace DIR, and not --config", refused.stdout)

    def test_a_run_with_a_plugin(self):
        file, run = build_norm(self.scene.directory / "trains.so"), self.scene.run("plugin")
        plugin = f"--kernels.plugins={file}"
        run.start(1, overrides=[plugin, "--kernels.rmsnorm_forward=mine"]).expect_exit(0)
        words = ["kernel", "trace", run.directory, "--steps=2", "--ops=rmsnorm_*", "--out", self.scene.directory / "of-plugin"]
        refused = harness.call_program(*words)
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("name the plug-in that has it in kernels.plugins", refused.stdout)
        said = harness.program_output(*words, plugin)
        self.assertRegex(said, r"(?m)^rmsnorm_forward +\d+x\d+ +mine [0-9a-f]{16} ")
        self.assertIn("each has the bits of the run", said)

    def test_other_numbers_than_the_run_recorded(self):
        run = self.scene.run("other")
        shutil.copytree(self.run_of_one.directory, run.directory)
        log = run.directory / "events.jsonl"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        for event in events:
            if event["event"] == "step" and event["step"] == 7:
                event["loss"] += 2.0 ** -40
        log.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
        said = self.trace("--steps=7,8", "--ops=rotary", "--out", self.scene.directory / "of-other", run=run.directory)
        self.assertTrue(said.endswith("\nsteps: other bits than the run recorded in step 7 (loss); holdfast replay says more\n"), said)

    def test_section_of_the_documents(self):
        """docs/kernels.md: what it says is printed, in its order."""
        page = (harness.ROOT / "docs/kernels.md").read_text()
        section = page[page.index("## On what a run has computed"):page.index("## Train with it")]
        harness.program_output("kernel", "new", "rmsnorm_forward", "--out", self.scene.directory / "my_rmsnorm")
        subprocess.run(["make", "-C", str(self.scene.directory / "my_rmsnorm")], capture_output=True, timeout=60, check=True)
        (self.scene.directory / "runs").mkdir()
        (self.scene.directory / "runs/mine").symlink_to(self.run_of_one.directory)
        (self.scene.directory / "here").mkdir()
        for name in ("runs", "my_rmsnorm"):
            (self.scene.directory / "here" / name).symlink_to(self.scene.directory / name)
        blocks = re.findall(r"^    \$ (holdfast [^\n]*)\n((?:^    [^$\n][^\n]*\n)*)", section, re.MULTILINE)
        self.assertEqual(len(blocks), 3)
        for line, shown in blocks:
            words = [str(harness.PROGRAM), *shlex.split(line)[1:], *(["--seconds=1"] if "bench" in line else [])]
            done = subprocess.run(words, cwd=self.scene.directory / "here", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            pattern = r".*?".join(" +".join(r".*?".join(map(re.escape, word.split("..."))) for word in each.split()) for each in shown.splitlines())
            self.assertRegex(done.stdout, re.compile(pattern, re.DOTALL))


class BadInputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=6)
        cls.addClassCleanup(cls.scene.close)
        cls.run_of_one = cls.scene.run("one", ["--threads=1"])
        cls.run_of_one.start(1).expect_exit(0)

    def setUp(self):
        self.folder = self.scene.directory / self._testMethodName
        self.row = ROWS.get(self._testMethodName.removeprefix("test_").replace("_", "-"))

    def trace(self, *words):
        return harness.call_program("kernel", "trace", self.run_of_one.directory, "--out", self.folder, *words)

    def expect_row(self, done):
        self.assertEqual(done.returncode, self.row.code, done.stdout)
        self.assertRegex(done.stdout, self.row.pattern)

    def expect_nothing(self):
        self.assertEqual([path.name for path in self.scene.directory.glob(f"{self.folder.name}*")], [])

    def expect_row_of_reader(self, command="check"):
        words = {"check": [], "bench": ["--seconds=1"]}
        self.expect_row(harness.call_program("kernel", command, build_norm(self.folder.with_suffix(".so")), "--trace", self.folder, *words[command]))

    def edit(self, change):
        self.assertEqual(self.trace("--steps=1", "--ops=rmsnorm_forward").returncode, 0)
        path = self.folder / "trace.json"
        path.write_text(change(path.read_text()))

    def test_every_row_has_a_test(self):
        self.assertEqual({name.removeprefix("test_").replace("_", "-") for name in dir(self) if name.startswith("test_trace")}, set(ROWS))

    def test_words_that_are_missing(self):
        for words, says in ((["--ops=add"], "kernel trace needs --steps"), (["--steps=1"], "kernel trace needs --ops"),
                            (["--steps=1", "--ops=add", "--calls=0"], "--calls")):
            done = self.trace(*words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(says, done.stdout)
        self.expect_nothing()
        done = harness.call_program("kernel", "trace", self.run_of_one.directory, "--steps=1", "--ops=rotary", "--out=")
        self.assertEqual((done.returncode, done.stdout), (2, "holdfast: --out is empty; expected a folder to make\n"))

    def test_what_the_replay_refuses(self):
        for words, says in ((["--steps=1,9"], "has no step 9 yet: give a step from 1 to 6, its newest"),
                            (["--steps=1", "--optimizer.learning_rate=1"], "optimizer.learning_rate")):
            done = self.trace("--ops=rotary", *words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(says, done.stdout)
            self.assertNotIn("keeps", done.stdout)
            self.expect_nothing()

    def test_trace_unknown_op(self):
        self.expect_row(self.trace("--steps=1", "--ops=rmsnrom_forward"))
        self.expect_nothing()

    def test_trace_bad_steps(self):
        self.expect_row(self.trace("--steps=0-3", "--ops=add"))

    def test_trace_nothing_called(self):
        self.expect_row(self.trace("--steps=1", "--ops=gelu_forward"))
        self.expect_nothing()

    def test_trace_folder_taken(self):
        self.folder.mkdir()
        (self.folder / "mine").write_text("mine")
        self.expect_row(self.trace("--steps=1", "--ops=add"))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["mine"])

    def test_trace_differs(self):
        file, run = self.folder.with_suffix(".so"), self.scene.run("counts")
        build_norm(file, wrong="static int calls; if (row == 0) y[0] += 1e-3f * (float)(++calls % 7);")
        plugin = f"--kernels.plugins={file}"
        run.start(1, overrides=[plugin, "--kernels.rmsnorm_forward=mine", "--threads=1"]).expect_exit(0)
        self.expect_row(harness.call_program("kernel", "trace", run.directory, "--steps=1", "--ops=rmsnorm_forward", "--out", self.folder, plugin))
        self.assertFalse(self.folder.exists())
        self.assertEqual(list(self.scene.directory.glob(f"{self.folder.name}.partial*")), [])

    def test_trace_no_room(self):
        self.folder.mkdir()
        words = shlex.join([str(harness.PROGRAM), "kernel", "trace", str(self.run_of_one.directory), "--steps=1-6", "--ops=matmul", f"--out={self.folder}/trace"])
        mount = f"mount -t tmpfs -o size=64k tmpfs {shlex.quote(str(self.folder))}"
        done = subprocess.run(["unshare", "--mount", "--map-root-user", "sh", "-c", f"{mount} || exit 99\n{words}; code=$?; ls -A {self.folder}; exit $code"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        if done.returncode == 99 or done.stdout.startswith("unshare:"):
            harness.skip(f"nothing can be mounted here: {done.stdout.strip()}")
        self.expect_row(done)
        self.assertTrue(done.stdout.endswith("on another disk\n"), "nothing is left")

    def test_trace_disk_full(self):
        words = shlex.join([str(harness.PROGRAM), "kernel", "trace", str(self.run_of_one.directory), "--steps=1", "--ops=rmsnorm_*", f"--out={self.folder}"])
        self.expect_row(subprocess.run(["bash", "-c", f'trap "" XFSZ; ulimit -f 4; exec {words}'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       timeout=120, check=False))
        self.expect_nothing()

    def test_trace_none(self):
        self.expect_row_of_reader()
        self.folder.mkdir()
        (self.folder / "trace.json").write_text("{}")
        for command in ("check", "bench"):
            self.expect_row_of_reader(command)

    def test_trace_other_version(self):
        self.edit(lambda text: text.replace('"version": 1', '"version": 99'))
        self.expect_row_of_reader()

    def test_trace_other_struct(self):
        self.edit(lambda text: re.sub(r'"schema": "\w{16}"', '"schema": "0123456789abcdef"', text))
        for command in ("check", "bench"):
            self.expect_row_of_reader(command)

    def test_trace_other_op(self):
        self.assertEqual(self.trace("--steps=1", "--ops=rmsnorm_forward").returncode, 0)
        file = kernel_test.build(self.scene.directory / "add.so")
        for words in (["check", file], ["bench", file, "--seconds=1"]):
            self.expect_row(harness.call_program("kernel", *words, "--trace", self.folder))

    def test_trace_link(self):
        """What `--record` adds does not leave the folder."""
        self.edit(lambda text: text)
        elsewhere = self.scene.directory / "elsewhere"
        elsewhere.mkdir()
        (self.folder / "traces").symlink_to(elsewhere)
        self.expect_row(harness.call_program("kernel", "bench", build_norm(self.folder.with_suffix(".so")), "--trace", self.folder, "--seconds=1", "--record"))
        self.assertEqual(list(elsewhere.iterdir()), [])

    def test_trace_damaged(self):
        self.edit(lambda text: text.replace('"rows": ', '"rows": 1', 1))
        for command in ("check", "bench"):
            self.expect_row_of_reader(command)

    def test_trace_arrays_damaged(self):
        self.edit(lambda text: text)
        path = next(self.folder.glob("blob/workloads/*/*/*.safetensors"))
        content = bytearray(path.read_bytes())
        content[struct.unpack_from("<Q", content)[0] + 8] ^= 1
        path.write_bytes(content)
        for command in ("check", "bench"):
            self.expect_row_of_reader(command)


if __name__ == "__main__":
    harness.main()
