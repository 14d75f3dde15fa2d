// ProcessIdentity: names a process of this host for good. The kernel gives its number to another process some
// time after it has ended, but never with the same start.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/os/processes.h"

namespace holdfast::os {

struct ProcessIdentity {
  std::int64_t id = 0;             // 0: nobody
  std::int64_t started_ticks = 0;  // ProcessFacts; 0: not known

  bool operator==(const ProcessIdentity&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("id", self.id);
    visit("started_ticks", self.started_ticks);
  }

  // Names the process that has this number now; with no start where there is none, or nothing tells.
  static ProcessIdentity of(Processes& processes, std::int64_t id) {
    const std::optional<ProcessFacts> facts = processes.facts(id);
    return {.id = id, .started_ticks = facts.has_value() ? facts->started_ticks : 0};
  }

  // Returns a handle of the process, null where it is not there any more. Error: the system does not tell.
  Result<std::unique_ptr<Process>> open(Processes& processes) const {
    // The handle first: if the facts are those of the process afterwards, the handle is the process's.
    HF_TRY(std::unique_ptr<Process> process, processes.find(id));
    HF_TRY(const std::optional<ProcessFacts> facts, processes.look(id));
    if (process != nullptr && (!facts.has_value() || facts->started_ticks != started_ticks)) process.reset();
    return process;
  }

  // Returns whether the process has ended, reaped or not; false also where the system does not tell.
  bool has_ended(Processes& processes) const {
    const Result<std::optional<ProcessFacts>> found = processes.look(id);
    return found.ok() && has_ended(*found);
  }
  // Returns the same where the facts of its number now are known.
  bool has_ended(const std::optional<ProcessFacts>& found) const {
    return !found.has_value() || found->has_ended() || found->started_ticks != started_ticks;
  }
};

}  // namespace holdfast::os
