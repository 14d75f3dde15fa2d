// Tests who writes a run: a holder whose host is gone, one that is only slow, and locks that keep no other
// host out.
#include "runtime/run/claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <utility>

#include "runtime/run/event_log.h"
#include "runtime/run/run_directory.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/faulty_env.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/memory_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Answer = HolderWatch::Answer;

const RunPaths claimed_run{"/runs/one"};
constexpr std::int64_t second_ns = 1'000'000'000;

Error in_use(const std::string& holder) {
  return fail(ExitCode::communication, "in use by {}", holder);
}

ClaimRecord record_of(const std::string& host_id, std::uint64_t renewals = 0) {
  return {.holder = "host x pid 7", .host_id = host_id, .epoch = 4, .id = "1", .renewals = renewals};
}

TEST(ClaimRecord, ArrivesAsItWasWritten) {
  const ClaimRecord record = record_of("x@m", 12);
  EXPECT_EQ(claim_record_of(to_text(record)), record);
  EXPECT_EQ(claim_record_of(to_text(record) + "claim 2\nepoch 9\n"), record)
      << "the end of a longer one before";
  EXPECT_EQ(to_text(record_of("x@m", 9)).size(), to_text(record_of("x@m", 10'000)).size());
  EXPECT_EQ(claim_record_of("host old pid 5"), ClaimRecord{.holder = "host old pid 5"});
  EXPECT_EQ(claim_record_of(""), ClaimRecord{});
}

struct Look {
  std::int64_t at_s;
  std::uint64_t renewals;
  Answer answer;
};

std::vector<Answer> answers_to(const std::string& host_id, const std::vector<Look>& looks) {
  HolderWatch watch({}, "here@m", 0);
  std::vector<Answer> answers;
  for (const Look& look : looks)
    answers.push_back(watch.look(record_of(host_id, look.renewals), look.at_s * second_ns));
  return answers;
}

TEST(HolderWatch, WaitsForALeaseOnlyWhereTheHostMayBeGone) {
  struct Case {
    const char* holder;
    std::string host_id;
    std::vector<Look> looks;
  };
  const std::vector<Case> cases = {
      {"silent elsewhere",
       "there@m",
       {{0, 1, Answer::wait}, {10, 1, Answer::wait}, {19, 1, Answer::wait}, {20, 1, Answer::take_over}}},
      {"renews elsewhere",
       "there@m",
       {{0, 1, Answer::wait}, {3, 2, Answer::wait}, {9, 5, Answer::wait}, {10, 5, Answer::refuse}}},
      {"dies while it is waited for",
       "there@m",
       {{0, 1, Answer::wait},
        {2, 2, Answer::wait},
        {10, 2, Answer::wait},
        {21, 2, Answer::wait},
        {22, 2, Answer::take_over}}},
      {"another boot of this host", "here@before", {{0, 1, Answer::wait}, {20, 1, Answer::take_over}}},
      {"silent here", "here@m", {{0, 1, Answer::wait}, {9, 1, Answer::wait}, {10, 1, Answer::refuse}}},
      {"of an older program", "", {{0, 0, Answer::wait}, {9, 0, Answer::wait}, {10, 0, Answer::refuse}}},
  };
  for (const Case& each : cases) {
    std::vector<Answer> expected;
    for (const Look& look : each.looks) expected.push_back(look.answer);
    EXPECT_EQ(answers_to(each.host_id, each.looks), expected) << each.holder;
  }
}

// Files of a cluster whose lock of the run is held for ever, as by the kernel of a host without power; on a
// clock that waiting moves.
class LockedEnv final : public ForwardingEnv {
 public:
  explicit LockedEnv(MemoryEnv& files) : ForwardingEnv(static_cast<Env&>(files)), files_(&files) {}

  std::function<void()> on_look = {};    // of one that waits at the lock
  std::function<void()> on_settle = {};  // of one that has replaced it

  void hold(const ClaimRecord& record) {
    put(record);
    held_ = true;
  }
  void put(const ClaimRecord& record) {
    files_->put_directory(claimed_run.directory);
    static_cast<void>(files_->remove(claimed_run.lock()).ok());
    ASSERT_TRUE(files_->lock(claimed_run.lock(), to_text(record), 0).ok());
  }
  std::int64_t waited_s() const { return now_ns_ / second_ns; }

  Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                         std::int64_t timeout_ms) override {
    if (!held_) return inner().lock(path, content, timeout_ms);
    now_ns_ += timeout_ms * 1'000'000;
    if (on_look) on_look();
    return fail(ExitCode::communication, "{} is locked", path);
  }
  Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                 const std::string& content) override {
    held_ = false;
    return inner().replace_lock(path, content);
  }
  std::string host_name() override { return "here"; }
  std::string machine_id() override { return "m"; }
  std::int64_t monotonic_ns() override { return now_ns_; }
  void sleep_us(std::int64_t microseconds) override {
    now_ns_ += microseconds * 1000;
    if (on_settle) on_settle();
  }

 private:
  MemoryEnv* files_;
  bool held_ = false;
  std::int64_t now_ns_ = 0;
};

Result<std::unique_ptr<Claim>> claim(Env& env, const LeaseTerms& terms = {}) {
  return Claim::take(env, claimed_run.lock(), in_use, terms, /*renews=*/false);
}

TEST(ClaimTest, TheLockOfAHostWithoutPowerIsReplacedAfterTheLease) {
  MemoryEnv files;
  LockedEnv env(files);
  env.hold(record_of("there@m"));
  const Result<std::unique_ptr<Claim>> taken = claim(env);
  ASSERT_TRUE(taken.ok()) << taken.error().message;
  EXPECT_EQ((*taken)->epoch(), 5u);
  EXPECT_EQ(env.waited_s(), 20);
  EXPECT_TRUE((*taken)->check().ok());
}

TEST(ClaimTest, RanksThatHaveAQuorumWaitForAFewRenewals) {
  MemoryEnv files;
  LockedEnv env(files);
  env.hold(record_of("there@m"));
  ASSERT_TRUE(claim(env, recovery_lease).ok());
  EXPECT_EQ(env.waited_s(), 6);
}

TEST(ClaimTest, AHolderThatLivesIsNamed) {
  for (const char* host_id : {"there@m", "here@m", ""}) {
    MemoryEnv files;
    LockedEnv env(files);
    env.hold(record_of(host_id));
    std::uint64_t renewals = 0;
    if (std::string(host_id) == "there@m")
      env.on_look = [&] { env.put(record_of("there@m", ++renewals / 8)); };
    const Result<std::unique_ptr<Claim>> taken = claim(env);
    ASSERT_FALSE(taken.ok()) << host_id;
    EXPECT_EQ(taken.error().code, ExitCode::communication);
    EXPECT_EQ(taken.error().message, "in use by host x pid 7");
    EXPECT_EQ(env.waited_s(), 10) << host_id;
  }
}

TEST(ClaimTest, OfTwoThatTakeOverTheLastOneIsTheWriter) {
  MemoryEnv files;
  LockedEnv env(files);
  env.hold(record_of("there@m"));
  ClaimRecord other{.holder = "host y pid 8", .host_id = "y@m", .epoch = 5, .id = "2", .renewals = 0};
  env.on_settle = [&] {
    env.hold(other);
    env.on_look = [&] {
      ++other.renewals;
      env.hold(other);
    };
  };
  const Result<std::unique_ptr<Claim>> taken = claim(env);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(env.waited_s(), 21);
  EXPECT_EQ(taken.error().message, "in use by host y pid 8");
}

// Stops a writer before it writes a lineage, or before it puts the one that it has written into its place, while
// `meanwhile` happens.
class StoppedAtLineage final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;

  void stop(int at, std::function<void()> meanwhile) {
    left_ = at;
    meanwhile_ = std::move(meanwhile);
  }
  Result<void> replace_text(const std::string& path, const std::string& text) override {
    look_at(path);
    return inner().replace_text(path, text);
  }
  Result<void> rename(const std::string& source, const std::string& target) override {
    look_at(target);
    return inner().rename(source, target);
  }

 private:
  void look_at(const std::string& path) {
    if (path.find("lineage.json") != std::string::npos && --left_ == 0) meanwhile_();
  }

  int left_ = 0;
  std::function<void()> meanwhile_;
};

