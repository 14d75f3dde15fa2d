"""compute-sanitizer on a few kernel tests: it makes them 10 to 100 times as slow."""
from .machine import find_tool
from .results import Failure

PROBE_S = 120


def words_of(session, tool, tests):
    program = find_tool("compute-sanitizer")
    if program is None:
        raise Failure("compute-sanitizer was not found; it comes with the CUDA toolkit")
    return [program, "--tool", tool, "--error-exitcode", "9", session.program(session.sizes.smoke_program),
            f"--gtest_filter={tests}"]


def summary_of(output):
    return next((line.strip("= ") for line in output.splitlines() if "SUMMARY" in line), "")


def check(tool):
    """First one small test, which says whether the tool works on this machine at all; then the filter."""
    def run(session, record):
        try:
            session.runner.run(f"{tool}-probe", words_of(session, tool, session.sizes.smoke[-1]), seconds=PROBE_S)
        except Failure as failure:
            raise Failure(f"{tool} does not work on this machine: {failure}") from failure
        tests = session.sizes.sanitizer_filter
        output = session.runner.run(tool, words_of(session, tool, tests))
        record["summary"], record["filter"] = summary_of(output), tests
        record["found"] = [record["summary"] or "no summary"]
    return run
