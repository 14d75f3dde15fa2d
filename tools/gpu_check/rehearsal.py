"""Everything that gpu-check does, where there is no GPU: programs on the emulator, and small scripts in place of NVIDIA's tools and
of cmake. No line of gpu-check shall run for the first time on the day that there is a GPU."""
import os
import shutil
import sys
import tempfile
from pathlib import Path

from .machine import Machine
from .processes import kill_named
from .sizes import TOY

# Answers as nvidia-smi does: --query-gpu=FIELDS, and again and again with --loop-ms.
SMI = r"""
import sys, time
values = {"name": "Emulated GPU", "compute_cap": "9.0", "driver_version": "580.0 (stand-in)", "memory.total": "8192",
          "clocks.sm": "1980", "clocks.mem": "3201", "power.draw": "123.45", "temperature.gpu": "40", "utilization.gpu": "97",
          "memory.used": "600", "clocks_throttle_reasons.active": "0x0000000000000004", "ecc.mode.current": "[N/A]"}
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
fields = words["--query-gpu"].split(",")
if "clocks_event_reasons.active" in fields:
    sys.exit("Field \"clocks_event_reasons.active\" is not a valid field to query.")
while True:
    print(", ".join(values.get(field, "[N/A]") for field in fields), flush=True)
    if "--loop-ms" not in words:
        break
    time.sleep(int(words["--loop-ms"]) / 1000)
"""
CMAKE = r"""
import sys
print("stand-in of cmake:", *sys.argv[1:])
if "--build" in sys.argv:
    print("ptxas info    : Compiling entry function '_Z3oneif' for 'sm_90a'")
    print("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
"""
# Runs the program behind the options, as ncu does, and then prints a table of two launches.
NCU = r"""
import subprocess, sys
begin = next(i for i, word in enumerate(sys.argv) if word.endswith("/holdfast-bench"))
assert "--clock-control" in sys.argv[:begin], sys.argv
code = subprocess.run(sys.argv[begin:], stdout=subprocess.DEVNULL).returncode
print("==PROF== Connected to process 1")
print('"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"')
for launch in (0, 1):
    for metric, value in (("Duration", "1,234.5"), ("DRAM Throughput", "71.2"), ("Achieved Occupancy", "48.0")):
        print(f'"{launch}","gelu_forward","a section","{metric}","%","{value}"')
sys.exit(code)
"""
SANITIZER = r"""
import subprocess, sys
begin = next(i for i, word in enumerate(sys.argv) if "/bin/test_" in word)
code = subprocess.run(sys.argv[begin:]).returncode
print("========= ERROR SUMMARY: 0 errors")
sys.exit(9 if code else 0)
"""
STAND_INS = {"nvidia-smi": SMI, "cmake": CMAKE, "ncu": NCU, "compute-sanitizer": SANITIZER, "nvcc": ""}

# In place of the tests with the label gpu: some of their twins on the emulator, started by ctest in the same way.
TESTS = [("gpu.square_sum.cuda", "test_cuda_emulated", ["--gtest_filter=square_sum.cuda"]),
         ("gpu.golden", "test_train_gpu", ["--emulated", "--gtest_filter=*GoldenModelTest.Loss/llama_fp32"]),
         ("gpu.Nccl", "test_nccl_gpu", ["--double"])]


def test_file(folder):
    lines = []
    for name, program, words in TESTS:
        arguments = " ".join(f'"{word}"' for word in [folder / "bin" / program, *words])
        lines += [f"add_test({name} {arguments})", f"set_tests_properties({name} PROPERTIES LABELS gpu SKIP_RETURN_CODE 77)"]
    return "\n".join(lines) + "\n"


class Scene:
    """A folder with the stand-ins, first in the PATH, and a build folder whose programs are those of `build`. All of it goes when
    the scene ends."""

    def __init__(self, build):
        self.programs = Path(build).resolve() / "bin"
        self.sizes = TOY
        self.folder = self.build = self.machine = None
        self._path = os.environ.get("PATH", "")

    def __enter__(self):
        emulator = self.programs / "libholdfast_cuda_emulated.so"
        if not emulator.exists():
            sys.exit(f"gpu-check: {emulator} is not there; a rehearsal needs a whole build: tools/test makes one")
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-rehearsal-"))
        self.build = self.folder / "build"
        (self.build / "tests").mkdir(parents=True)
        (self.build / "bin").symlink_to(self.programs)
        (self.build / "tests/CTestTestfile.cmake").write_text(test_file(self.build))
        tools = self.folder / "path"
        tools.mkdir()
        for name, text in STAND_INS.items():
            (tools / name).write_text(f"#!{sys.executable}\n{text}")
            (tools / name).chmod(0o755)
        os.environ["PATH"] = f"{tools}:{self._path}"
        self.machine = Machine(emulator)
        return self

    def __exit__(self, *unused):
        os.environ["PATH"] = self._path
        kill_named(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
