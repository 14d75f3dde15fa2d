// Runs whose ranks keep replicas of each other's RAM snapshots: what a lost host, damaged slots and a bad
// network cost them.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <functional>
#include <set>
#include <utility>

#include "checkpoint/ram_tier.h"
#include "checkpoint/transfer.h"
#include "runtime/core/json.h"
#include "tests/support/faulty_network.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

// As FaultyEnv::move_to_host names it.
Digest digest_of_host(const std::string& name) {
  FaultyEnv env(posix_env());
  env.move_to_host(name);
  return digest_of(env.host_id());
}

// Once the log has a line with the mark, no data can be read.
class DyingEnv final : public ForwardingEnv {
 public:
  DyingEnv(Env& inner, FaultyEnv& files, std::string mark)
      : ForwardingEnv(inner), files_(files), mark_(std::move(mark)) {}
  Result<void> append_line(const std::string& path, std::string_view line) override {
    const bool marked = line.find(mark_) != std::string_view::npos;
    if (marked && !std::exchange(dead_, true)) {
      files_.inject(
          {.operation = Operation::read, .path_contains = "train.txt", .for_ever = true, .reason = EACCES});
    }
    return inner().append_line(path, line);
  }

 private:
  FaultyEnv& files_;
  std::string mark_;
  bool dead_ = false;  // rank 0 alone writes lines
};

class ReplicaTest : public TrainingTest {
 protected:
  ~ReplicaTest() override {
    for (const std::string& run : runs_)
      static_cast<void>(remove_snapshots(posix_env(), digest_of_run(run)).ok());
  }
  Digest digest_of_run(const std::string& run) const {
    const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(run)}.run_id());
    return digest_of(id.ok() ? *id : "none");
  }
  static Launch launch(const std::string& run, std::vector<std::string> hosts, const std::string& replicas) {
    return {.run = run,
            .ranks = static_cast<int>(hosts.size()),
            .overrides = {"checkpoint.ram_every_steps=2", "checkpoint.replicas=" + replicas},
            .hosts = std::move(hosts)};
  }
  // What goes on in the background has time, on busy machines, too.
  static std::string slow_steps() {
    std::string faults;
    for (int step = 4; step <= 20; ++step)
      faults += fmt::format("{}step.begin@{}=sleep:200", step == 4 ? "" : ",", step);
    return faults;
  }
  // Ends as a run does whose data cannot be read, when the first snapshot is confirmed; else behind step 12.
  void train_and_die(Launch launch, bool with_replicas = true) {
    FaultyEnv files(posix_env());
    DyingEnv machine(files, files, with_replicas ? "\"event\":\"snapshot\"" : "\"step\":12,");
    if (with_replicas) launch.faults = slow_steps();
    launch.overrides.emplace_back("data.prefetch_microbatches=1");  // what was read before is soon used up
    runs_.push_back(launch.run);
    testing::internal::CaptureStderr();
    const RunEnd end = train(launch, machine);
    static_cast<void>(testing::internal::GetCapturedStderr());
    ASSERT_EQ(end.code, ExitCode::communication);
    const std::vector<Json> confirmed = events(launch.run, "snapshot");
    confirmed_step_ = confirmed.empty() ? 0 : confirmed.back()["step"].get<int>();
  }
  // To its end; how it says that it has resumed.
  std::string resume(const Launch& launch) {
    testing::internal::CaptureStderr();
    const RunEnd end = train(launch);
    reported_ = testing::internal::GetCapturedStderr();
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    std::string resumed = "not";
    for (const Json& event : events(launch.run, "start")) {
      if (event.contains("resumed_from")) {
        resumed = fmt::format("{} {}", event["resumed_from"].get<std::string>(),
                              event["resumed_from_step"].get<int>());
      }
    }
    EXPECT_EQ(remove_snapshots(posix_env(), digest_of_run(launch.run))->count, 0u) << "left behind";
    return resumed;
  }
  // It went on from the newest snapshot that was confirmed when it died, or from a newer one that was whole.
  void expect_no_loss(const std::string& resumed) const {
    ASSERT_GT(confirmed_step_, 0);
    ASSERT_THAT(resumed, testing::StartsWith("ram "));
    EXPECT_GE(std::stoi(resumed.substr(4)), confirmed_step_);
  }
  std::vector<Json> events(const std::string& run, const std::string& name) const {
    std::vector<Json> found;
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      if (Json event = Json::parse(line); event["event"] == name) found.push_back(std::move(event));
    }
    return found;
  }
  // All that is in shared memory of a run, whatever host it says to be of.
  struct Slot {
    std::string name;
    SnapshotIdentity identity;
    bool replica = false;
  };
  std::vector<Slot> slots(const std::string& run) const {
    std::vector<Slot> found;
    for (const char* host : {"a", "b", "c"}) {
      FaultyEnv env(posix_env());
      env.move_to_host(host);
      for (const FoundSnapshot& each : list_snapshots(env, digest_of_run(run)))
        found.push_back({each.name, each.identity, each.name.find("-replica-") != std::string::npos});
    }
    return found;
  }
  std::size_t count_replicas(const std::string& run) const {
    return static_cast<std::size_t>(std::ranges::count_if(slots(run), &Slot::replica));
  }
  void remove_if(const std::string& run, const std::function<bool(const Slot&)>& lost) {
    for (const Slot& slot : slots(run)) {
      if (!lost(slot)) continue;
      ASSERT_TRUE(posix_env().remove_shared_memory(slot.name).ok());
    }
  }
  void damage_if(const std::string& run, const std::function<bool(const Slot&)>& hit) {
    for (const Slot& slot : slots(run)) {
      if (!hit(slot)) continue;
      Result<std::unique_ptr<SharedMemory>> memory = posix_env().open_shared_memory(slot.name);
      ASSERT_TRUE(memory.ok());
      (*memory)->bytes()[4100] ^= std::byte{4};
    }
  }
  std::string reference() {
    EXPECT_EQ(train({.run = "reference"}).code, ExitCode::done);
    return digest("reference");
  }

  std::vector<std::string> runs_;
  int confirmed_step_ = 0;  // of the run that died last; 0: none was
  std::string reported_;
};

