"""tools/tidy: what a simulator runs has no thread, sleep or wait beside Env."""
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
         "checkpoint/chunk_reading.cc", "runtime/run/claim.cc", "runtime/rank/watch.cc", "runtime/data/loader.cc",
         "runtime/save/replicas.cc", "runtime/elastic/train_run.cc", "runtime/launch/launcher.cc", "runtime/train/trainer.cc"]


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
        for name in ["runtime/os/posix_thread.cc", "kernels/cpu/team.h", "runtime/device/cpu/cpu_device.cc", "parallel/nccl/nccl_communicators.cc", "parallel/mpi/deadline.cc"]:
            self.assertEqual(problems_of(name, "std::thread thread_;"), [], name)

    def test_what_env_gives_is_no_problem(self):
        for line in ["changed_->notify();", "std::unique_ptr<Thread> thread_;", "HF_TRY(thread_, env.start_thread(name, work));",
                     "gather.wait_for(bucket);", "env_->yield();", "std::mutex mutex_;", "// std::thread in a comment"]:
            self.assertEqual(problems_of("runtime/save/replicas.cc", line), [], line)


if __name__ == "__main__":
    unittest.main()
