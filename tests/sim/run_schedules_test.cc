// The protocol simulator: whole runs on one machine, of ranks that are threads of this process on a clock and with turns
// that a seed decides (tests/support/simulated_env.h). Ranks run the shipped program from its config to its end: groups
// and recoveries, votes, lanes, snapshots, checkpoints, claims and journals, on real tensors. They die at any point of it,
// their files fail, messages and storage take time; then the run is started again, as the launcher does it.
//
// A run is right if it comes to its end with the bits of the undisturbed one, without a person: each start ends with
// done, or with 76 because of what happened in it, and the start in which nothing happens comes to the end.
//
//   HOLDFAST_TEST_SCHEDULES=1..20000 test_sim --gtest_filter='RunSchedules.Random*'    these seeds, with coverage
//   HOLDFAST_TEST_SCHEDULES_END=1 beside it            up to the first seed that is wrong, which is not made smaller
//   HOLDFAST_TEST_SCHEDULE='ranks=3 ... | ...' test_sim --gtest_filter='RunSchedules.Random*'
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/names.h"
#include "runtime/core/random.h"
#include "runtime/run/run_directory.h"
#include "tests/elastic/recovery_fixture.h"
#include "tests/sim/run_schedule.h"
#include "tests/support/faulty_env.h"
#include "tests/support/late_world.h"
#include "tests/support/simulated_env.h"

namespace holdfast::test {
namespace {

// A check that fails, and so ends the process, leaves this on stderr.
std::string playing;  // NOLINT: a handler of a signal has no other way to it
void say_what_plays(int number) {
  static_cast<void>(!write(STDERR_FILENO, playing.data(), playing.size()));
  std::signal(number, SIG_DFL);
}

struct Played {
  std::string wrong = {};  // a sentence; empty: it is right
  int starts = 0, deaths = 0;
  std::int64_t virtual_s = 0;
  std::uint64_t switches = 0;
  std::map<std::string, int> seen = {};  // what the run's log tells of
};

struct Seeds {
  std::uint64_t first = 1, last = 200;
};
// Returns those of HOLDFAST_TEST_SCHEDULES, FIRST..LAST or one, or else `usual`.
Seeds seeds_to_play(Seeds usual) {
  const char* const wanted = std::getenv("HOLDFAST_TEST_SCHEDULES");
  if (wanted == nullptr) return usual;
  char* end = nullptr;
  Seeds seeds;
  seeds.first = seeds.last = std::strtoull(wanted, &end, 10);
  if (std::string(end).starts_with("..")) seeds.last = std::strtoull(end + 2, nullptr, 10);
  return seeds;
}

class RunSchedules : public RecoveryTest {
 protected:
  static constexpr int steps = 12;

  RunSchedules() {
    EXPECT_EQ(train({.run = "reference", .overrides = {fmt::format("training.steps={}", steps)}}).code,
              ExitCode::done);
    reference_ = digest("reference");
    for (const int number : {SIGABRT, SIGSEGV}) std::signal(number, say_what_plays);
  }
  ~RunSchedules() override {
    for (const int number : {SIGABRT, SIGSEGV}) std::signal(number, SIG_DFL);
  }

  Played play(const RunSchedule& schedule, std::uint64_t seed) {
    playing = fmt::format("while playing seed {}: {}\n", seed, schedule.text());
    const std::string run = fmt::format("played-{}", ++played_);
    Played result = play_in(schedule, seed, run);
    lose_ram(run);
    if (result.wrong.empty()) static_cast<void>(posix_env().remove_tree(run_directory(run)).ok());
    playing.clear();
    return result;
  }

  // Returns a schedule that is wrong as well, and has as little in it as was found.
  RunSchedule shrink(RunSchedule schedule, std::uint64_t seed) {
    RunSchedule simpler;
    for (int way = 0; schedule.simpler(way, simpler);) {
      if (play(simpler, seed).wrong.empty()) {
        ++way;
      } else {
        schedule = simpler;
        way = 0;
      }
    }
    return schedule;
  }

