"""holdfast launch: a run ends with the bits of the run that was never disturbed, whatever happens to mpirun and the ranks;
a stop saves within the notice at every moment; and nothing stays behind."""
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

import harness

RANKS = 4
NOTICE_S = 20
OPTIONS = ["--checkpoint.ram_every_steps=2"]
NOBODY = 65534
SLOW = harness.slow_steps(14, count=4)  # of a run that something happens to behind step 12


def launch_words(run, *overrides, ranks=RANKS, config=None, options=()):
    return [str(harness.PROGRAM), "launch", "-np", str(ranks), f"--notice={NOTICE_S}", *options, str(config or run.scene.config),
            f"--run.directory={run.directory}", *run.overrides, *overrides]


def mpirun_of(run):
    """Its pid; None when there is none."""
    found = [pid for pid in run.processes() if harness.executable_of(pid) in harness.MPIRUN]
    return found[0] if found else None


def of_level_2(run, name):
    """Events of this name by the launcher; what the ranks mend among themselves is level 1."""
    return [event for event in run.events(name) if event.get("level") == 2]


# Stands for ssh: every host is a host name of its own on this machine; one with a file down-NAME beside it does not answer.
AGENT = """\
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1
shift
[[ -e ${0%/*}/down-$host ]] && exit 255
exec unshare --uts /bin/bash -c "hostname $host; $*"
"""
HOSTS = "--host=node-a:2,node-b:2"


def can_unshare_host_names():
    words = ["unshare", "--uts", "hostname", "elsewhere"]
    return shutil.which("unshare") and subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


class LaunchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(microbatch_size=4)
        cls.addClassCleanup(cls.scene.close)
        # The launcher itself is to care for what Open MPI leaves.
        del cls.scene.environment["OMPI_MCA_btl_sm_backing_directory"]
        agent = cls.scene.directory / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        cls.scene.environment["PRTE_MCA_plm_ssh_agent"] = str(agent)
        cls.reference = harness.reference_digest(cls.scene, OPTIONS)

    def launch(self, *overrides, name=None, faults="", **more):
        run = self.scene.run(name or self.id().rsplit(".", 1)[1], OPTIONS)
        return run.start_command(launch_words(run, *overrides, **more), faults)

    def expect_end(self, start, code, timeout_s=harness.HANG_S):
        output = start.expect_exit(code, timeout_s)
        harness.expect_no_processes(start.run)
        launch_directory = start.run.directory / "launch"
        if code not in range(2, 6) or launch_directory.parent.exists():  # a start that is refused removes what it has made
            self.assertEqual(sorted(path.name for path in launch_directory.glob("*")), ["lock", "token"])
        return output

    def expect_finished(self, start, restarts):
        """The bits of the reference; nothing is left; the log tells of so many restarts."""
        run = start.run
        output = self.expect_end(start, 0)
        self.assertEqual(run.digest(), self.reference, output)
        self.assertEqual(run.status()["state"], "finished")
        for name in ("fault", "recovery"):
            self.assertEqual(len(of_level_2(run, name)), restarts, output)
        self.assertLessEqual({event["cause"] for event in of_level_2(run, "fault")}, {"start-ended", "host-lost", "rank-hangs"})
        self.assertEqual(output.count("starting again"), restarts, output)
        harness.expect_no_snapshots(run)
        self.expect_no_scratch(run.status()["start"])
        return output

    def expect_no_scratch(self, name):
        """Of one start: where Open MPI had its files."""
        self.assertFalse((harness.shared_memory() / f"holdfast-launch-{name}").exists())

    # What it starts

    def test_dry_run(self):
        environment = {"PATH": os.environ["PATH"], "HOME": "/home/someone"}
        words = [str(harness.PROGRAM), "launch", "-np", "3", "--dry-run", "run.toml", "--run.seed=7"]
        config = harness.ROOT / "configs/quickstart.toml"
        words[words.index("run.toml")] = str(config)
        done = subprocess.run(words, env=environment, cwd=self.scene.directory, capture_output=True, text=True, check=True)
        prefix = ""
        if harness.MPI.is_symlink() and not os.path.isabs(os.readlink(harness.MPI)):
            prefix = f"OPAL_PREFIX={harness.MPI.parent / os.readlink(harness.MPI)} "
        self.assertEqual(done.stdout, (
            f"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {prefix}"
            "PRTE_MCA_hwloc_default_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=slot:OVERSUBSCRIBE "
            f"{harness.MPI}/bin/mpirun --with-ft ulfm --prtemca state_base_recoverable 1 --prtemca state_base_notify_errors 1 "
            f"--tune {harness.ROOT}/configs/mpi/one_host.conf -np 3 {harness.PROGRAM} train {config} --run.seed=7\n"))
        self.assertEqual(done.stderr, "")
        self.assertFalse((self.scene.directory / "runs").exists(), "a dry run makes nothing")
        armed = subprocess.run([*words, "--faults"], env={**environment, "HOLDFAST_FAULTS": "step.end=kill"}, cwd=self.scene.directory,
                               capture_output=True, text=True, check=True)
        self.assertIn(" -np 3 -x HOLDFAST_FAULTS ", armed.stdout)

    def test_undisturbed(self):
        start = self.launch()
        self.expect_finished(start, restarts=0)
        again = start.run.start_command(launch_words(start.run))
        self.assertIn("is finished", self.expect_end(again, 0))

    @harness.full
    def test_locks_of_a_host_that_is_gone(self):
        """Both locks are held, as by the kernel of a host without power: one start waits for both leases, and is enough."""
        run = self.scene.run("locks_of_a_host_that_is_gone", OPTIONS)
        (run.directory / "launch").mkdir(parents=True)
        held = []
        for place in ("lock", "launch/lock"):
            lock = open(run.directory / place, "w", encoding="utf-8")
            self.addCleanup(lock.close)
            lock.write("host gone pid 7\nhost_id gone@1\nepoch 4\nclaim 1\nrenewals 12\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            held.append(lock)
        output = self.expect_finished(run.start_command(launch_words(run)), restarts=0)
        self.assertEqual(output.count("which may be gone with its host: waiting until its claim has not been renewed for 20 s"), 2)
        self.assertEqual(output.count("claim 5 takes over"), 2)
        manifest = (run.checkpoints()[-1] / "manifest.json").read_text()
        self.assertEqual(json.loads(manifest.rsplit("crc32c ", 1)[0])["epoch"], 5)

    def test_status(self):
        """What `holdfast status` says of a run, while it goes on and when it has ended."""
        def status(*options):
            return harness.program_output("status", start.run.directory, *options)
        start = self.launch(faults=SLOW)
        self.assertTrue(start.wait_for_step(12, harness.HANG_S), start.tail())
        told = json.loads(status("--json"))
        self.assertTrue(told["running"], told)
        self.assertGreaterEqual(told["step"], 12, told)
        self.assertEqual(sum(told["hosts"].values()), RANKS, told)
        self.assertEqual(sorted(told["here"]), [str(rank) for rank in range(RANKS)], told)
        self.assertRegex(told["here"]["0"], r"^(step|load|evaluation|save) \d+ for ")
        self.assertIn("a failure now costs, of a process up to", status())
        self.expect_end(start, 0)
        self.assertIn("not running: finished", status())
        self.assertNotIn("here", json.loads(status("--json")))

    def test_nobody_hears_what_it_says(self):
        """mpirun ends the ranks after a dozen lines into a pipe that nobody reads: then the run is started again, once."""
        for number, what in enumerate(harness.to_nobody([])):
            with self.subTest(what=what):
                run = self.scene.run(f"nobody-{number}", OPTIONS)
                words = launch_words(run, "--log.every_steps=1")
                start = run.start_command(harness.to_nobody(words)[what])
                self.expect_end(start, 0)
                self.assertEqual(run.digest(), self.reference)
                self.assertLessEqual(len(run.events("start")), 2 if what == harness.READER_LEAVES else 1)

    # What ends a start

    def test_mpirun_killed(self):
        start = self.launch(faults=SLOW)
        self.assertTrue(start.wait_for_step(12), start.tail())
        killed = start.run.status()["start"]
        self.assertTrue(os.listdir(harness.shared_memory() / f"holdfast-launch-{killed}"), "Open MPI has its files elsewhere")
        harness.kill(mpirun_of(start.run), signal.SIGKILL)
        self.assertIn("mpirun was killed by signal 9; starting again", self.expect_finished(start, restarts=1))
        self.expect_no_scratch(killed)

    def test_ranks_killed(self):
        """All at once: stopped first, so that none sees another one die."""
        start = self.launch(faults=SLOW)
        self.assertTrue(start.wait_for_step(12), start.tail())
        ranks = [start.rank_pid(rank) for rank in range(RANKS)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in ranks:
                harness.kill(pid, number)
        # mpirun may stay behind when all die at once.
        self.expect_end_of_start(start.run, self.expect_finished(start, restarts=1), rf"all {RANKS} ranks died{harness.cause_of_death('signal 9 (SIGKILL)')}(; mpirun [^)]*?)?; starting again")

    def test_a_rank_leaves(self):
        """With an exit code that says nothing: a library has called exit()."""
        start = self.launch("--checkpoint.ram_every_steps=1", ranks=1, faults=f"step.begin@{harness.STEPS - 15}=exit:3")
        cause = harness.cause_of_death("exit code 3")
        self.expect_end_of_start(start.run, self.expect_finished(start, restarts=1),
                                 rf"rank 0 \(host \S+\) died{cause}(; mpirun [^)]*?)?; starting again")

    def expect_end_of_start(self, run, output, expression):
        """The launcher said how a start ended, and in the first group that mpirun stayed behind, which is counted."""
        self.assertRegex(output, expression)
        for said in filter(None, re.findall(expression, output)):
            harness.note_behind(run, said)

    @harness.full
    def test_mpirun_stopped(self):
        """In the middle of a run that goes on for longer than one waits for it."""
        start = self.launch(faults=",".join(f"step.begin@{step}:0=sleep:3500" for step in range(30, 34)))
        self.assertTrue(start.wait_for_step(28), start.tail())
        harness.kill(mpirun_of(start.run), signal.SIGSTOP)
        self.assertIn("mpirun was stopped for 5 s; starting again", self.expect_finished(start, restarts=1))

    @harness.full
    def test_finished_while_mpirun_hangs(self):
        start = self.launch(faults=harness.slow_steps(harness.STEPS - 8, count=6))
        self.assertTrue(start.wait_for_step(harness.STEPS - 10), start.tail())
        harness.kill(mpirun_of(start.run), signal.SIGSTOP)
        self.expect_finished(start, restarts=0)

    def test_launcher_killed(self):
        """It leaves nobody; the next one goes on."""
        start = self.launch(faults=SLOW)
        self.assertTrue(start.wait_for_step(12), start.tail())
        start.process.kill()
        start.wait()
        harness.expect_no_processes(start.run)
        again = start.run.start_command(launch_words(start.run))
        self.assertEqual(again.wait(), 0, again.tail())
        self.assertEqual(start.run.digest(), self.reference)

    @harness.full
    def test_a_hang_that_outlasts_the_others_patience(self):
        """Nothing but the others notices it, without a guard: they end the run, and it is started again. A guard ends the rank
        when the others have waited for it in a recovery (watchdog_test.py)."""
        start = self.launch("--parallel.timeout=3s", "--watchdog.guard=false", "--elastic.recovery_timeout=5s",
                            faults="step.begin@30:1=spin")
        self.assertRegex(self.expect_finished(start, restarts=1), r"for 3000 ms|waited 3000 ms")

    def test_without_recovery_in_place(self):
        """The ranks that are left hold the whole model, and leave it to the next start all the same."""
        start = self.launch("--elastic.in_place=false", "--elastic.spares=1", faults=SLOW)
        self.assertTrue(start.wait_for_step(12), start.tail())
        harness.kill(start.rank_pid(1), signal.SIGKILL)
        output = self.expect_finished(start, restarts=1)
        self.assertIn("ranks were lost, and elastic.in_place = false: the start ends here", output)
        self.assertIn("recovery in place (elastic.in_place = false)", output)
        self.assertEqual([event["level"] for event in start.run.events("recovery")], [2])
        self.assertEqual([event.get("resumed_from") for event in start.run.events("start")], [None, "ram"])

    def test_a_restart_brings_lost_ranks_back(self):
        """Of a run that does not grow by itself."""
        start = self.launch("--elastic.grow=off", faults=f"step.begin@12:2=kill,{harness.slow_steps(15, count=6)}")
        run = start.run
        shrunk = harness.wait_until(lambda: run.events("recovery"), harness.HANG_S, lambda: not start.alive(), "nobody recovered",
                                    start.tail)
        self.assertTrue(shrunk, start.tail())
        self.assertEqual(run.events("recovery")[0]["ranks_after"], RANKS - 1)
        harness.kill(mpirun_of(run), signal.SIGKILL)
        self.expect_finished(start, restarts=1)
        self.assertEqual([event["ranks"] for event in run.events("start")], [RANKS, RANKS])
        (event,) = of_level_2(run, "recovery")
        self.assertEqual((event["ranks_before"], event["ranks_after"]), (RANKS - 1, RANKS))

    def test_none_of_the_launched_ranks_is_left(self):
        """They died one after the other, and the run has grown back each time: it goes on, and takes the signal."""
        start = self.launch("--elastic.grow_after=0s", "--training.steps=100000", "--checkpoint.ram_every_steps=1", ranks=2)
        run = start.run
        self.assertTrue(start.wait_for_step(3), start.tail())
        mpirun = mpirun_of(run)
        for victim in (0, 1):
            harness.kill(start.rank_pid(victim), signal.SIGKILL)
            grown = harness.wait_until(lambda: sum(event.get("reason") == "growth" for event in run.events("recovery")) > victim,
                                       harness.HANG_S, lambda: not start.alive() or of_level_2(run, "fault"),
                                       "the run did not grow", start.tail)
            self.assertTrue(grown, start.tail())
        time.sleep(7)  # longer than mpirun may go on behind the end of its ranks
        self.assertEqual(mpirun_of(run), mpirun, start.tail())
        start.signal(signal.SIGTERM)
        output = self.expect_end(start, 75)
        self.assertNotIn("starting again", output)
        self.assertEqual(run.status()["state"], "saved", output)
        self.assertEqual(len(run.events("start")), 1)

    # What a restart does not mend

    def test_bad_config(self):
        output = self.launch("--training.stepz=3").expect_exit(2)
        self.assertEqual(output.count("unknown key training.stepz"), 1, output)
        self.assertFalse((self.scene.directory / "test_bad_config").exists(), "nothing is made")

    def test_bad_data(self):
        """Only the ranks find out."""
        output = self.expect_end(self.launch("--data.sources=[{path = \"missing.txt\", format = \"text\"}]"), 4)
        self.assertEqual(output.count("missing.txt does not exist"), 1, output)
        self.assertNotIn("starting again", output)
        self.assertFalse((self.scene.directory / "test_bad_data").exists(), "what was made is removed")

    def test_data_that_are_away_for_a_while(self):
        """A rank dies meanwhile, and then all: the start after that waits for the data."""
        text, away = self.scene.directory / "own.txt", self.scene.directory / "away.txt"
        shutil.copy(self.scene.text, text)
        start = self.launch(f'--data.sources=[{{path = "{text}", format = "text"}}]', "--elastic.grow_after=1s", faults=SLOW)
        self.assertTrue(start.wait_for_step(12, harness.HANG_S), start.tail())
        text.rename(away)

        def ranks():
            return [pid for pid in start.ranks() if pid != start.pid]
        harness.kill(ranks()[0], signal.SIGKILL)
        time.sleep(1)
        for pid in ranks():
            harness.kill(pid, signal.SIGKILL)
        harness.wait_until(lambda: "The run has read this before" in start.output(), harness.HANG_S, lambda: not start.alive(),
                           "no word", start.tail)
        time.sleep(1)
        away.rename(text)
        output = self.expect_end(start, 0)
        self.assertEqual(start.run.digest(), self.reference, output)
        self.assertNotIn("another start would end the same way", output)

    def test_same_fault_again_and_again(self):
        start = self.launch("--checkpoint.ram_every_steps=0", "--checkpoint.every_steps=1000", ranks=1,
                            faults="step.begin@12=segv")
        output = self.expect_end(start, 76)
        cause = harness.cause_of_death("signal 11 (SIGSEGV)")
        self.assertRegex(output, r"\d+ starts in a row")
        starts = int(re.search(r"(\d+) starts in a row", output).group(1))
        self.assertGreaterEqual(starts, 3, "and more until they have cost enough")
        self.expect_end_of_start(start.run, output,
                                 rf"{starts} starts in a row ended behind step 1[01] in the same way \(rank 0 \(host \S+\) died"
                                 rf"{cause}(; mpirun [^)]*)?\)")
        self.assertEqual(output.count("starting again"), starts - 1, output)

    # Stops

    def test_stopped_at_any_moment(self):
        """At the start, while the ranks join, while they train; by every signal that asks for it."""
        moments = [(0.0, signal.SIGTERM), (0.02, signal.SIGTERM), (0.08, signal.SIGINT), (0.2, signal.SIGTERM), (0.5, signal.SIGHUP),
                   (0.9, signal.SIGUSR2), (1.4, signal.SIGTERM)]
        run = self.scene.run("stopped", [*OPTIONS, "--training.steps=100000"])
        for delay_s, number in moments:
            with self.subTest(delay_s=delay_s, signal=number):
                start = run.start_command(launch_words(run))
                harness.wait_until(lambda: signals_are_watched(start.pid), 30, lambda: False, "no signal mask", start.tail)
                time.sleep(delay_s)
                begun = time.monotonic()
                start.signal(number)
                output = self.expect_end(start, 75)
                self.assertLess(time.monotonic() - begun, NOTICE_S)
                if "before it began" not in output:
                    self.assertEqual(run.status()["state"], "saved", output)
                self.assertNotIn("starting again", output)

    def test_stop_and_go_on(self):
        start = self.launch(faults=SLOW)
        self.assertTrue(start.wait_for_step(11), start.tail())
        start.signal(signal.SIGTERM)
        self.expect_end(start, 75)
        self.assertEqual(start.run.status()["state"], "saved")
        again = start.run.start_command(launch_words(start.run))
        self.expect_finished(again, restarts=0)

    def test_notice_too_short_to_save(self):
        """A rank that hangs: everything is ended in time, and the next start goes on."""
        start = self.launch(faults="step.begin@20:1=sleep:60000")
        self.assertTrue(start.wait_for_step(19), start.tail())
        start.signal(signal.SIGTERM)
        time.sleep(1.2)
        begun = time.monotonic()
        start.signal(signal.SIGTERM)  # the second one: now
        output = self.expect_end(start, 75)
        self.assertLess(time.monotonic() - begun, NOTICE_S / 2, "what the first signal left of the notice was not waited for")
        self.assertIn("stopped on request before it could save", output)
        again = start.run.start_command(launch_words(start.run))
        self.expect_finished(again, restarts=0)

    @harness.full
    def test_step_longer_than_the_notice(self):
        """What is saved is the step before it, from its RAM snapshot; and no later checkpoint was there."""
        start = self.launch("--checkpoint.ram_every_steps=1", "--checkpoint.every_steps=15", "--watchdog.floor=60s",
                            faults="step.begin@20:1=sleep:60000")
        self.assertTrue(start.wait_for_step(19), start.tail())
        time.sleep(0.5)
        begun = time.monotonic()
        start.signal(signal.SIGTERM)
        output = self.expect_end(start, 75)
        self.assertLess(time.monotonic() - begun, NOTICE_S)
        self.assertIn("what is in memory of the one before is saved", output)
        self.assertEqual(start.run.status()["state"], "saved", output)
        self.assertIn(start.run.newest_step(), (18, 19), output)
        self.assertNotIn(20, {event["step"] for event in start.run.events("step")})
        again = start.run.start_command(launch_words(start.run))
        self.expect_finished(again, restarts=0)

    # Where it runs

    def lose_host(self, start, host):
        """Its daemon dies, and with it the ranks; from now on it does not answer."""
        down = self.scene.directory / f"down-{host}"
        down.touch()
        self.addCleanup(down.unlink, missing_ok=True)
        for pid in processes_on(host):
            harness.kill(pid, signal.SIGKILL)
        return down

    @harness.needs(can_unshare_host_names(), "the system gives no namespace for another host name")
    def test_lost_host(self):
        """The run shrinks to the hosts that are left."""
        start = self.launch(options=[HOSTS], faults=harness.slow_steps(14))
        self.assertTrue(start.wait_for_step(12), start.tail())
        hosts = [json.loads(path.read_text())["host"] for path in sorted((start.run.directory / "launch").glob("*/rank-*"))]
        self.assertEqual(hosts, ["node-a", "node-a", "node-b", "node-b"])
        self.lose_host(start, "node-b")
        output = self.expect_finished(start, restarts=1)
        self.assertIn("host node-b does not answer: it is left out", output)
        *before, event = start.run.events("recovery")
        # Before mpirun gives up, those that are left may have gone on in place.
        left = before[-1]["ranks_after"] if before else 4
        self.assertEqual((event["level"], event["ranks_before"], event["ranks_after"]), (2, left, 2))

    @harness.needs(can_unshare_host_names(), "the system gives no namespace for another host name")
    def test_lost_host_comes_back(self):
        """The run may not shrink, so it waits. A stop reaches ranks that this host cannot signal."""
        start = self.launch("--elastic.min_data_parallel=4", "--parallel.data=4", options=[HOSTS], faults=harness.slow_steps(10, count=30))
        self.assertTrue(start.wait_for_step(8), start.tail())
        down = self.lose_host(start, "node-a")
        harness.wait_until(lambda: "waiting for more" in start.output(), 30, lambda: not start.alive(), "no word", start.tail)
        down.unlink()
        self.assertTrue(start.wait_for_step(30), start.tail())
        start.signal(signal.SIGTERM)
        self.assertIn("host node-a answers again", self.expect_end(start, 75))
        self.assertEqual(start.run.status()["state"], "saved")
        again = start.run.start_command(launch_words(start.run, "--parallel.data=4", options=[HOSTS]))
        again.expect_exit(0)
        self.assertEqual(start.run.digest(), self.reference)

    @harness.needs(harness.can_unshare_pids(), "the system gives no process namespace")
    def test_process_1(self):
        run = self.scene.run("process-1", OPTIONS)
        words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *launch_words(run)]
        start = run.start_command(words, SLOW)
        self.assertTrue(start.wait_for_step(12), start.tail())
        launchers = [pid for pid in run.processes() if status_of(pid).find("NSpid:\t%d\t1\n" % pid) > 0]
        self.assertEqual(len(launchers), 1, "the launcher is process 1 of its namespace")
        harness.kill(launchers[0], signal.SIGTERM)
        self.expect_end(start, 75)
        self.expect_finished(run.start_command(words), restarts=0)

    @harness.full
    @unittest.skipUnless(os.geteuid() == 0, "it is run by another user than root already")
    def test_not_as_root(self):
        with harness.Scene() as scene:
            if not usable_by(NOBODY, harness.PROGRAM) or not usable_by(NOBODY, harness.MPI / "bin/mpirun"):
                self.skipTest("another user cannot run the program where it lies")
            for path in (scene.directory, scene.text, scene.config, scene.shared_memory):
                os.chown(path, NOBODY, NOBODY)
            run = scene.run("user", OPTIONS)
            words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *launch_words(run)]
            start = run.start_command(words, SLOW)
            self.assertTrue(start.wait_for_step(12), start.tail())
            harness.kill(mpirun_of(run), signal.SIGKILL)
            start.expect_exit(0)
            self.assertEqual(len(of_level_2(run, "recovery")), 1)
            harness.expect_no_processes(run)


def processes_on(host):
    """Pids of the host's processes: those that share its host name, and with it a namespace."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            inside = Path(f"/proc/{entry}/ns/uts").readlink() != Path("/proc/self/ns/uts").readlink()
            words = ["nsenter", "-t", entry, "--uts", "hostname"]
            if inside and subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() == host:
                found.append(int(entry))
        except OSError:
            continue
    return found


def usable_by(user, program):
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "test", "-x", str(program)]
    return subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode == 0


def status_of(pid):
    """As the system tells it; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def signals_are_watched(pid):
    """Whether the process has begun to care for its signals; before, they end it like any other program."""
    status = status_of(pid)
    if not status:
        return True
    blocked = int(status.split("SigBlk:\t")[1].split()[0], 16)
    # Who starts a thread blocks all signals for a moment, which says nothing.
    return bool(blocked >> (signal.SIGTERM - 1) & 1) and not blocked >> (signal.SIGALRM - 1) & 1


if __name__ == "__main__":
    harness.main(alone=("test_lost_host", "test_lost_host_comes_back"))  # they share the names of hosts
