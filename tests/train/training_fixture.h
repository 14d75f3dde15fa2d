// A whole training run inside a test: small data, a small model, D ranks as threads, from config text to
// digest lines.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/find_checkpoint.h"
#include "checkpoint/store.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/json.h"
#include "runtime/elastic/train_run.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/state_digest.h"
#include "tests/support/arrivals_communicator.h"
#include "tests/support/faulty_env.h"
#include "tests/support/local_disk_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {

// Asks for a stop at the `steps`-th question (the trainer asks once a step); 0 = never.
class StopAfterSteps final : public StopSource {
 public:
  explicit StopAfterSteps(int steps) : steps_(steps) {}
  bool stop_requested() override { return ++asked_ == steps_; }

 private:
  int steps_;
  int asked_ = 0;
};

// A rank of a run whose data can be read up to some sample: begun with the event of its start, so that what
// was read before that does not count.
class EndingDataEnv final : public ForwardingEnv {
 public:
  EndingDataEnv(Env& inner, FaultyEnv& files, std::uint64_t samples)
      : ForwardingEnv(inner), files_(files), samples_(samples) {}
  Result<void> append_line(const std::string& path, std::string_view line) override {
    if (line.starts_with("{\"event\":\"start\"")) {
      files_.inject({.operation = Operation::read,
                     .path_contains = "train.txt",
                     .at = samples_ + 1,
                     .for_ever = true,
                     .reason = EACCES});
    }
    return inner().append_line(path, line);
  }

 private:
  FaultyEnv& files_;
  std::uint64_t samples_;
};

class TrainingTest : public testing::Test {
 protected:
  TrainingTest() {
    std::string text;
    for (int i = 0; text.size() < 20'000; ++i) {
      text += fmt::format("line {} says {:x} and {};\n", i, i * 7919,
                          std::string(static_cast<std::size_t>(i % 23), 'a'));
    }
    EXPECT_TRUE(posix_env().replace_text(directory_ / "train.txt", text).ok());
    EXPECT_TRUE(posix_env().replace_text(directory_ / "valid.txt", text.substr(0, 4000)).ok());
  }

  std::string run_directory(const std::string& name) const { return directory_ / name; }

  // Lines of `overrides` are "section.key=value".
  struct Launch {
    std::string run = {};  // name of the run directory
    int ranks = 1;
    int stop_after_steps = 0;
    std::vector<std::string> overrides = {};
    // Names the host of each rank, as NAME or "NAME@MACHINE"; none: all are on this one.
    std::vector<std::string> hosts = {};
    // The disk of each rank, where the run directory is local to each (on_disk()); none: all share it.
    std::vector<std::string> disks = {};
    std::string faults = {};  // as HOLDFAST_FAULTS
    // Rank 0 cannot read its data from this step on, so that all ranks agree in it to end; 0 = it can.
    int data_ends_in_step = 0;
    ArrivalsCommunicator::Happens on_arrival = {};  // of a message at a rank
  };

  std::string config_text(const Launch& launch) const {
    return fmt::format(
        "threads = 1\n"
        "[run]\ndirectory = \"{0}/{1}\"\n"
        "[model]\nlayers = 2\nheads = 4\nkv_heads = 2\nwidth = 32\nfeed_forward = 64\n"
        "[data]\nsources = [{{ path = \"{0}/train.txt\" }}]\n"
        "[training]\nsteps = 20\nsequence_length = 24\nmicrobatch_size = 2\n"
        "[parallel]\nlanes = 4\ntimeout = 60\n"
        "[optimizer]\nlearning_rate = 1e-2\nwarmup_steps = 5\n"
        "[evaluation]\nevery_steps = 10\nsources = [{{ path = \"{0}/valid.txt\" }}]\nbatches = 3\n"
        "[checkpoint]\nevery_steps = 0\nram_every_steps = 0\n"
        "[log]\nevery_steps = 1000\n",
        directory_.path(), launch.run);
  }

  static void move_to(FaultyEnv& env, const std::string& host) {
    const std::size_t mark = host.find('@');
    env.move_to_host(host.substr(0, mark));
    if (mark != std::string::npos) env.move_to_machine(host.substr(mark + 1));
  }

  // Of rank 0, with the lanes and microbatches of config_text().
  static std::uint64_t samples_before(const Launch& launch) {
    constexpr int lanes = 4, samples_of_lane = 2;
    if (launch.data_ends_in_step == 0) return 0;
    EXPECT_EQ(lanes % launch.ranks, 0) << "else ranks have other shares";
    return static_cast<std::uint64_t>((launch.data_ends_in_step - 1) * (lanes / launch.ranks) *
                                      samples_of_lane);
  }

