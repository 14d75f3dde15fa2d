// Whole runs some of whose ranks die and others come later: threads of this process, whose death ends them
// alone.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>

#include "checkpoint/ram_tier.h"
#include "runtime/core/json.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/local_world.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {

// Death is what a thread dies of where a process would have had SIGKILL.
struct Death {};

// The machine of a rank that can die, on any of its threads; it is made by the thread of the rank, which dies where it
// waits next. What the rank still tries to do to files after its death is the business of `before_death`.
// Threads that outlive the rank, as those that wait for a disk, keep it.
class MortalEnv final : public ForwardingEnv, public std::enable_shared_from_this<MortalEnv> {
 public:
  // `dies`: whether the rank dies where it waits next; empty: it does not.
  MortalEnv(Env& inner, bool damages_snapshots, std::function<void()> before_death,
            std::function<bool()> dies)
      : ForwardingEnv(inner),
        damages_snapshots_(damages_snapshots),
        before_death_(std::move(before_death)),
        dies_(std::move(dies)) {}
  [[noreturn]] void kill_self() override {
    before_death_();
    dead_ = true;
    {
      const std::lock_guard guard(mutex_);
      for (Condition* const each : conditions_) each->notify();
    }
    throw Death{};
  }
  // Whoever looks at what the dead left finds a flipped bit in the first piece of it.
  Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) override {
    HF_TRY(std::unique_ptr<SharedMemory> memory, inner().open_shared_memory(name));
    if (damages_snapshots_ && damaged_.insert(name).second) memory->bytes()[5000] ^= std::byte{4};
    return memory;
  }

  void sleep_us(std::int64_t microseconds) override {
    inner().sleep_us(microseconds);
    end_if_dying();
  }
  void yield() override {
    inner().yield();
    end_if_dying();
  }
  Result<std::unique_ptr<Thread>> start_thread(const std::string& name, std::function<void()> work) override {
    HF_TRY(std::unique_ptr<Thread> thread,
           inner().start_thread(name, [self = shared_from_this(), work = std::move(work)] {
             try {
               work();
             } catch (const Death&) {
             }
           }));
    return std::unique_ptr<Thread>(std::make_unique<MortalThread>(*this, std::move(thread)));
  }
  std::unique_ptr<Condition> make_condition() override {
    return std::make_unique<MortalCondition>(*this, inner().make_condition());
  }

 private:
  class MortalThread final : public Thread {
   public:
    MortalThread(MortalEnv& env, std::unique_ptr<Thread> inner) : env_(env), inner_(std::move(inner)) {}
    // Its work may not have come to its end, so nobody may look at the result.
    void wait() override {
      inner_->wait();
      env_.end_if_dead();
    }
    void leave() override { inner_->leave(); }

   private:
    MortalEnv& env_;
    std::unique_ptr<Thread> inner_;
  };

  // MortalCondition ends the waits of a rank that is dead: nobody is left who would make true what it waits for.
  class MortalCondition final : public Condition {
   public:
    MortalCondition(MortalEnv& env, std::unique_ptr<Condition> inner) : env_(env), inner_(std::move(inner)) {
      const std::lock_guard guard(env_.mutex_);
      env_.conditions_.insert(inner_.get());
    }
    ~MortalCondition() override {
      const std::lock_guard guard(env_.mutex_);
      env_.conditions_.erase(inner_.get());
    }
    MortalCondition(const MortalCondition&) = delete;
    MortalCondition& operator=(const MortalCondition&) = delete;
    void notify() override { inner_->notify(); }
    void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) override {
      inner_->wait(lock, [&] { return env_.ends_here() || done(); });
      env_.end_if_dead();
    }
    bool wait_at_most(std::unique_lock<std::mutex>& lock, std::int64_t timeout_ms,
                      const std::function<bool()>& done) override {
      const bool unwinds = std::uncaught_exceptions() > 0;  // then who waits in a loop sees time pass
      const bool is_done =
          inner_->wait_at_most(lock, timeout_ms, [&] { return (!unwinds && env_.ends_here()) || done(); });
      env_.end_if_dead();
      return is_done;
    }

   private:
    MortalEnv& env_;
    std::unique_ptr<Condition> inner_;
  };

  // The thread of the rank unwinds, and ends the others on its way, as at the end of a run.
  bool ends_here() const { return dead_ && std::this_thread::get_id() == rank_thread_; }
  void end_if_dead() {
    if (ends_here() && std::uncaught_exceptions() == 0) throw Death{};
  }

  void end_if_dying() {
    if (!dead_ && dies_ && std::this_thread::get_id() == rank_thread_ && std::uncaught_exceptions() == 0 &&
        dies_())
      kill_self();
    end_if_dead();
  }

  bool damages_snapshots_;
  std::function<void()> before_death_;
  std::function<bool()> dies_;
  std::set<std::string> damaged_;
  const std::thread::id rank_thread_ = std::this_thread::get_id();
  std::atomic<bool> dead_ = false;
  std::mutex mutex_;  // of the next
  std::set<Condition*> conditions_;
};