// Two hosts whose locks do not exclude each other: each a view of the same files.
class TwoHosts : public testing::Test {
 protected:
  TwoHosts() {
    old_host_.move_to_host("a");
    new_host_.move_to_host("b");
    files_.put_directory(claimed_run.directory);
  }
  static Result<void> save_step(Env& env, CheckpointStore& store, std::uint64_t step) {
    return save_checkpoint(env, store, tiny_state(step), manifest_of_step(step), 1);
  }
  std::vector<std::string> visible() {
    const Result<std::vector<std::string>> names = files_.list(claimed_run.directory + "/checkpoints");
    return names.ok() ? *names : std::vector<std::string>();
  }

  MemoryEnv files_;
  FaultyEnv old_host_{files_}, new_host_{files_};
  FaultPoints faults_;
};

TEST_F(TwoHosts, TheOneThatWasReplacedPublishesAndRemovesNothing) {
  const std::unique_ptr<Claim> old_claim = claim(old_host_).value();
  CheckpointStore old_store(old_host_, faults_, claimed_run.directory, 1);
  old_store.fence({.epoch = old_claim->epoch(), .check = old_claim->fence()});
  for (const std::uint64_t step : {1, 2}) HF_ASSERT_OK(save_step(old_host_, old_store, step));
  HF_ASSERT_OK(old_store.begin_save(3));  // and is not heard of for a while

  const std::unique_ptr<Claim> new_claim = claim(new_host_).value();
  EXPECT_GT(new_claim->epoch(), old_claim->epoch());
  CheckpointStore new_store(new_host_, faults_, claimed_run.directory, 2);
  new_store.fence({.epoch = new_claim->epoch(), .check = new_claim->fence()});
  HF_ASSERT_OK(new_store.begin_save(2));

  const std::string pending = new_store.pending_directory(2);
  const Result<void> saved = save_step(old_host_, old_store, 4);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().code, ExitCode::communication);
  EXPECT_THAT(saved.error().message, HasSubstr("is written by another start by now (host b pid "));
  EXPECT_TRUE(files_.status(pending)->exists)
      << "what the new writer is about to publish is not the old one's";
  EXPECT_FALSE(old_store.retain(1).ok());
  EXPECT_THAT(visible(), ElementsAre("step-00000001", "step-00000002"));

  HF_ASSERT_OK(save_step(new_host_, new_store, 4));
  EXPECT_THAT(visible(), ElementsAre("step-00000001", "step-00000002", "step-00000004"));
  Result<Checkpoint> checkpoint = Checkpoint::open(files_, new_store.checkpoint_directory(4));
  HF_ASSERT_OK(checkpoint);
  EXPECT_EQ(checkpoint->manifest().epoch, new_claim->epoch());
}