TEST_F(ReplicaTest, AreKeptWhereTheyAreAskedFor) {
  struct Case {
    std::string replicas;
    std::vector<std::string> hosts;
    bool kept;
  };
  const std::vector<Case> cases = {{"auto", {"a", "a"}, false}, {"auto", {"a", "b"}, true},
                                   {"on", {"a", "a"}, true},    {"off", {"a", "b"}, false},
                                   {"on", {"a"}, false},        {"on", {"a", "b", "b"}, true}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string run = fmt::format("kept-{}", i);
    train_and_die(launch(run, cases[i].hosts, cases[i].replicas), cases[i].kept);
    EXPECT_EQ(count_replicas(run) > 0, cases[i].kept) << i;
    EXPECT_EQ(events(run, "snapshot").empty(), !cases[i].kept) << i;
    EXPECT_THAT(events(run, "fault"), testing::IsEmpty());
    for (const Slot& slot : slots(run)) {
      const std::string source = cases[i].hosts[slot.identity.rank];
      const bool crossed = slot.identity.host != digest_of_host(source);
      EXPECT_EQ(crossed, slot.replica && cases[i].hosts.back() != cases[i].hosts.front()) << slot.name;
    }
  }
}

TEST_F(ReplicaTest, ALostHostCostsNothingThatWasConfirmed) {
  const std::string end = reference();
  const Launch two_hosts = launch("lost", {"a", "b"}, "auto");
  train_and_die(two_hosts);
  remove_if("lost", [](const Slot& slot) { return slot.identity.host == digest_of_host("b"); });
  expect_no_loss(resume(launch("lost", {"a", "a"}, "auto")));
  EXPECT_EQ(digest("lost"), end);
}

