// HostRows: the hosts of a run that `holdfast launch` does not use, and why, for `holdfast status`. It is
// RUN/launch/hosts.json, written by the launcher whenever it changes; no decision depends on it.
//
//   {"hosts":[{"host":"n2","state":"unfit","reason":"the data file ... is empty","since_us":...,"until_us":...,"failures":1}]}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

struct HostRow {
  std::string host = {};
  std::string state = {};  // unfit, suspected, unreachable, drained, condemned
  std::string reason = {};
  std::int64_t since_us = 0;  // wall clock of the launcher's host
  std::int64_t until_us = 0;  // when it may be used again; 0: when it answers, or is asked for
  int failures = 0;           // in a row

  bool operator==(const HostRow&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("state", self.state);
    visit("reason", self.reason);
    visit("since_us", self.since_us);
    visit("until_us", self.until_us);
    visit("failures", self.failures);
  }
};

struct HostRows {
  std::vector<HostRow> hosts = {};
  static void visit_fields(auto& self, auto&& visit) { visit("hosts", self.hosts); }
};

Result<void> write_host_rows(Env& env, const RunPaths& paths, const HostRows& rows);
Result<void> remove_host_rows(Env& env, const RunPaths& paths);
// Returns no rows where there is no file, or one that cannot be read.
HostRows read_host_rows(Env& env, const RunPaths& paths);

}  // namespace holdfast::run
