// CollectSource: a place from which `holdfast collect` takes files. It is another directory of the run that
// this host sees, or the run directory of another host, which is reached as `holdfast launch` reaches hosts.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/part_inventory.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline cli {

struct CollectSource {
  std::string host = {};       // empty: a directory of this host
  std::string directory = {};  // run directory
  PartInventory inventory = {};
  std::uint64_t newest_step = 0;  // newest step in its event log

  // Names the fields that a host reports.
  static void visit_fields(auto& self, auto&& visit) {
    visit("inventory", self.inventory);
    visit("newest_step", self.newest_step);
  }
};

// Return the source with an inventory of its content. ExitCode::checkpoint: there is nothing of a run;
// communication: the host does not answer. `program`: path of this program, which the host has under the same
// path.
Result<CollectSource> source_at(Env& env, const std::string& directory);
Result<CollectSource> source_on_host(Env& env, const std::string& host, const std::string& directory,
                                     const std::string& program);
// Returns the text that source_on_host() makes the host print.
Result<std::string> listing_of(Env& env, const std::string& directory);

// Copies the file `path` of the source to `target`, which must not exist; the copy is durable when it
// returns.
Result<void> copy_from(Env& env, const CollectSource& source, const std::string& path,
                       const std::string& target);

}  // namespace holdfast::inline cli