// Whichever ranks were on it: the launcher may be on another machine than rank 0.
TEST_F(ReplicaTest, TheHostOfRank0MayBeTheOneThatIsLost) {
  const std::string end = reference();
  const std::vector<std::vector<std::string>> hosts = {{"c", "b"}, {"c", "c", "b"}};
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const std::string run = fmt::format("first-{}", i);
    train_and_die(launch(run, {"a", "b"}, "auto"));
    remove_if(run, [](const Slot& slot) { return slot.identity.host == digest_of_host("a"); });
    expect_no_loss(resume(launch(run, hosts[i], "auto")));
    EXPECT_EQ(digest(run), end);
  }
}

// Another host takes its place, or none does; other numbers of ranks need other parts.
TEST_F(ReplicaTest, PartsGoWhereTheyAreNeeded) {
  const std::string end = reference();
  const std::vector<std::vector<std::string>> hosts = {{"a", "c"}, {"a", "c", "c"}, {"a"}};
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const std::string run = fmt::format("replaced-{}", i);
    train_and_die(launch(run, {"a", "b"}, "auto"));
    remove_if(run, [](const Slot& slot) { return slot.identity.host == digest_of_host("b"); });
    expect_no_loss(resume(launch(run, hosts[i], "auto")));
    EXPECT_EQ(digest(run), end);
  }
}

TEST_F(ReplicaTest, OfAnotherHostStandForDamagedSlots) {
  const std::string end = reference();
  const Launch run = launch("across", {"a", "b"}, "auto");
  train_and_die(run);
  damage_if("across",
            [](const Slot& slot) { return slot.identity.host == digest_of_host("a") && !slot.replica; });
  expect_no_loss(resume(run));
  EXPECT_THAT(reported_,
              HasSubstr("wrong checksum; it is skipped; the replica of its rank's snapshot is sound"));
  EXPECT_EQ(digest("across"), end);
}

TEST_F(ReplicaTest, StandForSlotsThatAreMissing) {
  const std::string end = reference();
  const Launch run = launch("missing", {"a", "a"}, "on");
  train_and_die(run);
  remove_if("missing", [](const Slot& slot) { return slot.identity.rank == 1 && !slot.replica; });
  expect_no_loss(resume(run));
  EXPECT_EQ(digest("missing"), end);
}

TEST_F(ReplicaTest, StandForSlotsThatAreDamaged) {
  const std::string end = reference();
  const Launch run = launch("damaged", {"a", "a"}, "on");
  train_and_die(run);
  damage_if("damaged", [](const Slot& slot) { return slot.identity.rank == 1 && !slot.replica; });
  expect_no_loss(resume(run));
  EXPECT_THAT(reported_,
              HasSubstr("wrong checksum; it is skipped; the replica of its rank's snapshot is sound"));
  EXPECT_EQ(digest("damaged"), end);
}

TEST_F(ReplicaTest, DamagedAsTheirSlotsAreTheyAreNotUsed) {
  const std::string end = reference();
  const Launch run = launch("both", {"a", "a"}, "on");
  train_and_die(run);
  damage_if("both", [](const Slot& slot) { return slot.identity.rank == 1; });
  EXPECT_EQ(resume(run), "not") << "nothing is on the disk";
  EXPECT_THAT(reported_, HasSubstr("RAM snapshot skipped"));
  EXPECT_EQ(digest("both"), end);
}

// A run that chooses how often to make snapshots does so when the first has its replicas, not when it is
// copied: the sending takes its time from the steps, too.
TEST_F(ReplicaTest, TheirCostCountsForTheInterval) {
  Launch run = launch("measured", {"a", "b"}, "on");
  run.overrides.emplace_back("checkpoint.ram_every_steps=auto");
  run.overrides.emplace_back("training.steps=40");
  run.faults = slow_steps() + ",replica.before_send=sleep:300";
  runs_.push_back(run.run);
  ASSERT_EQ(train(run).code, ExitCode::done);
  const std::vector<Json> confirmed = events("measured", "snapshot"), chosen = events("measured", "interval");
  ASSERT_FALSE(confirmed.empty());
  ASSERT_FALSE(chosen.empty());
  EXPECT_GE(chosen[0]["time_us"], confirmed[0]["time_us"]);
}

