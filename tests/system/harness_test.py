"""What runs, watches and counts the tests of this folder notices what it is for: one deliberate failure of each kind. The
counters of holdfast chaos are tested by tests/chaos, those of tools/test_report here."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import chaos_test
import harness

FOLDER = Path(__file__).resolve().parent
# A process that looks like an mpirun whose ranks have ended, and goes on.
MPIRUN_THAT_STAYS = ["bash", "-c", 'exec -a mpirun python3 -c "import time; time.sleep(60)" "$0"']


class HarnessTest(unittest.TestCase):
    def outcome(self, body, **variables):
        """Of a test program of its own: its exit code and what it prints. The body is that of its test class."""
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program_test.py")
            program.write_text(f"import signal, unittest\nimport harness\nMPIRUN_THAT_STAYS = {MPIRUN_THAT_STAYS}\n"
                               "class ProgramTest(unittest.TestCase):\n" + textwrap.indent(textwrap.dedent(body), "    ") +
                               "\nharness.main(at_once=1)\n")
            environment = {name: value for name, value in os.environ.items() if name not in ("CI", "HOLDFAST_TEST_TIER")}
            done = subprocess.run([sys.executable, str(program)], env={**environment, "PYTHONPATH": str(FOLDER), **variables},
                                  capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    # Skips

    SKIPS = """
        def test_what_is_nice_to_have(self):
            self.skipTest("this processor has no amx")
        @harness.needs(False, "the system gives no namespace")
        def test_what_ci_must_not_skip(self):
            self.fail("it was not skipped")
        """

    def test_skipped_is_not_passed(self):
        code, output = self.outcome(self.SKIPS)
        self.assertEqual(code, harness.ALL_SKIPPED, output)
        self.assertIn("test_what_ci_must_not_skip ... skipped: the system gives no namespace", output)
        self.assertIn("2 tests in", output)
        self.assertIn("OK, 2 skipped", output)

    def test_a_program_that_skips_some_has_passed_and_says_which(self):
        code, output = self.outcome(self.SKIPS + "\n        def test_right(self):\n            pass\n")
        self.assertEqual(code, 0, output)
        self.assertIn("test_what_is_nice_to_have ... skipped: this processor has no amx", output)
        self.assertIn("OK, 2 skipped", output)

    def test_ci_must_not_skip_everything(self):
        code, output = self.outcome(self.SKIPS, CI="true")
        self.assertEqual(code, 1, output)
        self.assertIn("CI must not skip this: the system gives no namespace", output)
        self.assertIn("test_what_is_nice_to_have ... skipped", output)
        self.assertIn("1 FAILED, 1 skipped", output)

    def test_the_report_names_what_was_skipped(self):
        log = textwrap.dedent("""\
            1/3 Testing: system.one
            1/3 Test: system.one
            Output:
            ----------------------------------------------------------
            test_a ... skipped: no namespace  (0.0 s)
            test_b ... ok  (0.0 s)
            <end of output>
            Test time =   0.10 sec
            ----------------------------------------------------------
            Test Passed.
            2/3 Test: core.Two
            Output:
            ----------------------------------------------------------
            /a/b_test.cc:3: Skipped
            no io_uring
            <end of output>
            Test Skipped.
            3/3 Test: system.three
            Output:
            ----------------------------------------------------------
            what went wrong
            <end of output>
            Test Failed.
            """)
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write(log)
            file.flush()
            done = subprocess.run([str(harness.ROOT / "tools/test_report"), file.name], capture_output=True, text=True, check=True)
        self.assertIn("skipped: 1 (no namespace): system.one.test_a\n", done.stdout)
        self.assertIn("skipped: 1 (no io_uring): core.Two\n", done.stdout)
        self.assertIn("the end of what system.three printed:\nwhat went wrong\n", done.stdout)

    # mpirun behind its ranks

    def behind(self, times):
        return self.outcome(f"""
            def test_behind(self):
                with harness.Scene() as scene:
                    for number in range({times}):
                        run = scene.run(f"run-{{number}}")
                        start = run.start_command([*MPIRUN_THAT_STAYS, str(run.directory)])
                        harness.wait_until(lambda: harness.executable_of(start.pid) == "mpirun", 30, lambda: False, "no mpirun", start.tail)
                        self.assertEqual(start.wait(0.1), harness.STAYED_BEHIND)
                        start.expect_failure()
                        for code in (0, -signal.SIGKILL):
                            with self.assertRaisesRegex(AssertionError, "exit code mpirun stayed behind"):
                                start.expect_exit(code)
            """)

    def test_an_mpirun_that_stays_behind_now_and_then_is_counted(self):
        code, output = self.behind(harness.BEHIND_MOST)
        self.assertEqual(code, 0, output)
        self.assertIn(f"mpirun stayed behind its ranks {harness.BEHIND_MOST} times, at most {harness.BEHIND_MOST} may be", output)

    def test_an_mpirun_that_stays_behind_too_often_fails(self):
        code, output = self.behind(harness.BEHIND_MOST + 1)
        self.assertEqual(code, 1, output)
        self.assertIn("test_behind ... ok", output, "by itself it is right")
        self.assertRegex(output, r"mpirun stayed behind its ranks: run-0: mpirun \d+ \(.\); run-1: ")

    # Processes that a run leaves, and the way it ended

    def test_a_fault_point_that_was_not_passed(self):
        """That a start was killed is no proof of it."""
        with harness.Scene(steps=6) as scene:
            run = scene.run("killed")
            start = run.start(1, faults="step.begin@3=kill,step.begin@1=sleep:1")
            start.expect_exit(-signal.SIGKILL)
            start.expect_faults()
            other = run.start(1, faults="step.end@100=kill,step.begin@1=sleep:60000")
            harness.wait_until(other.passed_points, harness.HANG_S, lambda: not other.alive(), "no fault point was passed", other.tail)
            other.signal(signal.SIGKILL)
            other.expect_failure()
            with self.assertRaisesRegex(AssertionError, "the fault point step.end@100=kill was never passed"):
                other.expect_faults()

    def test_an_end_that_mpirun_knows_nothing_of(self):
        """All ranks are killed: it returns 0. The complaint has what the guard has recorded of them."""
        with harness.Scene(steps=6) as scene:
            start = scene.run("killed").start(2, faults="step.begin@3=kill")
            with self.assertRaisesRegex(AssertionError, r'(?s)exit code 0, expected 75.*"state": *"running".*rank [01]\b.*died'):
                start.expect_exit(75)

    def test_a_guard_that_stays(self):
        with harness.Scene() as scene:
            beside = scene.run("beside")
            run = scene.run("watched")
            start = run.start(1, faults=harness.slow_steps(2))
            self.assertTrue(start.wait_for_step(1), start.tail())
            self.assertEqual(len(run.guards()), 1)
            self.assertEqual(beside.guards(), [])
            start.expect_exit(0)
            harness.expect_no_processes(run)
            # One that does not end: it has the name and the environment of a guard, and reads a pipe that nobody writes to.
            os.mkfifo(scene.directory / "guard")
            run.start_command(["bash", "-c", "(exec -a holdfast cat guard board-1) & exit 0"], cwd=scene.directory).expect_exit(0)
            harness.wait_until(run.guards, harness.HANG_S, lambda: False, "no guard", start.tail)
            (guard,) = run.guards()
            with self.assertRaisesRegex(AssertionError, rf"there still are holdfast {guard} "):
                harness.expect_no_processes(run, timeout_s=0.2)
            harness.kill(guard, signal.SIGKILL)
            harness.expect_no_processes(run)

    def test_a_process_that_stays(self):
        with harness.Scene() as scene:
            run = scene.run("left")
            start = run.start_command([*MPIRUN_THAT_STAYS, str(run.directory)])
            # A process that is just becoming another program has no command line.
            harness.wait_until(lambda: harness.executable_of(start.pid) == "mpirun", harness.HANG_S, lambda: False, "no mpirun", start.tail)
            with self.assertRaisesRegex(AssertionError, rf"there still are \S+ {start.pid} "):
                harness.expect_no_processes(run, timeout_s=0.2)
            start.kill_all()
            harness.expect_no_processes(run)

    def test_what_a_rank_finds_before_it_dies(self):
        """Its exit code is that of a kill; ctest goes by what it has printed."""
        texts = re.findall(r'parallel_mpi\.recover_tcp\n +PROPERTIES .*FAIL_REGULAR_EXPRESSION "(.*)"\)',
                           (harness.ROOT / "tests/CMakeLists.txt").read_text())
        self.assertEqual(len(texts), 1)
        program = harness.PROGRAM.with_name("test_parallel_mpi")
        if not program.exists():
            harness.skip(f"{program} is not built")
        outputs = {}
        for mode in ("recover", "recover_wrong"):
            done = subprocess.run([str(harness.ROOT / "tools/mpirun"), "-np", "3", str(program), mode], env=harness.environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
            outputs[mode] = done.stdout
            self.assertIn("survived: alone in epoch 2", done.stdout)
        self.assertNotRegex(outputs["recover"], texts[0])
        self.assertRegex(outputs["recover_wrong"], texts[0])

    # Campaigns

    def test_launches_that_took_a_person(self):
        def result(faults, **launches):
            return {"runs": 4, "launches": launches, "faults": {name: {"injected": count} for name, count in faults.items()}}
        check = chaos_test.ChaosTest().expect_launches
        check(result({"kill": 9, "job_killed": 2, "ram_lost": 1}, all=7, launched_again=3, ended_truthfully=0))
        check(result({"kill": 9}, all=5, launched_again=0, ended_truthfully=1), truthfully=1)
        for wrong in (result({"kill": 9}, all=5, launched_again=0, ended_truthfully=1),
                      result({"kill": 9}, all=5, launched_again=1, ended_truthfully=0),
                      result({"job_killed": 2}, all=5, launched_again=1, ended_truthfully=0),
                      result({"kill": 9}, all=5, launched_again=0, ended_truthfully=0)):
            with self.subTest(wrong), self.assertRaises(AssertionError):
                check(wrong)


if __name__ == "__main__":
    harness.main()