// Asks for no stop. It is asked before every step, which is when something may happen to a rank.
class Mishap final : public StopSource {
 public:
  explicit Mishap(std::function<void(int asked)> happens) : happens_(std::move(happens)) {}
  bool stop_requested() override {
    happens_(++asked_);
    return false;
  }

 private:
  std::function<void(int asked)> happens_;
  int asked_ = 0;
};

struct Trouble {
  std::function<void(int rank, int steps_begun)> before_step = {};
  bool damages_snapshots = false;  // of rank 0, which reads them
  int newcomers = 0;               // ranks that can be started later
  std::function<void(int rank)> before_death = {};
  std::function<bool(int rank)> dies = {};  // asked where it waits
  std::function<Result<std::unique_ptr<NcclLibrary>>(int rank)> load_nccl = {};
  std::string newcomers_change = {};  // an override of theirs alone
  Env* machine = &posix_env();        // that all ranks are on
  std::map<int, Env*> host_of = {};   // of ranks that are on one of their own
  std::function<std::unique_ptr<RankWatch>(Env& env, int rank)> begin_watch = {};  // empty: nobody watches
  bool runs_at_launch = false;  // ProcessInputs::runs_at_launch
  // Returns what lies between a rank and its group; empty: nothing.
  std::function<std::unique_ptr<ShrinkingWorld>(std::unique_ptr<ShrinkingWorld> world, int rank)> connect =
      {};
};

class RecoveryTest : public TrainingTest {
 protected:
  // How every rank ended; none: it died.
  std::vector<std::optional<RunEnd>> train_all(const Launch& launch, const Trouble& trouble = {}) {
    std::vector<std::string> arguments;
    for (const std::string& line : launch.overrides) arguments.push_back("--" + line);
    const Result<std::vector<Override>> overrides = parse_overrides(arguments);
    EXPECT_TRUE(overrides.ok());
    std::mutex mutex;  // of the next two, which grow
    std::deque<std::optional<RunEnd>> ends(static_cast<std::size_t>(launch.ranks));
    std::deque<std::unique_ptr<Thread>> threads;
    std::unique_ptr<LocalWorld> world;
    const auto run_rank = [&](int rank, std::optional<RunEnd>* end) {
      std::unique_ptr<ShrinkingWorld> mine = world->join(rank);
      if (trouble.connect) mine = trouble.connect(std::move(mine), rank);
      try {
        *end = train_rank(launch, trouble, *overrides, *mine, rank);
      } catch (const Death&) {
      }
    };
    const auto start = [&](int rank, std::optional<RunEnd>* end) {
      threads.push_back(
          trouble.machine->start_thread("rank", [&run_rank, rank, end] { run_rank(rank, end); }).value());
    };
    const auto start_newcomers = [&](int first, int count) {
      if (first + count > launch.ranks + trouble.newcomers) return false;
      const std::lock_guard guard(mutex);
      for (int rank = first; rank < first + count; ++rank) start(rank, &ends.emplace_back());
      return true;
    };
    world = std::make_unique<LocalWorld>(launch.ranks, start_newcomers, *trouble.machine);
    for (int rank = 0; rank < launch.ranks; ++rank) {
      const std::lock_guard guard(mutex);
      start(rank, &ends[static_cast<std::size_t>(rank)]);
    }
    for (std::size_t i = 0;; ++i) {
      std::unique_ptr<Thread> next;
      {
        const std::lock_guard guard(mutex);
        if (i == threads.size()) break;
        next = std::move(threads[i]);
      }
      next->wait();
    }
    return {ends.begin(), ends.end()};
  }

