#include "runtime/os/fault_point.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/core/random.h"
#include "runtime/core/record.h"
#include "runtime/core/text.h"
#include "runtime/os/posix_file.h"

namespace holdfast::os {
namespace {

// One entry of the specification, and where it starts in the text (for the error).
struct Entry {
  std::string_view text;
  std::size_t position = 0;

  Error bad(std::string_view reason) const {
    return fail(ExitCode::config,
                "HOLDFAST_FAULTS, character {}: '{}': {}; an entry is name[@hit][:rank]=action with an "
                "action of {}",
                position + 1, text, reason, fault_actions());
  }
};

// Removes `mark` and what follows it from `text` and returns what followed; false when there is no mark.
bool cut(std::string_view& text, char mark, std::string_view& after) {
  const std::size_t at = text.rfind(mark);
  if (at == std::string_view::npos) return false;
  after = text.substr(at + 1);
  text = text.substr(0, at);
  return true;
}

std::string unknown_name(std::string_view name) {
  const std::vector<std::string_view>& names = FaultPoints::names();
  const std::string near = closest(name, names);
  if (!near.empty()) return fmt::format("there is no fault point '{}', did you mean '{}'?", name, near);
  return fmt::format("there is no fault point '{}'; there are {}", name, fmt::join(names, ", "));
}

// Touches fresh memory, as a process does whose memory is all new: it is slow, but at work. Allocations of
// this size come from the system each time.
void touch_fresh_memory(Env& env, std::int64_t duration_ms) {
  constexpr std::size_t bytes = std::size_t{64} << 20, part_bytes = std::size_t{1} << 20, page_bytes = 4096;
  constexpr std::int64_t pause_us = 10'000;
  const std::int64_t end_ns = env.monotonic_ns() + duration_ms * 1'000'000;
  while (env.monotonic_ns() < end_ns) {
    const auto memory = std::make_unique_for_overwrite<char[]>(bytes);
    for (std::size_t offset = 0; offset < bytes && env.monotonic_ns() < end_ns; offset += page_bytes) {
      static_cast<volatile char*>(memory.get())[offset] = 1;
      if (offset % part_bytes == 0) env.sleep_us(pause_us);
    }
  }
}

// This is best effort: the requested action happens all the same.
void report_hit(Env& env, std::string_view name, std::uint64_t hit, std::string_view action,
                std::optional<CorruptedNumber> changed = {}) {
  const std::string path = env.variable("HOLDFAST_FAULTS_LOG");
  if (path.empty()) return;
  const FaultPointRecord record{.event = FaultPointRecord::kind,
                                .time_us = env.wall_time_us(),
                                .point = std::string(name),
                                .hit = hit,
                                .action = std::string(action),
                                .host = env.host_name(),
                                .process = env.process_id(),
                                .changed = std::move(changed)};
  static_cast<void>(env.append_line(path, record_to_text(record)).ok());
}

Error error_at(std::string_view point, int reason) {
  const std::string where(point);
  if (point == load_point)
    return with_code(ExitCode::checkpoint, read_error("read at the fault point", where, reason));
  if (point == rebuild_point)
    return fail(ExitCode::communication, "the group cannot be rebuilt at the fault point {}", where);
  return point == read_point ? read_error("read at the fault point", where, reason)
                             : write_error("write at the fault point", where, reason);
}

}  // namespace

const std::vector<std::string_view>& FaultPoints::names() {
  static const std::vector<std::string_view> list = {"copy.mid_receive",
                                                     "copy.mid_send",
                                                     "data.before_batch",
                                                     "data.read",
                                                     "data.sample",
                                                     "download.after_command",
                                                     "download.after_rename",
                                                     "download.before_command",
                                                     "download.before_rename",
                                                     "end.before_exit",
                                                     "evaluation.begin",
                                                     "generation.after_publish",
                                                     "generation.before_publish",
                                                     "grow.after_spawn",
                                                     "grow.before_load",
                                                     "grow.begin",
                                                     "grow.prepare",
                                                     "load.before_read",
                                                     "load.before_snapshot",
                                                     "load.read",
                                                     "log.before_line",
                                                     "recover.after_shrink",
                                                     "recover.before_load",
                                                     "recover.before_resume",
                                                     "recover.begin",
                                                     "reduce.received",
                                                     "replica.after_seal",
                                                     "replica.after_send",
                                                     "replica.before_receive",
                                                     "replica.before_seal",
                                                     "replica.before_send",
                                                     "replica.mid_receive",
                                                     "replica.mid_send",
                                                     "retain.after_rename",
                                                     "retain.before_rename",
                                                     "rollback.begin",
                                                     "save.after_rename",
                                                     "save.after_shard",
                                                     "save.before_manifest",
                                                     "save.before_rename",
                                                     "save.before_shard",
                                                     "save.mid_shard",
                                                     "slot.after_resize",
                                                     "slot.before_rename",
                                                     "slot.before_resize",
                                                     "slot.before_unseal",
                                                     "snapshot.after_seal",
                                                     "snapshot.before_copy",
                                                     "snapshot.before_seal",
                                                     "snapshot.mid_copy",
                                                     "start.after_join",
                                                     "start.before_join",
                                                     "step.after_vote",
                                                     "step.before_backward",
                                                     "step.before_gather",
                                                     "step.before_reduce",
                                                     "step.before_update",
                                                     "step.before_vote",
                                                     "step.begin",
                                                     "step.end",
                                                     "upload.before_file",
                                                     "upload.before_manifest"};
  return list;
}

Result<std::unique_ptr<FaultPoints>> FaultPoints::parse(std::string_view specification, int rank, Env& env) {
  auto faults = std::make_unique<FaultPoints>();
  faults->env_ = &env;
  faults->specification_ = specification;
  if (specification.empty()) return faults;
  std::size_t position = 0;
  while (position <= specification.size()) {
    const std::size_t end = std::min(specification.find(',', position), specification.size());
    const Entry entry{.text = specification.substr(position, end - position), .position = position};
    position = end + 1;

    const std::size_t equals = entry.text.find('=');
    if (equals == std::string_view::npos) return entry.bad("there is no '='");
    std::string_view name = entry.text.substr(0, equals);
    std::string_view part;
    std::int64_t only_rank = rank;
    if (cut(name, ':', part)) {
      const std::optional<std::int64_t> number = parse_fault_number(part);
      if (!number.has_value()) return entry.bad(fmt::format("'{}' is not a rank", part));
      only_rank = *number;
    }
    std::int64_t hit = 1;
    if (cut(name, '@', part)) {
      hit = parse_fault_number(part).value_or(0);
      if (hit < 1) return entry.bad(fmt::format("'{}' is not a hit count (the first hit is 1)", part));
    }
    if (!std::ranges::binary_search(names(), name)) return entry.bad(unknown_name(name));
    Result<FaultAction> action = parse_fault_action(entry.text.substr(equals + 1), name);
    if (!action.ok()) return entry.bad(action.error().message);
    auto rule = std::make_unique<Rule>();
    rule->name = name;
    rule->action = std::move(action).value();
    rule->at_hit = static_cast<std::uint64_t>(hit);
    if (rule->action.corruption.has_value())
      rule->action.corruption->draw =
          mix64(mix64(rule->at_hit, static_cast<std::uint64_t>(rank)), entry.position);
    if (only_rank == rank) faults->rules_.push_back(std::move(rule));
  }
  faults->armed_ = !faults->rules_.empty();
  return faults;
}

bool FaultPoints::any_device_fault(bool of_products) const {
  return std::ranges::any_of(rules_, [of_products](const auto& rule) {
    const std::optional<DeviceFault>& fault = rule->action.device;
    return fault.has_value() && is_wrong_product(*fault) == of_products;
  });
}

bool FaultPoints::breaks_device() const {
  return any_device_fault(/*of_products=*/false);
}

bool FaultPoints::makes_wrong_products() const {
  return any_device_fault(/*of_products=*/true);
}

bool FaultPoints::corrupts_lane_gradients() const {
  return std::ranges::any_of(rules_, [](const auto& rule) {
    return rule->action.corruption.has_value() &&
           rule->action.corruption->memory == NumberMemory::lane_gradients;
  });
}

bool FaultPoints::spoils_samples() const {
  return std::ranges::any_of(rules_, [](const auto& rule) { return rule->action.sample.has_value(); });
}

std::vector<FaultPoints::SpoiledSample> FaultPoints::spoiled_samples(std::uint64_t first,
                                                                     std::uint64_t count) const {
  std::vector<SpoiledSample> samples;
  for (const std::unique_ptr<Rule>& rule : rules_) {
    const std::uint64_t position = rule->at_hit - 1;
    if (!rule->action.sample.has_value() || position < first || position - first >= count) continue;
    samples.push_back({.index = position - first, .fault = *rule->action.sample});
    report_hit(*env_, rule->name, rule->at_hit, rule->action.record);
  }
  return samples;
}

void FaultPoints::hit(std::string_view name) {
  static_cast<void>(attempt(name).ok());  // no point that is hit has an action that fails
}

Result<void> FaultPoints::attempt(std::string_view name) {
  HF_CHECK(std::ranges::binary_search(names(), name), "fault point '{}' is not in FaultPoints::names()",
           name);
  Result<void> outcome;
  for (const std::unique_ptr<Rule>& rule : rules_) {
    if (rule->name != name) continue;
    const std::uint64_t hit = rule->hits.fetch_add(1, std::memory_order_relaxed) + 1;
    if (hit == rule->at_hit) act(*rule);
    if (rule->fails_at(hit)) outcome = error_at(name, *rule->action.reason);
  }
  return outcome;
}

bool FaultPoints::Rule::fails_at(std::uint64_t hit) const {
  if (!action.reason.has_value() || hit < at_hit) return false;
  return action.number == 0 || hit - at_hit < static_cast<std::uint64_t>(action.number);
}

void FaultPoints::act(const Rule& rule) {
  const FaultAction& action = rule.action;
  if (action.corruption.has_value()) {
    report_hit(*env_, rule.name, rule.at_hit, action.record, corrupt_memory_(*action.corruption));
    return;
  }
  report_hit(*env_, rule.name, rule.at_hit, action.record);
  if (action.name == "kill") env_->kill_self();
  if (action.name == "stop") kill(getpid(), SIGSTOP);
  if (action.name == "sleep") env_->sleep_us(action.number * 1000);
  if (action.name == "touch") touch_fresh_memory(*env_, action.number);
  volatile bool forever = action.name == "spin";
  while (forever) {
  }
  if (action.name == "exit") std::_Exit(static_cast<int>(action.number));
  if (action.name == "abort") std::abort();
  if (action.name == "segv") raise(SIGSEGV);
  if (action.name == "scale_rate") scale_rate_(action.factor);
  if (action.device.has_value()) break_device_(*action.device);
}

}  // namespace holdfast::os