TEST_F(ReplicaTest, ABadNetworkIsToldAndHoldsNothingUp) {
  const std::string end = reference();
  FaultyNetworkEnv machine(posix_env());
  machine.network().inject({.kind = NetworkFault::Kind::cut, .at = 1000});
  Launch run = launch("unreachable", {"a", "b"}, "auto");
  run.faults = slow_steps();
  runs_.push_back(run.run);
  testing::internal::CaptureStderr();
  const RunEnd run_end = train(run, machine);
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(run_end.code, ExitCode::done) << run_end.message;
  EXPECT_EQ(digest("unreachable"), end);
  const std::vector<Json> faults = events("unreachable", "fault");
  ASSERT_EQ(faults.size(), 1u) << reported;
  EXPECT_EQ(faults[0]["what"].get<std::string>(), "replica");
  EXPECT_THAT(
      faults[0]["reason"].get<std::string>(),
      testing::ContainsRegex("rank [01] \\([ab]\\): its buddy, rank [01] \\(host [ab]\\), could not be "
                             "given it: cannot send to .* port [0-9]+: Broken pipe"));
  EXPECT_THAT(reported, HasSubstr("has not all its replicas: "));
  EXPECT_THAT(reported, HasSubstr("has all its replicas again"));
  EXPECT_GT(events("unreachable", "snapshot").size(), 0u);
}

// The keeper never hears the end of it, and the run does not wait for it, at its end neither.
TEST_F(ReplicaTest, ABuddyThatHangsHoldsNothingUp) {
  const std::string end = reference();
  FaultyNetworkEnv machine(posix_env());
  machine.network().inject({.kind = NetworkFault::Kind::swallow, .at = 5000});
  Launch run = launch("hanging", {"a", "b"}, "auto");
  run.overrides.emplace_back("checkpoint.every_steps=7");
  runs_.push_back(run.run);
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  const RunEnd run_end = train(run, machine);
  const std::int64_t deadline_ns = TransferLimits{}.part_timeout_ms * 1'000'000;
  EXPECT_LT(posix_env().monotonic_ns() - begin_ns, deadline_ns) << "less than a deadline of the transfer";
  EXPECT_EQ(run_end.code, ExitCode::done) << run_end.message;
  EXPECT_EQ(digest("hanging"), end);
  EXPECT_TRUE(events("hanging", "snapshot").empty());
  EXPECT_EQ(events("hanging", "checkpoint").size(), 3u) << "the disk has what it was asked for";
}

// A network in which a host has many addresses and answers at none.
class SilentNetwork final : public Network {
 public:
  Result<std::unique_ptr<Listener>> listen(const std::string& address) override {
    return posix_network().listen(address);
  }
  Result<std::vector<std::string>> own_addresses(const std::string&) override {
    return std::vector<std::string>(20, "192.0.2.1");
  }
  bool wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) override {
    return posix_network().wait_any_readable(sockets, timeout_ms);
  }
  Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) override {
    return fail(ExitCode::communication, "cannot connect to {}: no answer", address.host);
  }
  std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) override {
    return posix_network().find_readable(sockets);
  }

 private:
  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address, std::int64_t timeout_ms,
                                                      const std::atomic<bool>* stopped) override {
    const std::int64_t end_ns = posix_env().monotonic_ns() + timeout_ms * 1'000'000;
    while (posix_env().monotonic_ns() < end_ns && (stopped == nullptr || !*stopped))
      posix_env().sleep_us(1'000);
    return fail(ExitCode::communication, "cannot connect to {}: no answer", address.host);
  }
};

class SilentNetworkEnv final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;
  Network& network() override { return network_; }

 private:
  SilentNetwork network_;
};

