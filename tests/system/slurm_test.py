"""Runs in Slurm jobs, with Debian's Slurm on several hosts of this machine (slurm.py): holdfast launch inside of a job goes on when the
job loses a node, srun starts ranks by itself, and both save on notice; the bits are those of the run that nothing disturbs.

Where tools/bootstrap --tests has brought no Slurm, or the system permits no namespaces, this is skipped, and says why; with CI=true
that is a failure.
"""
import time
import unittest

import harness
import hosts_test
import slurm

NODES, TASKS = 3, 2
JOB = [f"--nodes={NODES}", f"--ntasks-per-node={TASKS}"]
SCRIPTS = harness.ROOT / "configs/slurm"
OPTIONS = hosts_test.OPTIONS
SETTLE_S = 120
SLOW_STEPS = hosts_test.SLOW_STEPS
SLOW_UNTIL_THE_END = hosts_test.SLOW_UNTIL_THE_END


def setUpModule():
    if reason := slurm.why_not():
        harness.skip(reason)


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(lanes=NODES * TASKS, microbatch_size=4)
        cls.addClassCleanup(cls.scene.close)
        # On each host in its own shared memory, and the program's to clean up.
        del cls.scene.environment["OMPI_MCA_btl_sm_backing_directory"]
        cls.reference = harness.reference_digest(cls.scene, OPTIONS)

    def begin(self, node_timeout_s=300):
        self.cluster = slurm.Slurm(NODES, node_timeout_s)
        self.addCleanup(self.cluster.close)
        self.run_ = self.scene.run(self.id().rsplit(".", 1)[1], OPTIONS)

    def sbatch(self, *overrides, options=(), script="several_nodes", faults=SLOW_UNTIL_THE_END, until=11, **variables):
        run = self.run_
        start = self.cluster.sbatch(run, [*JOB, *options], SCRIPTS / f"{script}.sbatch", str(self.scene.config),
                                    f"--run.directory={run.directory}", *run.overrides, *overrides, HOLDFAST_FAULTS=faults, **variables)
        self.assertTrue(start.wait_for_step(until, SETTLE_S), start.tail())
        return start

    def expect_finished(self, start):
        output = start.expect_exit(0, SETTLE_S)
        self.assertEqual(self.run_.digest(), self.reference, output)
        self.assertEqual(set(self.run_.steps_told()), set(range(1, harness.STEPS + 1)))
        self.assertEqual(self.run_.status()["state"], "finished", output)
        harness.expect_no_processes(self.run_)
        left = {node: self.cluster.hosts[node].shared_memory() for node in self.cluster.nodes if node in self.cluster.hosts}
        self.assertEqual([names for names in left.values() if names], [], (left, output))
        return output

    def test_srun_alone(self):
        """By srun without mpirun: the ranks train, save on notice, and the same command goes on. Without PMIx they are refused."""
        self.begin()
        words = ["srun", f"--nodes={NODES}", f"--ntasks-per-node={TASKS}", "--mpi=pmix", *self.run_.train_arguments()]
        start = self.cluster.submit(self.run_, words, HOLDFAST_FAULTS=SLOW_STEPS)
        self.assertTrue(start.wait_for_step(12, SETTLE_S), start.tail())
        self.cluster.ask("scancel", "--signal=USR2", self.cluster.job())
        start.expect_exit(75, SETTLE_S)
        self.assertEqual(self.run_.status()["state"], "saved")
        output = self.expect_finished(self.cluster.submit(self.run_, words))
        self.assertIn("when a rank dies, srun ends the whole run", output)
        self.assertEqual([event["ranks"] for event in self.run_.events("start")], 2 * [NODES * TASKS])

        words = ["srun", "--ntasks=2", "--mpi=none", *self.run_.train_arguments()]
        output = self.cluster.submit(self.run_, words).expect_exit(2)
        self.assertIn("is one of 2 tasks that srun started (SLURM_STEP_NUM_TASKS=2), and srun gave them no PMIx", output)
        output = self.cluster.submit(self.run_, ["srun", "--ntasks=1", str(harness.PROGRAM), "check"]).expect_exit(0)
        self.assertRegex(output, r"Slurm +yes +job \d+, 1 task on 1 node \(n0\): holdfast launch -np 1 starts a run there and recovers")

    @harness.full
    def test_a_rank_dies_under_srun(self):
        """srun ends the others; the next start goes on."""
        self.begin()
        words = ["srun", f"--nodes={NODES}", f"--ntasks-per-node={TASKS}", "--mpi=pmix", *self.run_.train_arguments()]
        self.cluster.submit(self.run_, words, HOLDFAST_FAULTS="step.begin@18:3=kill").expect_failure(SETTLE_S)
        harness.expect_no_processes(self.run_)
        self.expect_finished(self.cluster.submit(self.run_, words))
        self.assertGreaterEqual(self.run_.events("start")[-1]["resumed_from_step"], 5)

    @harness.full
    def test_a_node_is_lost(self):
        """Its ranks begin again on one that was to spare, from RAM, in the same job, which goes on with the nodes that it has."""
        self.begin(node_timeout_s=5)
        start = self.sbatch(RANKS="4")
        self.assertEqual(self.used_nodes(), ["n0", "n1"], start.tail())
        begun = time.monotonic()
        self.cluster.lose("n1")
        recovered = harness.wait_until(lambda: self.run_.events("recovery"), SETTLE_S, lambda: not start.alive(), "no recovery", start.tail)
        self.assertTrue(recovered, start.tail())
        first = time.monotonic() - begun
        self.assertEqual(self.used_nodes(), ["n0", "n2"], start.tail())
        harness.wait_until(lambda: self.cluster.nodes_of(self.cluster.job()) == ["n0", "n2"], SETTLE_S, lambda: not start.alive(),
                           "Slurm has not noticed", start.tail)
        output = self.expect_finished(start)
        self.assertIn("host n1 does not answer: it is left out", output)
        recovery = self.run_.events("recovery")[0]
        self.assertEqual((recovery["level"], recovery["ranks_before"], recovery["ranks_after"]), (2, 4, 4))
        self.assertEqual([(event["ranks"], event.get("resumed_from")) for event in self.run_.events("start")], [(4, None), (4, "ram")])
        print(f"\na node lost to the run going on: {first:.1f} s, {recovery['duration_ms']} ms of them from the end of the ranks; "
              f"{recovery['lost_steps']} steps again")

    def used_nodes(self):
        return [node for node in self.cluster.nodes if node in self.cluster.hosts and self.cluster.ranks_on(self.run_, node)]

    @harness.full
    def test_a_dead_node_of_a_new_job(self):
        """That Slurm has not noticed yet is left out from the first start on."""
        self.begin()
        self.cluster.lose("n1")
        start = self.sbatch(RANKS="4", until=3, faults="")
        output = self.expect_finished(start)
        self.assertIn("host n1 does not answer: it is left out", output)
        self.assertEqual(self.run_.events("fault"), [])

    @harness.full
    def test_a_node_comes_back(self):
        """Before Slurm has noticed anything: with as many ranks as before."""
        self.begin()
        start = self.sbatch("--elastic.grow_after=1s")
        self.cluster.lose("n1")
        harness.wait_until(lambda: "host n1 does not answer" in start.output(), SETTLE_S, lambda: not start.alive(), "no word", start.tail)
        self.cluster.restore("n1")
        output = self.expect_finished(start)
        self.assertIn("host n1 answers again: the run takes it back", output)
        self.assertEqual([event["ranks"] for event in self.run_.events("start")], [6, 4, 6], output)

    @harness.full
    def test_the_first_node_is_lost(self):
        """And with it the launcher: another node puts the job into the queue again, and it goes on."""
        self.begin(node_timeout_s=5)
        start = self.sbatch(options=["--nodes=2"], LOOK_S="2")
        self.cluster.lose("n0")
        output = self.expect_finished(start)
        self.assertEqual([event["ranks"] for event in self.run_.events("start")], [4, 4], output)

    @harness.full
    def test_notice(self):
        """The job saves, is queued again by its script, and goes on."""
        for script, options in (("several_nodes", []), ("one_node", ["--nodes=1"])):
            with self.subTest(script):
                self.begin()
                self.run_ = self.scene.run(f"notice-{script}", OPTIONS)
                start = self.sbatch(script=script, options=options)
                self.cluster.ask("scancel", "--batch", "--signal=USR2", self.cluster.job())
                output = self.expect_finished(start)
                self.assertEqual(len(self.run_.events("start")), 2, output)
                self.assertIn("saved at step", output)
                self.cluster.close()


if __name__ == "__main__":
    harness.main(at_once=2)