  void play_seeds(Seeds seeds) {
    std::map<std::string, int> seen;
    std::int64_t starts = 0, deaths = 0, virtual_s = 0;
    const std::int64_t begin_ns = posix_env().monotonic_ns();
    for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
      const RunSchedule schedule = draw_schedule(seed, {});
      const Played played = play(schedule, seed);
      starts += played.starts, deaths += played.deaths, virtual_s += played.virtual_s;
      for (const auto& [what, count] : played.seen) seen[what] += count;
      if (played.wrong.empty()) continue;
      const bool is_last = std::getenv("HOLDFAST_TEST_SCHEDULES_END") != nullptr;
      ADD_FAILURE() << "seed " << seed << ": " << played.wrong << "\nthe schedule: " << schedule.text()
                    << (is_last ? "" : "\nas little as that: " + shrink(schedule, seed).text());
      if (is_last) return;
    }
    const double seconds = static_cast<double>(posix_env().monotonic_ns() - begin_ns) * 1e-9;
    fmt::print("{} schedules, {} starts, {} deaths, {} s of the simulated clock in {:.1f} s\n",
               seeds.last - seeds.first + 1, starts, deaths, virtual_s, seconds);
    for (const auto& [what, count] : seen) fmt::print("  {:6} {}\n", count, what);
  }

 private:
  Played play_in(const RunSchedule& schedule, std::uint64_t seed, const std::string& run) {
    ScheduleMachine machine(posix_env());
    constexpr std::int64_t start_lasts_s = 3'600;
    if (schedule.storage_us > 0)
      machine.storage_takes(
          {.read_us = schedule.storage_us, .sync_us = schedule.storage_us, .path_contains = run + "/"});
    Played result;
    // One start without anything comes to the end of the run.
    for (std::size_t start = 0; start <= schedule.starts.size(); ++start) {
      machine.ends_by(machine.now_s() + start_lasts_s);
      const std::vector<std::string> happens =
          start < schedule.starts.size() ? schedule.starts[start] : std::vector<std::string>();
      const std::vector<std::optional<RunEnd>> ends = start_run(schedule, seed, run, happens, machine);
      ++result.starts;
      bool done = false;
      for (const std::optional<RunEnd>& end : ends) {
        result.deaths += end.has_value() ? 0 : 1;
        done = done || (end.has_value() && end->code == ExitCode::done);
      }
      for (std::size_t rank = 0; rank < ends.size(); ++rank) {
        if (!ends[rank].has_value() || ends[rank]->code == ExitCode::done) continue;
        const bool is_started_again = ends[rank]->code == ExitCode::communication;
        if (is_started_again && !happens.empty()) continue;
        result.wrong = fmt::format("start {}: rank {} ended with {}: {}", start + 1, rank,
                                   static_cast<int>(ends[rank]->code), ends[rank]->message);
      }
      if (done || !result.wrong.empty()) break;
      if (happens.empty())
        result.wrong = fmt::format("start {}, in which nothing happened, did not come to the end", start + 1);
    }
    result.virtual_s = machine.now_s();
    result.switches = machine.switches();
    for (const char* const kind : {"start", "fault", "recovery", "rollback", "grown", "shutdown"}) {
      for (const Json& event : events(run, kind)) {
        std::string name = kind;
        for (const char* const field : {"what", "cause", "level", "resumed_from"}) {
          if (event.contains(field) && event[field].is_string())
            name += " " + event[field].get<std::string>();
          if (event.contains(field) && event[field].is_number())
            name += fmt::format(" {}", event[field].get<int>());
        }
        ++result.seen[name];
      }
    }
    if (result.wrong.empty() && digest(run) != reference_)
      result.wrong =
          fmt::format("other bits than the undisturbed run:\n{}instead of\n{}", digest(run), reference_);
    return result;
  }

