#include "runtime/run/recovery_record.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::run {

std::string sentence_of(const RecoveryRecord& record) {
  const std::string place = record.resumed_from == "ram"    ? "in RAM"
                            : record.resumed_from == "disk" ? "on disk"
                                                            : "which is the start";
  const std::string spares = record.spares_after == 0 ? ""
                                                      : fmt::format(" and {} spare{}", record.spares_after,
                                                                    record.spares_after == 1 ? "" : "s");
  const std::uint64_t again = record.step_before - std::min(record.step_before, record.resumed_step);
  // All may be there again: one stood still for longer than the others wait.
  const std::string lost = record.lost.empty() ? "the ranks lost each other" : "lost " + record.lost;
  std::string fault = record.verdict.empty() ? lost : fmt::format("{}; {}", record.verdict, lost);
  const int came = record.ranks_after - static_cast<int>(record.before.members.size());
  if (record.wanted > 0) {
    fault = record.not_grown.empty() ? fmt::format("{} new rank{}", came, came == 1 ? "" : "s")
                                     : fmt::format("no new ranks ({})", record.not_grown);
  }
  const std::string steps_again =
      again == 0 ? "" : fmt::format("; {} step{} again", again, again == 1 ? "" : "s");
  if (record.goes_back && record.faults == 0)
    return fmt::format("{} rank{} on from step {} {}{}", record.active_after,
                       record.active_after == 1 ? " goes" : "s go", record.resumed_step, place, steps_again);
  if (record.wanted > 0 || record.active_after > record.active_before) {
    return fmt::format("{} at step {}: {} ranks go on, {} before{}, from step {} {}", fault,
                       record.step_before + 1, record.active_after, record.active_before, spares,
                       record.resumed_step, place);
  }
  return fmt::format("{} at step {}: {} of {} ranks go on{}, from step {} {}{}", fault,
                     record.step_before + 1, record.active_after, record.active_before, spares,
                     record.resumed_step, place, steps_again);
}

}  // namespace holdfast::run
