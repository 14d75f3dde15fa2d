"""tools/tidy: what a simulator runs has no thread, sleep or wait beside Env; rooms have budgets; the product has one type of a name."""
import unittest

import scripts

tidy = scripts.load("tidy")
AROUND_ENV = [
    "std::thread thread([&] { work(); });", "std::vector<std::jthread> others;", "const auto answers = std::async(std::launch::async, ask);",
    "std::condition_variable changed_;", "std::condition_variable_any changed_;", "std::this_thread::yield();",
    "std::this_thread::sleep_for(20ms);", "std::this_thread::sleep_until(end);", "done.notify_one();", "std::future<int> answer;",
    "std::latch all_there(3);", "std::counting_semaphore<2> free;", "sched_yield();", "pthread_create(&thread, nullptr, work, nullptr);",
]
ROOMS = ["watchdog/guard.cc", "parallel/group/membership.cc", "parallel/comm/collectives.cc", "parallel/local/local_communicator.cc",
         "checkpoint/checkpoint.cc", "runtime/run/claim.cc", "runtime/rank/watch.cc", "runtime/data/loader.cc",
         "runtime/save/replicas.cc", "runtime/elastic/session.cc", "runtime/launch/launcher.cc", "runtime/train/trainer.cc"]


def problems_of(name, line):
    tidy.problems.clear()
    tidy.check_banned(tidy.ROOT / name, line, tidy.without_comments(line))
    return list(tidy.problems)


class Threads(unittest.TestCase):
    def test_what_goes_around_env_is_refused_in_every_room(self):
        for room in ROOMS:
            for line in AROUND_ENV:
                with self.subTest(room=room, line=line):
                    self.assertIn("instead.", " ".join(problems_of(room, line)))

    def test_the_side_of_the_system_has_them(self):
        for name in ["runtime/os/posix_thread.cc", "kernels/cpu/team.h", "runtime/device/cpu/cpu_device.cc", "parallel/nccl/nccl_communicators.cc", "parallel/mpi/mpi_calls.cc"]:
            self.assertEqual(problems_of(name, "std::thread thread_;"), [], name)

    def test_what_env_gives_is_no_problem(self):
        for line in ["changed_->notify();", "std::unique_ptr<Thread> thread_;", "HF_TRY(thread_, env.start_thread(name, work));",
                     "gather.wait_for(bucket);", "env_->yield();", "std::mutex mutex_;", "// std::thread in a comment"]:
            self.assertEqual(problems_of("runtime/save/replicas.cc", line), [], line)


def budget_problems(size, budget):
    tidy.problems.clear()
    tidy.check_budgets({"watchdog": size}, {"watchdog": budget})
    return " ".join(tidy.problems)


class Budgets(unittest.TestCase):
    def test_a_room_may_have_what_its_budget_says(self):
        self.assertEqual(budget_problems([4980, 30], [5000, 30]), "")
        self.assertIn("has 5001 lines, its budget is 5000", budget_problems([5001, 30], [5000, 30]))
        self.assertIn("has 31 files, its budget is 30", budget_problems([4980, 31], [5000, 30]))

    def test_a_budget_follows_a_room_that_shrinks(self):
        self.assertIn("--lower", budget_problems([4900, 30], [5000, 30]))
        self.assertIn("--lower", budget_problems([4980, 27], [5000, 30]))

    def test_a_new_room_has_none(self):
        tidy.problems.clear()
        tidy.check_budgets({"attic": [10, 1]}, {})
        self.assertIn("attic has 10 lines, its budget is 0", " ".join(tidy.problems))

    def test_tests_are_not_counted(self):
        sizes = [(10, tidy.ROOT / name, 1, "") for name in ["tests/os/a.cc", "runtime/os/a.cc", "runtime/os/a.h", "kernels/cpu/b.cc"]]
        self.assertEqual(tidy.sizes_of_rooms(sizes), {"runtime/os": [20, 2], "kernels": [10, 1]})


class Types(unittest.TestCase):
    def problems(self, *places):
        tidy.problems.clear()
        types = {}
        for name, path in places:
            types.setdefault(name, []).append((tidy.ROOT / path, 1))
        tidy.check_types(types)
        return tidy.problems

    def test_the_product_has_one_type_of_a_name(self):
        self.assertEqual(len(self.problems(("holdfast::save::Slot", "runtime/save/a.h"), ("holdfast::train::Slot", "runtime/train/a.h"))), 1)
        self.assertEqual(len(self.problems(("holdfast::save::Slot", "runtime/save/a.h"), ("holdfast::save::Slot", "runtime/save/b.h"))), 2)

    def test_twins_and_tests_may_share_a_name(self):
        self.assertEqual(self.problems(("holdfast::kernels::cpu::Sum", "kernels/cpu/a.h"), ("holdfast::kernels::cuda::Sum", "kernels/cuda/a.h")), [])
        self.assertEqual(self.problems(("holdfast::test::Rig", "tests/save/a.h"), ("holdfast::test::Rig", "tests/train/a.h")), [])
        self.assertEqual(self.problems(("holdfast::save::Rig", "runtime/save/a.h"), ("holdfast::test::Rig", "tests/train/a.h")), [])


if __name__ == "__main__":
    unittest.main()