  // Returns how the ranks ended; none: it died.
  std::vector<std::optional<RunEnd>> start_run(const RunSchedule& schedule, std::uint64_t seed,
                                               const std::string& run,
                                               const std::vector<std::string>& happens,
                                               ScheduleMachine& machine) {
    const int ranks = schedule.ranks + schedule.newcomers;
    std::deque<FaultyEnv> processes;
    for (int rank = 0; rank < ranks; ++rank) processes.emplace_back(machine);
    std::set<int> dying;  // ranks that die when their files fail
    std::string faults;
    for (const std::string& each : happens) {
      if (each == "ram_lost") {
        lose_ram(run);
      } else if (each == "damaged") {
        damage_newest(run);
      } else if (each.starts_with("disk.")) {
        if (each.ends_with(":dies")) dying.insert(rank_of(each));
        fail_disk(each, run, processes);
      } else {
        faults += (faults.empty() ? "" : ",") + each;
      }
    }
    Trouble trouble{.newcomers = schedule.newcomers, .machine = &machine, .runs_at_launch = true};
    for (int rank = 0; rank < ranks; ++rank)
      trouble.host_of[rank] = &processes[static_cast<std::size_t>(rank)];
    std::map<int, LateWorld*> worlds;  // by rank
    // What a dead process still does while its threads unwind has not happened.
    trouble.before_death = [&](int rank) {
      processes[static_cast<std::size_t>(rank)].inject({.for_ever = true});
      worlds.at(rank)->die();
    };
    trouble.dies = [&](int rank) {
      return dying.contains(rank) && processes[static_cast<std::size_t>(rank)].failure_count() > 0;
    };
    trouble.connect = [&](std::unique_ptr<ShrinkingWorld> world, int rank) {
      DrawLateness draw_us;
      if (schedule.message_us > 0)
        draw_us = [stream = RandomStream(seed, static_cast<std::uint64_t>(rank)), next = std::uint64_t{0},
                   most_us = static_cast<double>(schedule.message_us)]() mutable {
          return static_cast<std::int64_t>(stream.uniform(next++) * most_us);
        };
      auto late = std::make_unique<LateWorld>(std::move(world), machine, std::move(draw_us));
      worlds[rank] = late.get();
      return late;
    };
    std::vector<std::string> overrides = {fmt::format("training.steps={}", steps),
                                          fmt::format("checkpoint.ram_every_steps={}", schedule.ram_every),
                                          fmt::format("checkpoint.every_steps={}", schedule.disk_every),
                                          "checkpoint.replicas=off",
                                          fmt::format("parallel.pipeline={}", schedule.pipeline),
                                          fmt::format("elastic.spares={}", schedule.spares)};
    if (schedule.newcomers > 0) {
      overrides.emplace_back("elastic.grow_after=0s");
      overrides.emplace_back("elastic.memory_timeout=0s");
    }
    std::vector<std::optional<RunEnd>> ends =
        train_all({.run = run, .ranks = schedule.ranks, .overrides = overrides, .faults = faults}, trouble);
    machine.wait_for_all();  // what a rank has left behind knows its process
    return ends;
  }

  // `text`: disk.OPERATION@N:RANK=EIO, =EIO:ever or =EIO:dies
  static int rank_of(const std::string& text) {
    return std::stoi(text.substr(text.find(':', text.find('@')) + 1));
  }
  void fail_disk(const std::string& text, const std::string& run, std::deque<FaultyEnv>& processes) const {
    static const std::map<std::string, std::optional<Operation>> operations = {
        {"any", std::nullopt},
        {"read", Operation::read},
        {"write", Operation::write},
        {"sync", Operation::sync},
        {"open", Operation::open},
        {"rename", Operation::rename},
        {"remove", Operation::remove},
        {"read_text", Operation::read_text},
        {"sync_directory", Operation::sync_directory},
        {"append_line", Operation::append_line},
        {"allocate", Operation::allocate}};
    const std::size_t at = text.find('@'), colon = text.find(':', at), equals = text.find('=');
    ASSERT_TRUE(at != std::string::npos && colon < equals && equals != std::string::npos) << text;
    const auto operation = operations.find(text.substr(5, at - 5));
    ASSERT_NE(operation, operations.end()) << text;
    const auto rank = static_cast<std::size_t>(rank_of(text));
    ASSERT_LT(rank, processes.size()) << text;
    processes[rank].inject({.operation = operation->second,
                            .path_contains = run + "/",
                            .at = std::stoull(text.substr(at + 1)),
                            .for_ever = text.ends_with(":ever") || text.ends_with(":dies")});
  }