// An old writer that is stopped between its look at the claim and what it does next, while another takes over.
TEST_F(TwoHosts, TheOneThatIsStoppedPutsNoOldLineageOverANewGeneration) {
  const std::string run_id = manifest_of_step(4).run_id;
  for (const int at : {1, 2}) {
    StoppedAtLineage old_env(old_host_);
    const std::unique_ptr<Claim> old_claim = claim_run_directory(old_env, claimed_run).value();
    CheckpointStore old_store(old_env, faults_, claimed_run.directory, 1);
    CheckpointStore new_store(new_host_, faults_, claimed_run.directory, 2);
    old_store.fence({.epoch = old_claim->epoch(), .check = old_claim->fence()});
    std::unique_ptr<Claim> new_claim;
    old_env.stop(at, [&] {
      new_claim = claim_run_directory(new_host_, claimed_run).value();
      new_store.fence({.epoch = new_claim->epoch(), .check = new_claim->fence()});
      EXPECT_TRUE(new_store.record_rollback(run_id, {.parent = {.step = 2}}).ok());
    });
    HF_ASSERT_OK(save_step(old_env, old_store, static_cast<std::uint64_t>(3 + at)));
    ASSERT_NE(new_claim, nullptr) << at;
    const Result<Lineage> lineage = read_lineage(files_, claimed_run.directory);
    HF_ASSERT_OK(lineage);
    EXPECT_EQ(lineage->current(), 1u) << at;
    EXPECT_TRUE(lineage->discards({.generation = 0, .step = static_cast<std::uint64_t>(3 + at)})) << at;
    EXPECT_FALSE(old_store.record_rollback(run_id, {.parent = {.step = 1}}).ok());
    EXPECT_EQ(read_lineage(files_, claimed_run.directory).value(), *lineage);
    HF_ASSERT_OK(write_lineage(files_, claimed_run.directory, {}));
  }
}

