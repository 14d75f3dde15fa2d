#include "runtime/rank/memory_agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/gather.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "runtime/os/machine_facts.h"
#include "runtime/rank/watch.h"

namespace holdfast::rank {
namespace {

using Kind = FitAnswer::Kind;

constexpr std::int64_t poll_interval_us = 100'000;

void measure(Env& env, const MemoryTerms& terms, SnapshotTiers wanted, RankMemory& mine) {
  mine.host = env.host_name();
  mine.host_id = env.host_id();
  mine.room = memory_room(env);
  mine.shared_free = std::nullopt;
  if (wanted != SnapshotTiers::none) {
    const Result<std::uint64_t> free_bytes = env.free_bytes(shared_memory_directory);
    if (free_bytes.ok()) mine.shared_free = *free_bytes;
  }
  if (!terms.run.has_value()) return;
  const OldSnapshots old = count_old_snapshots(env, *terms.run, terms.resumed);
  mine.unneeded_bytes = old.unneeded.bytes;
  mine.resumed_bytes = old.resumed.bytes;
}

// MemoryRecord is what one rank contributes to the agreement of all.
struct MemoryRecord {
  RankMemory memory = {};
  SnapshotTiers had = SnapshotTiers::none;
  bool time_is_over = false;

  static void visit_fields(auto& self, auto&& visit) {
    visit("memory", self.memory);
    visit("had", self.had);
    visit("time_is_over", self.time_is_over);
  }
};

// Gathered is what all ranks have contributed.
struct Gathered {
  std::vector<RankMemory> ranks;
  SnapshotTiers had = SnapshotTiers::none;
  bool time_is_over = false;
};

Gathered gathered_from(std::vector<MemoryRecord> records) {
  Gathered all;
  for (MemoryRecord& each : records) {
    all.had = std::max(all.had, each.had);
    all.time_is_over = all.time_is_over || each.time_is_over;
    all.ranks.push_back(std::move(each.memory));
  }
  return all;
}

std::string lack_of(const FitAnswer& answer) {
  if (answer.is_of_shared_memory) {
    return fmt::format("{} of host {} has room for {}, and {} are needed", shared_memory_directory,
                       answer.host, format_bytes(answer.available_bytes), format_bytes(answer.needed_bytes));
  }
  return fmt::format("host {} has {} available of {}, and {} are needed", answer.host,
                     format_bytes(answer.available_bytes), format_bytes(answer.total_bytes),
                     format_bytes(answer.needed_bytes));
}

// Returns the clause that follows "no RAM snapshots: " or "no replicas of RAM snapshots: ".
std::string warning_of(const FitAnswer& answer) {
  return lack_of(answer) + " with them" +
         (answer.is_of_shared_memory
              ? "; make it larger (mount -o remount,size=..., or --shm-size of a container)"
              : "");
}

Error refusal(const FitAnswer& answer, const MemoryTerms& terms) {
  const char* const advice =
      "reduce the model, training.microbatch_size or training.sequence_length, set training.recompute, or "
      "use more hosts";
  if (answer.kind == Kind::too_large && terms.has_all_ranks) {
    return fail(ExitCode::does_not_fit, "the memory plan does not fit: {} by its ranks; {}", lack_of(answer),
                advice);
  }
  if (answer.kind == Kind::too_large) {
    return fail(ExitCode::communication,
                "the memory plan of the ranks that are left does not fit: {} by them; the run ends, to be "
                "started again with all of them",
                lack_of(answer));
  }
  return fail(ExitCode::communication,
              "there is not enough memory at the moment: {} by the ranks on it, and other processes still "
              "hold the rest after {}; end them, or raise elastic.memory_timeout, and start again",
              lack_of(answer), format_duration(terms.timeout_ms));
}

}  // namespace

Result<void> agree_on_memory(const RankContext& rank, RankMemory mine, SnapshotTiers wanted,
                             const MemoryTerms& terms, MemoryDecision& decision) {
  Env& env = rank.env;
  const bool says = rank.communicator.rank() == 0;
  const std::int64_t begin_ns = env.monotonic_ns();
  for (bool waits = false, removed = false;;) {
    const std::int64_t waited_ns = env.monotonic_ns() - begin_ns;
    measure(env, terms, wanted, mine);
    const bool is_over = waited_ns >= terms.timeout_ms * 1'000'000;
    HF_TRY(std::vector<MemoryRecord> records,
           gather(rank.communicator, rank.waiter,
                  MemoryRecord{.memory = mine, .had = terms.had, .time_is_over = is_over}));
    const Gathered all = gathered_from(std::move(records));
    const FitAnswer answer = decide_fit(
        {.ranks = all.ranks, .wanted = wanted, .waits_for = all.had, .time_is_over = all.time_is_over});
    if (answer.kind == Kind::fits && answer.removes_snapshots_first && !removed && terms.run.has_value()) {
      if (terms.slots != nullptr) terms.slots->forget();  // memory stays allocated as long as it is mapped
      static_cast<void>(remove_unneeded_snapshots(env, *terms.run, terms.resumed).ok());
      removed = true;
      continue;  // measures again
    }
    if (answer.kind == Kind::fits) {
      decision = {.room = answer.room, .warning = answer.host.empty() ? "" : warning_of(answer)};
      if (waits && says)
        print_message("there was memory after {:.1f} s", static_cast<double>(waited_ns) * 1e-9);
      if (waits) enter(rank.watch, Phase::load, 0);
      return {};
    }
    if (answer.kind != Kind::wait) {
      decision.lacks = answer.kind == Kind::lacks || !terms.has_all_ranks;
      return refusal(answer, terms);
    }
    if (!waits) {
      if (says) {
        print_message(
            "{} by the ranks on it: waits up to {} for memory that other processes hold; one that was killed "
            "gives it back after a while",
            lack_of(answer), format_duration(terms.timeout_ms));
      }
      // The wait has a limit of its own, after which the other ranks learn that it is over.
      enter(rank.watch, Phase::load, 0, terms.timeout_ms + rank.waiter.timeout_ms());
      waits = true;
    }
    env.sleep_us(poll_interval_us);
  }
}

}  // namespace holdfast::rank