  void lose_ram(const std::string& run) const {
    const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(run)}.run_id());
    if (id.ok()) static_cast<void>(remove_snapshots(posix_env(), digest_of(*id)).ok());
  }

  // Another bit in the middle of a shard of the newest checkpoint, if there is an older one: a run without any that is
  // whole ends for a person.
  void damage_newest(const std::string& run) const {
    const Result<std::vector<std::string>> steps =
        posix_env().list(checkpoint_names::checkpoints(run_directory(run)));
    if (!steps.ok() ||
        std::ranges::count_if(*steps, [](const std::string& name) { return name.starts_with("step-"); }) < 2)
      return;
    const Result<std::optional<FoundCheckpoint>> found = find_checkpoint(posix_env(), run_directory(run));
    if (!found.ok() || !found->has_value()) return;
    const std::string directory = (*found)->checkpoint.directory();
    const Result<std::vector<std::string>> names = posix_env().list(directory);
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) {
      if (!name.ends_with(".hfs")) continue;
      std::fstream file(directory + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(0, std::ios::end);
      const std::streamoff middle = file.tellg() / 2;
      file.seekg(middle);
      const char byte = static_cast<char>(file.get() ^ 4);
      file.seekp(middle);
      file.put(byte);
      return;
    }
  }

  std::string reference_;
  int played_ = 0;
};

// Every schedule that was once wrong.
TEST_F(RunSchedules, KnownOnesComeToTheirEndWithTheSameBits) {
  std::ifstream known(HF_SOURCE_DIR "/tests/sim/schedules.txt");
  int count = 0;
  for (std::string line; std::getline(known, line);) {
    if (line.empty() || line.front() == '#') continue;
    const Result<RunSchedule> schedule = parse_schedule(line);
    ASSERT_TRUE(schedule.ok()) << schedule.error().message;
    EXPECT_EQ(schedule->text(), line);
    EXPECT_EQ(play(*schedule, 1).wrong, "") << line;
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST_F(RunSchedules, TheSameSeedIsTheSameRun) {
  for (const std::uint64_t seed : {3, 4, 5}) {
    const RunSchedule schedule = draw_schedule(seed, {});
    const Played once = play(schedule, seed), twice = play(schedule, seed);
    EXPECT_EQ(once.switches, twice.switches) << schedule.text();
    EXPECT_EQ(once.seen, twice.seen) << schedule.text();
  }
}

TEST_F(RunSchedules, RandomOnesComeToTheirEndWithTheSameBits) {
  if (const char* const text = std::getenv("HOLDFAST_TEST_SCHEDULE"); text != nullptr) {
    const Result<RunSchedule> schedule = parse_schedule(text);
    ASSERT_TRUE(schedule.ok()) << schedule.error().message;
    const Played played = play(*schedule, 1);
    EXPECT_EQ(played.wrong, "");
    fmt::print("{} starts, {} deaths, {} s of the simulated clock\n", played.starts, played.deaths,
               played.virtual_s);
    return;
  }
  play_seeds(seeds_to_play({}));
}

TEST_F(RunSchedules, MoreRandomOnes) {
  if (std::getenv("HOLDFAST_TEST_SCHEDULE") == nullptr)
    play_seeds(seeds_to_play({.first = 201, .last = 2'000}));
}

}  // namespace
}  // namespace holdfast::test