TEST_F(TwoHosts, TheOneThatIsStoppedAfterItsLookRemovesNoShardsOfTheOther) {
  const std::unique_ptr<Claim> old_claim = claim_run_directory(old_host_, claimed_run).value();
  CheckpointStore old_store(old_host_, faults_, claimed_run.directory, 1);
  CheckpointStore new_store(new_host_, faults_, claimed_run.directory, 2);
  HF_ASSERT_OK(old_store.begin_save(3));
  std::unique_ptr<Claim> new_claim;
  old_store.fence({.epoch = old_claim->epoch(), .check = [&]() -> Result<void> {
                     const Result<void> seen = old_claim->check();
                     new_claim = claim_run_directory(new_host_, claimed_run).value();
                     new_store.fence({.epoch = new_claim->epoch(), .check = new_claim->fence()});
                     EXPECT_TRUE(new_store.begin_save(5).ok());
                     return seen;
                   }});
  HF_ASSERT_OK(old_store.remove_leftovers());
  EXPECT_TRUE(files_.status(new_store.pending_directory(5))->exists);
  EXPECT_FALSE(files_.status(old_store.pending_directory(3))->exists);
}

// Another takes over while its save is under way: after its shards, and after its manifest.
TEST_F(TwoHosts, AWriterThatIsReplacedInTheMidstOfASavePublishesNothing) {
  for (const int replaced_at : {2, 3}) {  // of its looks; the first is begin_save()'s
    const std::unique_ptr<Claim> old_claim = claim(old_host_).value();
    std::unique_ptr<Claim> new_claim;
    CheckpointStore store(old_host_, faults_, claimed_run.directory, 1);
    int looks = 0;
    store.fence({.epoch = old_claim->epoch(), .check = [&]() -> Result<void> {
                   if (++looks == replaced_at) new_claim = claim(new_host_).value();
                   return old_claim->check();
                 }});
    const Result<void> saved = save_step(old_host_, store, 5);
    ASSERT_FALSE(saved.ok()) << replaced_at;
    EXPECT_EQ(saved.error().code, ExitCode::communication) << replaced_at;
    EXPECT_THAT(visible(), ElementsAre()) << replaced_at;
  }
}

TEST_F(TwoHosts, TheOneThatWasReplacedNoticesWithItsNextRenewal) {
  const std::unique_ptr<Claim> old_claim = claim(old_host_).value();
  HF_ASSERT_OK(old_claim->renew());
  const std::unique_ptr<Claim> new_claim = claim(new_host_).value();
  HF_ASSERT_OK(old_claim->still_held());
  EXPECT_EQ(old_claim->renew().error().code, ExitCode::communication);
  EXPECT_EQ(old_claim->still_held().error().code, ExitCode::communication);
  HF_ASSERT_OK(new_claim->renew());
  HF_ASSERT_OK(new_claim->check());
}

TEST_F(TwoHosts, TheOneThatWasReplacedWritesNoLine) {
  const std::unique_ptr<Claim> old_claim = claim(old_host_).value();
  EventLog log(old_host_, claimed_run.events(), 0, {}, old_claim->loose_fence());
  log.write(EventLine().begin("step", 1));
  old_host_.inject({.operation = Operation::append_line});
  log.write(EventLine().begin("step", 2));  // waits for the disk
  const std::unique_ptr<Claim> new_claim = claim(new_host_).value();
  old_host_.clock_shift_ns = 2 * second_ns;
  log.write(EventLine().begin("step", 3));
  HF_ASSERT_OK(log.flush());
  EXPECT_EQ(files_.text_or_empty(claimed_run.events()), "{\"event\":\"step\",\"time_us\":1}\n");
}

