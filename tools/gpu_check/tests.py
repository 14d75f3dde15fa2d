"""The tests that need a GPU."""
import re

from .results import Failure


def program(session, record):
    """What `holdfast check` finds here: the GPU, the kernels that it would take, and whether a product by wgmma is right."""
    config, words = session.config("check", session.sizes.models["gpt2"], ())
    output = session.runner.run("check", [session.program(), "check", config, "--kernels", f"--run.directory={session.work / 'unused'}",
                                          "--device=cuda", *words])
    lines = [line.strip() for line in output.splitlines()]
    record["found"] = [line for line in lines if re.match(r"(CUDA|device) ", line) or "sm_90a" in line]
    session.show(output.strip())
    if wrong := [line for line in lines if "is wrong" in line]:
        raise Failure("; ".join(wrong))


def smoke(session, record):
    """Some kernel tests in one process: what everything after depends on."""
    sizes = session.sizes
    output = session.runner.run("smoke", [session.program(sizes.smoke_program), f"--gtest_filter={':'.join(sizes.smoke)}"])
    passed = re.search(r"\[  PASSED  \] (\d+) tests?", output)
    if passed is None or int(passed[1]) < len(sizes.smoke):
        raise Failure(f"{passed[1] if passed else 'no'} tests ran of at least {len(sizes.smoke)} that the filter names")
    record["tests"] = int(passed[1])
    record["found"] = [f"{passed[1]} tests passed"]


LINE = re.compile(r"^\s*\d+/\d+ Test +#\d+: (\S+) \.+ *(Passed|\*\*\*\S+|\S+)", re.MULTILINE)
SKIPPED = re.compile(r"^\s*\d+ - (\S+) \(Skipped\)", re.MULTILINE)
COUNTED = re.compile(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)")


def run_labelled(session, record, words, name):
    """Tests with the label gpu. What has ended is counted even when the time is over before the last one. Returns the tests that
    were skipped."""
    command = ["ctest", "--test-dir", session.build if not session.sizes.emulated else session.build / "tests", "-L", "gpu",
               "--output-on-failure", "-j", "6", *words]
    reason = None
    try:
        code, output = session.runner.outcome(f"ctest-{name}", command)
        if code != 0:
            reason = f"ctest: exit code {code}"
    except Failure as failure:
        reason = str(failure)
        log = session.runner.log_of(f"ctest-{name}")
        if not log.exists():
            raise
        output = log.read_text(errors="replace")
    ended = LINE.findall(output)
    counted = COUNTED.search(output)
    record["tests"] = int(counted[3]) if counted else len(ended)
    record["failed_tests"] = [test for test, outcome in ended if outcome != "Passed" and "Skipped" not in outcome]
    skipped = SKIPPED.findall(output)
    record.setdefault("found", []).append(f"{record['tests']} tests, {len(record['failed_tests'])} failed, {len(skipped)} skipped")
    if record["failed_tests"]:
        raise Failure(f"failed: {', '.join(record['failed_tests'][:12])}" + (f"; {reason}" if reason else ""))
    if reason:
        raise Failure(f"{reason}\n    " + "\n    ".join(output.splitlines()[-8:]))
    return skipped


def labelled(session, record):
    """A test that was skipped has not passed: here there is a GPU."""
    skipped = run_labelled(session, record, ["-E", "[Nn]ccl"], "gpu")
    if record["tests"] == 0:
        raise Failure("ctest ran no test with the label gpu")
    if skipped:
        raise Failure(f"skipped although there is a GPU: {', '.join(skipped)}")
