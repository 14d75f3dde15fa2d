#include "watchdog/flight_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "watchdog/detector.h"

namespace holdfast::watchdog {
namespace {

// An operation that every rank of the communicator takes part in, in the order in which they do.
using Operation = std::tuple<std::uint64_t, std::int32_t, std::string>;  // step, number, kind

bool is_of_all(const FlightSpan& span) {
  static constexpr std::string_view kinds[] = {"barrier", "broadcast", "all_reduce", "all_gather"};
  return span.bucket >= 0 && std::ranges::find(kinds, span.kind) != std::end(kinds);
}

bool has_ended(const FlightRecord& record) {
  return record.state == 'X' || record.state == 'Z';
}

bool takes_part(const FlightRecord& record) {
  return record.slot.phase != Phase::spare && !record.slot.left;
}

// Leaves out ranks that earlier recoveries have lost: they had ended long before, in a membership before the newest one.
std::vector<FlightRecord> without_lost_before(std::span<const FlightRecord> records) {
  constexpr std::int64_t long_ns = 2'000'000'000;
  std::uint64_t newest = 0;
  for (const FlightRecord& record : records) newest = std::max(newest, record.slot.epoch);
  std::vector<FlightRecord> left(records.begin(), records.end());
  std::erase_if(left, [&](const FlightRecord& record) {
    return has_ended(record) && record.slot.epoch < newest &&
           record.now_ns - record.slot.heartbeat_ns > long_ns;
  });
  return left;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// The first step of which every ring has all there was.
std::uint64_t first_whole_step(std::span<const FlightRecord> records) {
  std::uint64_t first = 0;
  for (const FlightRecord& record : records) {
    if (takes_part(record) && record.lost_spans > 0 && !record.spans.empty())
      first = std::max(first, record.spans.front().step + 1);
  }
  return first;
}

struct Divergence {
  Operation operation;
  std::vector<int> begun, not_begun;
};

std::optional<Divergence> first_divergence(std::span<const FlightRecord> records) {
  const std::uint64_t first = first_whole_step(records);
  std::map<Operation, std::set<int>> begun;
  std::set<int> all;
  for (const FlightRecord& record : records) {
    if (!takes_part(record)) continue;
    all.insert(record.slot.launched_rank);
    for (const FlightSpan& span : record.spans) {
      if (span.step >= first && is_of_all(span))
        begun[{span.step, span.bucket, span.kind}].insert(record.slot.launched_rank);
    }
  }
  for (const auto& [operation, ranks] : begun) {
    if (ranks.size() == all.size()) continue;
    Divergence found{.operation = operation, .begun = {ranks.begin(), ranks.end()}, .not_begun = {}};
    std::ranges::set_difference(all, ranks, std::back_inserter(found.not_begun));
    return found;
  }
  return std::nullopt;
}

std::string divergence_text(const Divergence& found) {
  const auto& [step, number, kind] = found.operation;
  return fmt::format("step {}, {} {}: begun by {}; not by {}", step, kind, number, ranks_text(found.begun),
                     ranks_text(found.not_begun));
}

// The ranks as the guard would see them, with the clocks of all hosts moved to one moment.
HangReport hang_among(std::span<const FlightRecord> records) {
  constexpr std::int64_t now_ns = std::int64_t{1} << 60;
  std::vector<WatchedRank> ranks;
  for (const FlightRecord& record : records) {
    SlotView slot = record.slot;
    const auto move = [&](std::int64_t& time_ns) {
      time_ns = std::clamp<std::int64_t>(now_ns - (record.now_ns - time_ns), 1, now_ns);
    };
    move(slot.begun_ns);
    move(slot.heartbeat_ns);
    if (slot.wait_begun_ns > 0) move(slot.wait_begun_ns);
    ranks.push_back({.slot = slot,
                     .host = record.host,
                     .own_host = true,
                     .stopped = record.state == 'T',
                     .ended = has_ended(record)});
  }
  return find_hung_rank(ranks, now_ns, waiting_silent_ns);
}

std::string hang_text(std::span<const FlightRecord> records, const std::optional<Divergence>& divergence) {
  for (const FlightRecord& record : records) {
    if (has_ended(record) && !record.slot.left)
      return fmt::format("rank {} (host {}): its process exited unexpectedly", record.slot.launched_rank,
                         record.host);
  }
  const HangReport report = hang_among(records);
  if (report.kind != HangReport::Kind::none) {
    std::string text = report.sentence;
    for (const HangReport::Another& each : report.others) text += "; " + each.sentence;
    return text;
  }
  // A look at healthy ranks always finds some ahead of others; only one that is missed by most is a hint.
  if (divergence.has_value() && divergence->not_begun.size() == 1 && divergence->begun.size() > 1)
    return fmt::format("perhaps rank {}, which is behind the others", divergence->not_begun.front());
  return {};
}

std::string ago(std::int64_t nanoseconds) {
  return fmt::format("{:.3f} s", static_cast<double>(std::max<std::int64_t>(nanoseconds, 0)) / 1e9);
}

std::string state_text(char state) {
  switch (state) {
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a debugger";
    case 'D':
      return "held by the system";
    case 'X':
    case 'Z':
      return "ended";
    default:
      return "alive";
  }
}

// Describes the last activity of the host: the newest span that goes on, else the newest of all.
std::string last_span(const FlightRecord& record) {
  if (record.spans.empty()) return "nothing recorded";
  const auto open = std::find_if(record.spans.rbegin(), record.spans.rend(),
                                 [](const FlightSpan& span) { return span.end_ns == 0; });
  const FlightSpan& span = open != record.spans.rend() ? *open : record.spans.back();
  std::string text = span.kind;
  if (span.bucket >= 0) text += fmt::format(" {}", span.bucket);
  if (span.microbatch >= 0) text += fmt::format(", microbatch {}", span.microbatch);
  if (span.peer >= 0) text += fmt::format(", rank {}", span.peer);
  return open != record.spans.rend()
             ? fmt::format("in {} for {}", text, ago(record.now_ns - span.begin_ns))
             : fmt::format("last {}, ended {} before", text, ago(record.now_ns - span.end_ns));
}

std::string rank_text(const FlightRecord& record) {
  const SlotView& slot = record.slot;
  std::string text = fmt::format("rank {} (host {}, process {}, {}): {} {} for {}\n", slot.launched_rank,
                                 record.host, slot.process, state_text(record.state), name_of(slot.phase),
                                 slot.step, ago(record.now_ns - slot.begun_ns));
  if (slot.wait_begun_ns > 0) {
    text += fmt::format("  waits for {} {}{}, since {}, last polled {} ago\n",
                        slot.wait_operation.empty() ? "the others" : slot.wait_operation, slot.wait_number,
                        slot.wait_peer >= 0 ? fmt::format(" with rank {}", slot.wait_peer) : "",
                        ago(record.now_ns - slot.wait_begun_ns), ago(record.now_ns - slot.heartbeat_ns));
  }
  if (slot.drain_begun_ns > 0) {
    text += fmt::format("  saves step {} in the background, {} bytes, for {}\n", slot.drain_step,
                        slot.drain_bytes, ago(record.now_ns - slot.drain_begun_ns));
  }
  return text + fmt::format("  {}\n", last_span(record));
}

}  // namespace

FlightMerge merge_flights(std::span<const FlightRecord> all) {
  const std::vector<FlightRecord> records = without_lost_before(all);
  const std::optional<Divergence> divergence = first_divergence(records);
  return {.divergence = divergence.has_value() ? divergence_text(*divergence) : "",
          .suspect = hang_text(records, divergence)};
}

std::string flight_text(std::span<const FlightRecord> records) {
  std::string text;
  if (!records.empty()) text += fmt::format("why: {}\n\n", records.back().reason);
  for (const FlightRecord& record : records) text += rank_text(record);
  const FlightMerge merge = merge_flights(records);
  text += fmt::format("\nfirst divergence: {}\n",
                      merge.divergence.empty() ? "none in these records" : merge.divergence);
  text += fmt::format("likely culprit: {}\n", merge.suspect.empty() ? "nobody stands out" : merge.suspect);
  return text;
}

}  // namespace holdfast::watchdog