  RunEnd train_rank(const Launch& launch, const Trouble& trouble, const std::vector<Override>& overrides,
                    ShrinkingWorld& world, int rank) {
    const auto host = trouble.host_of.find(rank);
    const auto mortal = std::make_shared<MortalEnv>(
        host == trouble.host_of.end() ? *trouble.machine : *host->second,
        trouble.damages_snapshots && rank == 0,
        [before_death = trouble.before_death, rank] {
          if (before_death) before_death(rank);
        },
        trouble.dies ? [dies = trouble.dies, rank] { return dies(rank); } : std::function<bool()>());
    MortalEnv& env = *mortal;
    const Result<std::unique_ptr<FaultPoints>> faults = FaultPoints::parse(launch.faults, rank, env);
    EXPECT_TRUE(faults.ok()) << faults.error().message;
    Mishap stop([&](int asked) {
      if (trouble.before_step) trouble.before_step(rank, asked);
    });
    std::vector<Override> mine = overrides;
    if (world.is_joiner() && !trouble.newcomers_change.empty())
      mine.push_back(parse_overrides({"--" + trouble.newcomers_change})->front());
    const Result<LoadedConfig> config = load_config_text(env, config_text(launch), "test.toml", mine);
    ThreadRankEnv group_env(env);
    const Result<std::unique_ptr<Membership>> membership =
        Membership::begin(group_env, world, 60'000, [](const Member&) { return true; });
    // Those that take a new rank in may die meanwhile.
    if (!membership.ok() && world.is_joiner()) return {membership.error().code, membership.error().message};
    EXPECT_TRUE(membership.ok()) << membership.error().message;
    const std::unique_ptr<RankWatch> watch = trouble.begin_watch ? trouble.begin_watch(env, rank) : nullptr;
    std::function<Result<std::unique_ptr<NcclLibrary>>()> load_nccl;
    if (trouble.load_nccl) load_nccl = [&] { return trouble.load_nccl(rank); };
    return train_run({{.env = env,
                       .faults = **faults,
                       .communicator = (*membership)->communicator(),
                       .watch = watch.get()},
                      {.build = "test",
                       .place = {.rank_on_host = rank},
                       .started_ns = env.monotonic_ns(),
                       .load_nccl = load_nccl,
                       .membership = membership->get(),
                       .spoil_kept_memory = true,
                       .runs_at_launch = trouble.runs_at_launch},
                      stop,
                      config});
  }

  // Those that live come to the end; how many died.
  int survive(const Launch& launch, const Trouble& trouble = {}) {
    int deaths = 0;
    for (const std::optional<RunEnd>& end : train_all(launch, trouble)) {
      if (!end.has_value()) {
        ++deaths;
        continue;
      }
      EXPECT_EQ(end->code, ExitCode::done) << end->message;
    }
    const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(launch.run)}.run_id());
    EXPECT_TRUE(id.ok());
    if (id.ok()) {
      const Result<SharedSnapshots> left = remove_snapshots(posix_env(), digest_of(*id));
      EXPECT_EQ(left->count, 0U) << "left behind";
    }
    return deaths;
  }

  std::vector<Json> events(const std::string& run, const std::string& name) const {
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::vector<Json> found;
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      Json event = Json::parse(line);
      if (event["event"] == name) found.push_back(std::move(event));
    }
    return found;
  }

  std::string reference() {
    EXPECT_EQ(train({.run = "reference"}).code, ExitCode::done);
    return digest("reference");
  }
};

}  // namespace holdfast::test
