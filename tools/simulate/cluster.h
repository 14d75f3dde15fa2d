// Cluster describes a fleet, a run on it, and what fails how often: the input of `holdfast simulate`, read from a TOML file.
//
//   [times]
//   step_seconds = { value = 6.2, source = "405e9 x 6 x 16.8e6 FLOP over 16,384 x 400 TFLOP/s" }
//   [[fault]]
//   name = "gpu"
//   events = 148          # in so many days, of so many hosts
//   days = 54
//   of = 2048
//   source = "arXiv 2407.21783, table 5"
//
// A number about the world has a source: its own, or that of its section; without either it is printed as assumed. Keys
// that a run's config has too (elastic.spares, checkpoint.replicas, ...) mean what they mean there. Durations have their
// unit in the name.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::launch::fleet {

// FaultEffect is what a fault does to the run.
enum class FaultEffect : std::uint8_t {
  process,     // one rank dies; its host is fit
  host,        // all ranks of a host are gone, and the host with its memory is away for away_hours
  run,         // all ranks end at once, and hosts are fit: mpirun, a bug, a fabric
  notice,      // as host, told warning_seconds before
  slow,        // a host takes `factor` times as long for lasts_hours
  corruption,  // a host computes wrong numbers, which is found found_after_seconds later
  storage,     // no checkpoint can be written or read for lasts_hours
};
inline constexpr std::size_t fault_effects = 7;
std::string_view name_of(FaultEffect effect);

// FaultKind is one row of [[fault]].
struct FaultKind {
  std::string name = {};
  FaultEffect effect = FaultEffect::host;
  std::string unit =
      "host";  // what fails: "host", "rack", or "run" (one host of it, where the effect has a host)
  std::string timing = "random";    // "random": a Poisson process of each unit; "regular": as a clock
  double events = 0.0, days = 0.0;  // so many ...
  double of = 1.0;                  // ... of so many units
  double notice_seconds = -1.0;     // until the run knows; -1: that of [times]
  double away_hours = 0.0;          // mean, exponential
  double away_fixed = 0.0;          // 1: always exactly so long
  double warning_seconds = 0.0;
  double factor = 1.0;
  double lasts_hours = 0.0;  // mean, exponential
  double found_after_seconds = 0.0;
  double at_most = 0.0;      // of each unit; 0: no limit
  double memory_lost = 0.0;  // 1: RAM snapshots are lost, too; with all ranks, the launcher
  std::string source = {};

  double rate_per_second() const { return days > 0.0 && of > 0.0 ? events / (days * 86'400.0 * of) : 0.0; }
};

// Returns whole microseconds, in which a simulation counts.
std::int64_t us_of(double seconds);

struct Cluster {
  std::string name = {};
  // [fleet]
  double hosts = 0.0;  // named to `holdfast launch`
  double ranks_per_host = 1.0;
  double hosts_per_rack = 0.0;                   // 0: racks are not known
  double lemon_share = 0.0, lemon_factor = 1.0;  // of the hosts, and by how much more often they fail
  double rate_factor = 1.0;                      // of all faults
  std::string device = "cuda";
  // [parallel], [elastic], [checkpoint], [health], [hazard], [cost]: as in a run's config
  double data = 0.0, tensor = 1.0, pipeline = 1.0, lanes = 0.0;
  double spares = 0.0, min_data_parallel = 1.0, in_place = 1.0, grow_after_seconds = 10.0,
         settle_after_seconds = 1800.0;
  double drain = 1.0;
  std::string grow = "auto";
  std::string replicas = "auto";
  double every_steps = 0.0, ram_every_steps = 0.0;  // 0: auto; -1: off, as 0 in the file
  std::string preset = "watch";
  double steps = 0.0;  // [training]: the run ends with so many; 0: with the days
  double mtbf_hours = 0.0;
  double per_rank_hour = 0.0;
  std::string currency = "$";
  // [launch]
  double wait_for_hosts_seconds = 1800.0;
  // [times], seconds
  double step = 0.0;
  double snapshot = 0.0, snapshot_confirmed = 0.0;  // what it costs; from its begin until it counts
  double save = 0.0, save_durable = 0.0;
  double notice_process = 0.0, notice_host = 0.0;
  double recover = 0.0;          // from notice to the next step, in place
  double grow_time = 0.0;        // one host alone: what training stands still for when its ranks are back
  double grow_wait = 0.0;        // ... and how long after the recovery that is
  double start = 0.0;            // first start to the first step
  double restart = 0.0;          // the same of a later start, state in RAM
  double load = 0.0;             // what a state from the disk takes longer
  double ask = 0.0;              // hosts before a start
  double straggler_named = 0.0;  // from slow to named
  double person = 0.0;           // until somebody launches again what has ended

  std::vector<FaultKind> faults = {};
  std::map<std::string, std::string> sources = {};  // by key; "": assumed
  std::vector<std::string> assumed =
      {};  // keys of numbers that were set without a source, and defaults that matter

  bool has_replicas() const { return replicas != "off"; }
  int per_copy() const { return static_cast<int>(tensor * pipeline); }
  int ranks_wanted() const { return static_cast<int>(data) * per_copy() + static_cast<int>(spares); }
  int lanes_or_data() const { return static_cast<int>(lanes > 0.0 ? lanes : data); }
};

// Numbers by which one may ask "what if": their keys, in the order of the file's sections.
std::vector<std::string> model_keys(const Cluster& cluster);
// Returns the value of a key ("times.step_seconds", "fault.gpu.events"), which exists.
double number_of(const Cluster& cluster, const std::string& key);
void set_number(Cluster& cluster, const std::string& key, double value);

// Read and check a cluster. ExitCode::config: all that is wrong, a line each.
Result<Cluster> load_cluster(Env& env, const std::string& path, const std::vector<Override>& overrides);
Result<Cluster> read_cluster(const std::string& text, const std::string& name,
                             const std::vector<Override>& overrides);

// Returns the reference of the keys, for --help.
std::string cluster_keys_text();

}  // namespace holdfast::launch::fleet
