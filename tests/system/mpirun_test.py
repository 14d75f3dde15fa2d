"""holdfast under mpirun: a plain mpirun works, and whatever is wrong with a group of ranks is a sentence that names the
rank, at once, with the exit code of the table; never a hang."""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import harness

AT_ONCE_S = 45  # whatever else the machine does, and still less than parallel.timeout
ENDLESS = ["--training.steps=1000000"]


def mpmd(*ranks):
    """The arguments of tools/mpirun for ranks that differ: one program, its arguments and mpirun's options, for each."""
    words = [str(harness.ROOT / "tools/mpirun")]
    for number, rank in enumerate(ranks):
        words += [":"] * (number > 0) + ["-np", "1", *rank]
    return words


def on_host(name, words):
    """The command as if on a machine of this name: in a namespace of its own."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$0" "$@"', *words]


def can_pretend_hosts():
    return shutil.which("unshare") and subprocess.run(on_host("elsewhere", ["true"]), stderr=subprocess.DEVNULL, check=False).returncode == 0


class MpirunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)

    def run_of_test(self, overrides=()):
        return self.scene.run(self.id().rsplit(".", 1)[1], overrides)

    def expect_refusal(self, start, code, *sentences, run_is_made=False):
        """Ends at once with the code; the output has the sentences; nobody stays; no checkpoint was begun."""
        output = start.expect_exit(code, AT_ONCE_S)
        for sentence in sentences:
            self.assertRegex(output, sentence)
        harness.expect_no_processes(start.run)
        self.assertEqual(start.run.checkpoints(), [])
        if not run_is_made:
            self.assertEqual(start.run.events(), [])

    def expect_goes_on(self, run):
        """After the fault the run can simply be started again."""
        run.start(2).expect_exit(0)
        self.assertEqual(run.newest_step(), harness.STEPS)

    # What works

    def test_plain_mpirun(self):
        run = self.run_of_test()
        output = run.start(2, "plain").expect_exit(0)
        self.assertIn("without ULFM fault tolerance", output)
        self.assertEqual(run.events("start")[-1]["ranks"], 2)
        self.assertEqual(run.status()["state"], "finished")

    def test_ctrl_c_saves(self):
        """tools/mpirun: Ctrl-C, which goes to the whole process group, and SIGTERM save the run; a resumed log says what is done again."""
        run = self.run_of_test(["--log.every_steps=1", "--training.steps=100000"])
        for number, send in ((signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)):
            start = run.start(2)
            self.assertTrue(start.wait_for_step(run.last_step() + 3), start.tail())
            send(start.pid, number)
            self.assertIn("saved and stopped on request", start.expect_exit(75))
            self.assertEqual(run.status()["state"], "saved")
        self.assertFalse([step for step in run.events("step") if "recomputed" in step])
        self.assertTrue(all(step["mfu"] > 0 for step in run.events("step")))
        start = run.start(2)
        self.assertTrue(start.wait_for_step(run.last_step() + 3), start.tail())
        start.kill_all()
        start.expect_failure()
        last = run.last_step()
        start = run.start(2)
        self.assertTrue(start.wait_for_step(last + 2), start.tail())
        start.signal(signal.SIGINT)
        start.expect_exit(75)
        begun = max(number for number, event in enumerate(run.events()) if event["event"] == "start")
        steps = [event for event in run.events()[begun:] if event["event"] == "step"]
        self.assertEqual([step["step"] for step in steps if step.get("recomputed")], [step["step"] for step in steps if step["step"] <= last])

    def test_nobody_hears_what_it_says(self):
        """The run goes on, alone and under mpirun. Where what mpirun writes to was a pipe it ends the ranks: that is for holdfast
        launch to mend."""
        reference = harness.reference_digest(self.scene)
        for launcher, ranks in (("alone", 1), ("ft", 2)):
            for number, what in enumerate(harness.to_nobody([])):
                if launcher == "ft" and what == harness.READER_LEAVES:
                    continue
                with self.subTest(launcher=launcher, what=what):
                    run = self.scene.run(f"nobody-{launcher}-{number}", ["--log.every_steps=1"])
                    words = harness.command(launcher, ranks) + run.train_arguments()
                    start = run.start_command(harness.to_nobody(words)[what])
                    start.expect_exit(0)
                    harness.expect_no_processes(run)
                    self.assertEqual(run.status()["state"], "finished", start.tail())
                    self.assertEqual(run.digest(), reference)
                    self.assertEqual(len(run.events("start")), 1)

    def test_ranks_without_home_directory(self):
        """Open MPI asks for one when it starts."""
        run = self.run_of_test()
        words = [*harness.command("ft", 2), "sh", "-c", 'unset HOME; exec "$0" "$@"', *run.train_arguments("--training.steps=10")]
        run.start_command(words).expect_exit(0)
        self.assertEqual(run.status()["state"], "finished")

    def test_finished_run_says_so(self):
        run = self.run_of_test()
        run.start(2).expect_exit(0)
        digest, steps = run.digest(), len(run.events("step"))
        for ranks in (1, 3):
            output = run.start(ranks).expect_exit(0)
            self.assertIn("is finished", output)
        self.assertEqual(run.digest(), digest)
        self.assertEqual(len(run.events("step")), steps)
        self.assertEqual(run.status()["state"], "finished")

    @harness.full
    @harness.needs(can_pretend_hosts(), "the system gives no namespace for another host name")
    def test_scattered_hosts(self):
        """Pipelines stay together on a host, wherever mpirun put their ranks; the bits know nothing of it."""
        alone = self.scene.run("one-rank")
        alone.start().expect_exit(0)
        run = self.run_of_test(["--parallel.pipeline=2", "--data.ledger=true"])
        hosts = ("node-a", "node-b", "node-a", "node-b")
        run.start_command(mpmd(*(on_host(host, run.train_arguments()) for host in hosts))).expect_exit(0)
        self.assertEqual(run.digest(), alone.digest())
        readers = sorted(path.name for path in run.directory.glob("ledger-*.jsonl"))
        self.assertEqual(readers, ["ledger-00000.jsonl", "ledger-00001.jsonl"], "who reads samples is a first stage")

    # What does not fit together

    def test_more_ranks_than_lanes(self):
        self.expect_refusal(self.run_of_test().start(5), 2, r"5 ranks", r"parallel\.lanes")

    def test_one_rank_leaves_with_the_code(self):
        """mpirun counts each that does so twice, and hangs now and then when they are several."""
        run = self.run_of_test()
        tell = ["sh", "-c", '"$0" "$@"; echo "left with $?."']
        output = run.start_command(harness.command("ft", 5) + tell + run.train_arguments()).expect_exit(0)
        self.assertEqual(sorted(re.findall(r"left with (\d+)\.", output)), ["0"] * 4 + ["2"])

    def test_other_number_of_ranks_than_parallel_data(self):
        run = self.run_of_test(["--parallel.data=3"])
        self.expect_refusal(run.start(2), 2, r"parallel\.data", r"\b2\b", r"\b3\b")

    def test_different_configs(self):
        run = self.run_of_test()
        other = self.scene.directory / "other.toml"
        other.write_text(self.scene.config.read_text().replace("learning_rate = 2e-3", "learning_rate = 3e-3"))
        start = run.start_command(mpmd(run.train_arguments(), run.train_arguments(config=other)))
        self.expect_refusal(start, 2, r"rank 1 .*another optimizer\.learning_rate than rank 0", r"0\.003 instead of 0\.002")

    def test_different_data(self):
        """The same relative path, other content: each rank has a working directory of its own."""
        run = self.run_of_test(["--data.sources=[{path = \"text.txt\", format = \"text\"}]"])
        places = self.directories_with_texts(harness.text_of(300_000, seed=1), harness.text_of(300_000, seed=2))
        start = run.start_command(mpmd(*(["--wdir", str(place), *run.train_arguments()] for place in places)))
        self.expect_refusal(start, 2, r"rank 1 .*another data than rank 0")

    def test_data_missing_on_one_rank(self):
        run = self.run_of_test(["--data.sources=[{path = \"text.txt\", format = \"text\"}]"])
        places = self.directories_with_texts(harness.text_of(300_000, seed=1), None)
        start = run.start_command(mpmd(*(["--wdir", str(place), *run.train_arguments()] for place in places)))
        output = start.expect_exit(0, harness.HANG_S)
        self.assertRegex(output, r"rank 1 leaves the run, which goes on without it: .*text\.txt does not exist")
        self.assertEqual(run.events("start")[-1]["ranks"], 1, "the other one began without it")

    def directories_with_texts(self, *texts):
        places = []
        for number, text in enumerate(texts):
            place = self.scene.directory / f"{self.id().rsplit('.', 1)[1]}-place-{number}"
            place.mkdir()
            if text is not None:
                (place / "text.txt").write_text(text)
            places.append(place)
        return places

    def test_different_programs(self):
        run = self.run_of_test()
        # Next to the program, because it finds its libraries from where it is.
        copy = harness.PROGRAM.with_name(f"{harness.PROGRAM.name}-copy-{os.getpid()}")
        self.addCleanup(copy.unlink, missing_ok=True)
        shutil.copy2(harness.PROGRAM, copy)
        with open(copy, "ab") as file:
            file.write(b"\n")
        start = run.start_command(mpmd(run.train_arguments(), [str(copy), *run.train_arguments()[1:]]))
        self.expect_refusal(start, 2, r"rank 1 .*another program than rank 0")

    def test_different_held_out_data(self):
        """The training data is one file, so the ranks differ in nothing else."""
        source = '--evaluation.sources=[{path = "text.txt", format = "text"}]'
        run = self.run_of_test(["--evaluation.every_steps=5", source])
        places = self.directories_with_texts(harness.text_of(300_000, seed=1), harness.text_of(300_000, seed=2))
        start = run.start_command(mpmd(*(["--wdir", str(place), *run.train_arguments()] for place in places)))
        self.expect_refusal(start, 2, r"rank 1 .*another held-out data than rank 0", run_is_made=True)

    def test_different_cuda_libraries(self):
        run = self.run_of_test(["--device=cuda"])
        library = harness.PROGRAM.with_name("libholdfast_cuda_emulated.so")
        copy = self.scene.directory / "libholdfast_cuda_other.so"
        copy.write_bytes(library.read_bytes() + b"\n")
        ranks = (["env", f"HOLDFAST_CUDA_MODULE={each}", *run.train_arguments()] for each in (library, copy))
        start = run.start_command(mpmd(*ranks))
        self.expect_refusal(start, 2, r"rank 1 .*another CUDA library than rank 0")

    def test_gpus_of_two_kinds(self):
        """They are alike in all that a start compares, and the library takes other algorithms for one."""
        run = self.run_of_test(["--device=cuda", "--training.steps=6"])
        library = harness.PROGRAM.with_name("libholdfast_cuda_emulated.so")
        ranks = (["env", f"HOLDFAST_CUDA_MODULE={library}", *kind, *run.train_arguments()]
                 for kind in ([], ["EMULATED_GPU_OTHER_ALGORITHMS=1"]))
        output = run.start_command(mpmd(*ranks)).expect_exit(0)
        self.assertRegex(output, r"ranks 0 and 1 have GPUs of two kinds, which compute the product m \d+ .* by \"algorithm 1 ")

    def test_bad_config_is_said_once(self):
        run = self.run_of_test(["--training.stepz=3"])
        start = run.start(3)
        self.expect_refusal(start, 2, r"training\.stepz")
        self.assertEqual(start.output().count("unknown key"), 1, start.output())

    # What fails

    def test_rank_that_dies_before_it_joins(self):
        for launcher in ("ft", "plain"):
            with self.subTest(launcher=launcher):
                run = self.scene.run(f"dies-early-{launcher}")
                start = run.start(3, launcher, faults="start.before_join:1=kill")
                if launcher == "ft":
                    start.expect_exit(0)
                    self.assertRegex(start.output(), r"recovery: lost rank 1 \(host .*\)")
                    harness.expect_no_processes(run)
                    continue
                start.expect_failure(AT_ONCE_S)
                self.assertRegex(start.output(), r"(?i)rank 1\b")
                harness.expect_no_processes(run)
                self.expect_goes_on(run)

    def test_second_start_on_a_run_directory(self):
        run = self.run_of_test(ENDLESS)
        first = run.start(2, faults=harness.slow_steps(4, count=200))  # the processors are for others while it is waited for
        self.assertTrue(first.wait_for_step(3), first.tail())
        for ranks, second in [(ranks, run.start(ranks)) for ranks in (1, 2)]:  # both at once: they wait
            with self.subTest(ranks=ranks):
                output = second.expect_exit(76, 10 + AT_ONCE_S)
                self.assertGreater(time.monotonic() - second.begun, 9, "it waits for the writer to go")
                self.assertRegex(output, r"in use by another run .*host \S+ pid \d+")
                self.assertIn(f"pid {first.rank_pid(0)}", output)
        self.assertTrue(first.alive(), first.tail())
        self.assertEqual(run.status()["state"], "running")
        first.signal(signal.SIGUSR2)
        first.expect_exit(75)

    def test_killed_rank(self):
        """With ULFM the survivors go on (recovery_test.py has more); without, mpirun ends them."""
        for launcher, ranks, victim in (("ft", 4, 0), ("ft", 4, 3), ("ft", 2, 1), ("plain", 3, 1)):
            with self.subTest(launcher=launcher, ranks=ranks, victim=victim):
                run = self.scene.run(f"killed-{launcher}-{ranks}-{victim}", ENDLESS)
                start = run.start(ranks, launcher)
                self.assertTrue(start.wait_for_step(7) and start.wait_for_checkpoint(5), start.tail())
                others = set(start.ranks()) - {start.rank_pid(victim)}
                harness.kill(start.rank_pid(victim), signal.SIGKILL)
                if launcher == "plain":
                    start.expect_failure(AT_ONCE_S)
                else:
                    self.assertTrue(start.wait_for_step(run.last_step() + 7), start.tail())
                    self.assertEqual(set(start.ranks()), others, "the same processes go on")
                    start.signal(signal.SIGUSR2)
                    start.expect_exit(75)
                    self.assertRegex(start.output(), rf"recovery: lost rank {victim} \(host .*\) at step \d+: ")
                harness.expect_no_processes(run)
                self.assertGreaterEqual(harness.expect_whole_checkpoints(run, 5), 5)

    @harness.full
    def test_stopped_rank(self):
        """A rank that hangs, and no guard: the others wait for parallel.timeout, cannot go on while it lives, and leave. Each names
        whom it waited for, which may be one that waits itself; who leaves first ends the other before that says its."""
        run = self.run_of_test([*ENDLESS, "--parallel.timeout=5s", "--elastic.recovery_timeout=1s", "--watchdog.guard=false"])
        start = run.start(3)
        self.assertTrue(start.wait_for_step(3), start.tail())
        os.kill(start.rank_pid(1), signal.SIGSTOP)
        self.assertEqual(start.wait(5 + AT_ONCE_S), 76, start.tail())
        self.assertRegex(start.output(), r"5000 ms .*rank [01]\b.* hangs or is unreachable")
        harness.expect_no_processes(run)


if __name__ == "__main__":
    harness.main()