TEST_F(ReplicaTest, ABuddyThatAnswersAtNoAddressHoldsNothingUp) {
  SilentNetworkEnv machine(posix_env());
  Launch run = launch("silent", {"a", "b"}, "auto");
  runs_.push_back(run.run);
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  const RunEnd run_end = train(run, machine);
  constexpr std::int64_t all_addresses_ns = 20 * 3'000'000'000;
  EXPECT_LT(posix_env().monotonic_ns() - begin_ns, all_addresses_ns / 4);
  EXPECT_EQ(run_end.code, ExitCode::done) << run_end.message;
  EXPECT_TRUE(events("silent", "snapshot").empty());
}

// A snapshot whose replica is still on its way is no reason to give up the one that the run resumed from.
TEST_F(ReplicaTest, OldOnesStayWhileNoNewerOneIsConfirmed) {
  train_and_die(launch("waits", {"a", "b"}, "auto"));
  FaultyNetworkEnv network(posix_env());
  network.network().inject({.kind = NetworkFault::Kind::swallow, .at = 5000});
  FaultyEnv files(network);
  DyingEnv machine(files, files, "\"step\":16,");
  Launch run = launch("waits", {"a", "b"}, "auto");
  run.faults = slow_steps();
  run.overrides.emplace_back("data.prefetch_microbatches=1");
  testing::internal::CaptureStderr();
  const RunEnd end = train(run, machine);
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(end.code, ExitCode::communication) << reported;
  const std::vector<Json> starts = events("waits", "start");
  ASSERT_EQ(starts.size(), 2u);
  ASSERT_EQ(starts[1]["resumed_from"].get<std::string>(), "ram");
  const auto resumed = starts[1]["resumed_from_step"].get<std::uint64_t>();
  std::set<std::uint32_t> parts;
  for (const Slot& slot : slots("waits")) {
    if (slot.identity.step == resumed) parts.insert(slot.identity.rank);
  }
  EXPECT_THAT(parts, testing::ElementsAre(0u, 1u));
}

// While the replica of a newer snapshot is on its way, checkpoints go on needing slots: they take turns in
// the one that is left.
TEST_F(ReplicaTest, TheConfirmedOneIsNotWrittenOver) {
  Launch run = launch("turns", {"a", "b"}, "auto");
  run.faults = slow_steps() + ",replica.before_send@2=sleep:3000";
  run.overrides.emplace_back("checkpoint.every_steps=2");
  train_and_die(run, /*with_replicas=*/false);
  ASSERT_GT(confirmed_step_, 0);
  ASSERT_GE(events("turns", "checkpoint").size(), 4u);
  std::set<std::uint32_t> parts;
  for (const Slot& slot : slots("turns")) {
    const bool confirmed = slot.identity.step == static_cast<std::uint64_t>(confirmed_step_);
    if (confirmed && !slot.replica) parts.insert(slot.identity.rank);
  }
  EXPECT_THAT(parts, testing::ElementsAre(0u, 1u));
}

// Rank 1 is on the host of the damaged slot, and does not look into it, because it needs nothing of it.
TEST_F(ReplicaTest, AnotherRankOfTheHostIsNotAskedForADamagedSlot) {
  const std::string end = reference();
  const Launch run = launch("beside", {"a", "a", "b"}, "auto");
  train_and_die(run);
  damage_if("beside", [](const Slot& slot) { return slot.identity.rank == 0 && !slot.replica; });
  expect_no_loss(resume(run));
  EXPECT_EQ(digest("beside"), end);
}

TEST_F(ReplicaTest, NoRoomForThemIsTold) {
  const std::string end = reference();
  FaultyEnv machine(posix_env());
  machine.inject(
      {.operation = Operation::create_shared_memory, .path_contains = "00001-replica-1", .reason = ENOSPC});
  const Launch run = launch("small", {"a", "b"}, "auto");
  runs_.push_back(run.run);
  testing::internal::CaptureStdout();
  const RunEnd run_end = train(run, machine);
  const std::string reported = testing::internal::GetCapturedStdout();
  EXPECT_EQ(run_end.code, ExitCode::done) << run_end.message;
  EXPECT_THAT(reported,
              HasSubstr("no replicas of RAM snapshots: rank 0 (a): cannot create the shared memory"));
  EXPECT_EQ(digest("small"), end);
}

}  // namespace
}  // namespace holdfast::test