  static std::string on_disk(const std::string& disk, const std::string& run) {
    return fmt::format("disks/{}/{}", disk, run);
  }

  // Runs it on all ranks; every rank must end the same way.
  RunEnd train(const Launch& launch, Env& machine = posix_env()) {
    std::vector<std::string> arguments;
    for (const std::string& line : launch.overrides) arguments.push_back("--" + line);
    const Result<std::vector<Override>> overrides = parse_overrides(arguments);
    EXPECT_TRUE(overrides.ok());
    std::vector<RunEnd> ends(static_cast<std::size_t>(launch.ranks));
    const Result<void> joined = run_local_ranks(launch.ranks, [&](Communicator& connected) -> Result<void> {
      std::optional<ArrivalsCommunicator> watched;
      if (launch.on_arrival) watched.emplace(connected, launch.on_arrival);
      Communicator& communicator = watched ? static_cast<Communicator&>(*watched) : connected;
      FaultyEnv rank_env(machine);
      if (!launch.hosts.empty())
        move_to(rank_env, launch.hosts[static_cast<std::size_t>(communicator.rank())]);
      const bool data_ends = communicator.rank() == 0 && launch.data_ends_in_step > 0;
      EndingDataEnv ending_env(rank_env, rank_env, samples_before(launch));
      Env& machine_env = data_ends ? static_cast<Env&>(ending_env) : rank_env;
      const std::string disk =
          launch.disks.empty() ? "" : launch.disks[static_cast<std::size_t>(communicator.rank())];
      LocalDiskEnv local_env(machine_env, run_directory(launch.run),
                             run_directory(on_disk(disk, launch.run)));
      Env& env = disk.empty() ? machine_env : local_env;
      HF_TRY(const std::unique_ptr<FaultPoints> faults,
             FaultPoints::parse(launch.faults, communicator.rank(), env));
      StopAfterSteps stop(communicator.rank() == 0 ? launch.stop_after_steps : 0);
      const Result<LoadedConfig> config = load_config_text(env, config_text(launch), "test.toml", *overrides);
      ends[static_cast<std::size_t>(communicator.rank())] =
          train_run({{.env = env, .faults = *faults, .communicator = communicator},
                     {.build = "test",
                      .place = {.rank_on_host = communicator.rank()},
                      .started_ns = env.monotonic_ns()},
                     stop,
                     config});
      return {};
    });
    EXPECT_TRUE(joined.ok());
    for (const RunEnd& end : ends) EXPECT_EQ(end.code, ends.front().code) << end.message;
    return ends.front();
  }

  // The five lines of `holdfast digest`.
  std::string digest(const std::string& run) const {
    Result<std::optional<FoundCheckpoint>> found = find_checkpoint(posix_env(), run_directory(run));
    if (!found.ok() || !found->has_value()) return "no checkpoint in " + run;
    const Result<StateDigest> state = digest_checkpoint((*found)->checkpoint);
    return state.ok() ? to_text(*state) : state.error().message;
  }

  TemporaryDirectory directory_;
};

// Trains the same run in several layouts.
class SameBitsTest : public TrainingTest {
 protected:
  // Trains `launch` and expects the digest of the undisturbed single-rank run with the same overrides.
  void expect_same_bits(const Launch& launch, const std::vector<std::string>& what) {
    Launch reference{.run = "reference", .overrides = what};
    if (reference_digest_.empty()) {
      const RunEnd alone = train(reference);
      ASSERT_EQ(alone.code, ExitCode::done) << alone.message;
      reference_digest_ = digest("reference");
      ASSERT_TRUE(reference_digest_.starts_with("step ")) << reference_digest_;
    }
    Launch other = launch;
    other.overrides.insert(other.overrides.end(), what.begin(), what.end());
    const RunEnd end = train(other);
    ASSERT_EQ(end.code, ExitCode::done) << end.message;
    EXPECT_EQ(digest(other.run), reference_digest_) << other.ranks << " ranks";
    EXPECT_EQ(evaluations(other.run), evaluations("reference")) << other.ranks << " ranks";
  }

  // The held-out losses by step; what was evaluated again counts once.
  std::map<std::uint64_t, double> evaluations(const std::string& run) const {
    std::map<std::uint64_t, double> losses;
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line);
      if (event["event"] == "evaluation") losses[event["step"]] = event["loss"];
    }
    return losses;
  }

  std::string reference_digest_;
};

}  // namespace holdfast::test
