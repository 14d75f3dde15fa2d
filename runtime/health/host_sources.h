// HostSources: what this host's sensors, counters and logs say of it, as readings for the rules. It needs no rights and no
// library that a host may not have: what is missing is named, with what is lost. Nothing is changed, and nothing is measured:
// a look takes some milliseconds.
//
// Threads: one. A look does not return while a driver or a file system hangs, so it is for a thread that nobody waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/health/reading.h"
#include "runtime/os/network.h"

namespace holdfast::health {

// Reads a GPU by its name on the PCI bus: readings of the source "nvml" by name. Empty: it does not answer.
using GpuReader = std::function<std::vector<std::pair<std::string, double>>(const std::string& gpu)>;

// A rank of this host, and its process.
struct HostRank {
  int rank = 0;  // launched
  std::int64_t process = 0;
};

// Returns the address in "10.0.0.7:9400" or "[fe80::1]:9400"; none in an empty text. ExitCode::config: it is another text.
Result<std::optional<os::NetworkAddress>> exporter_address(const std::string& text);

// Returns an error, ExitCode::config, where health.rules or health.dcgm_exporter cannot be used.
Result<void> check_health_keys(std::span<const std::string> rules, const std::string& exporter);

class HostSources {
 public:
  struct Places {
    std::string root = {};                              // before /proc and /sys; empty: this host's
    std::vector<std::string> disks = {"/"};             // paths on the file systems whose room counts
    bool reads_log = true;                              // the kernel's, which no root leads to
    std::optional<os::NetworkAddress> exporter = {};    // of DCGM; none: it is not asked
    std::function<std::vector<HostRank>()> ranks = {};  // null: no run
  };
  // `env` outlives this object. `read_gpu` may be empty: NVML is not there.
  HostSources(Env& env, Places places, GpuReader read_gpu);

  // Returns what all sources say now, with the lines that the kernel has logged since the last look; the first look has no
  // lines, since nobody knows whether they still hold.
  std::vector<HealthReading> look();

  // Returns a line for each source that is not there: its name, why, and what is not seen without it. Known after a look.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  class Look;
  void look_at_gpus(Look& look);
  void look_at_exporter(Look& look);
  void look_at_log(Look& look);
  void look_at_network(Look& look);
  void look_at_infiniband(Look& look);
  void look_at_processors(Look& look);
  void look_at_memory(Look& look);
  void look_at_ranks(Look& look);
  void look_at_disks(Look& look);
  void look_at_clock(Look& look);
  void lacks(const std::string& source, const std::string& why, const std::string& what);

  Env* env_;
  Places places_;
  GpuReader read_gpu_;
  bool is_first_ = true;
  std::string last_line_;                         // of the kernel's log
  std::int64_t clock_offset_us_ = 0;              // wall minus monotonic, at the last look
  std::map<std::string, std::int64_t> last_xid_;  // by GPU, as the exporter said at the last look
  std::vector<std::string> missing_;
};

}  // namespace holdfast::health