// The monotonic clock of a virtual machine may stand still while it is stopped.
TEST_F(TwoHosts, AHostThatWasStoppedWithItsClockWritesNoLine) {
  const std::unique_ptr<Claim> old_claim = claim(old_host_).value();
  const std::function<bool()> may_write = old_claim->loose_fence();
  ASSERT_TRUE(may_write());
  const std::unique_ptr<Claim> new_claim = claim(new_host_).value();
  old_host_.wall_shift_us = 60'000'000;
  EXPECT_FALSE(may_write());
}

TEST_F(TwoHosts, AFileThatCannotBeReadReplacesNobody) {
  const std::unique_ptr<Claim> old_claim = claim(old_host_).value();
  const std::function<bool()> may_write = old_claim->loose_fence();
  old_host_.inject({.operation = Operation::read_text, .for_ever = true, .reason = ESTALE});
  EXPECT_EQ(old_claim->check().error().code, ExitCode::checkpoint);
  EXPECT_TRUE(may_write());
  old_host_.clear_faults();
  HF_ASSERT_OK(old_claim->check());
  HF_ASSERT_OK(files_.remove(claimed_run.lock()));
  HF_ASSERT_OK(old_claim->check());
}

TEST(ClaimTest, EveryClaimHasAGreaterEpoch) {
  const TemporaryDirectory directory;
  const std::string path = directory / "lock";
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
    FaultyEnv env(posix_env());
    env.move_to_host(epoch == 2 ? "b" : "a");
    const Result<std::unique_ptr<Claim>> taken = Claim::take(env, path, in_use);
    ASSERT_TRUE(taken.ok()) << taken.error().message;
    EXPECT_EQ((*taken)->epoch(), epoch);
    EXPECT_TRUE(posix_env().is_locked(path).value());
  }
  EXPECT_FALSE(posix_env().is_locked(path).value());
}

// The thread renews while the holder does something else.
TEST(ClaimTest, IsRenewedWhileItIsHeld) {
  const TemporaryDirectory directory;
  const std::string path = directory / "lock";
  const std::unique_ptr<Claim> taken = Claim::take(posix_env(), path, in_use).value();
  for (int look = 0; look < 600 && claim_record_of(posix_env().text_or_empty(path)).renewals == 0; ++look)
    posix_env().sleep_us(100'000);
  EXPECT_GE(claim_record_of(posix_env().text_or_empty(path)).renewals, 1u);
  EXPECT_TRUE(taken->check().ok());
}

TEST(RunHolder, IsReadWithoutTakingTheLock) {
  const TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  std::unique_ptr<Claim> taken = claim_run_directory(posix_env(), paths).value();
  const std::string holder = fmt::format("host {} pid {}", posix_env().host_name(), posix_env().process_id());
  EXPECT_EQ(run_holder(posix_env(), paths).value(), holder);
  EXPECT_TRUE(taken->check().ok());
  taken.reset();
  EXPECT_EQ(run_holder(posix_env(), paths).value(), std::nullopt);
}

TEST(RunHolder, IsNotToldWhereTheLockCannotBeOpened) {
  const TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  ASSERT_EQ(mkfifo(paths.lock().c_str(), 0600), 0);
  const Result<std::optional<std::string>> holder = run_holder(posix_env(), paths);
  ASSERT_FALSE(holder.ok());
  EXPECT_EQ(holder.error().code, ExitCode::config);
  EXPECT_THAT(holder.error().message, HasSubstr("cannot be told: cannot open "));
  EXPECT_EQ(claim_run_directory(posix_env(), paths).error().code, ExitCode::config)
      << "nobody waits for ever";
}

}  // namespace
}  // namespace holdfast::test
