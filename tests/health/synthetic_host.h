// SyntheticHost: readings of a host that nobody has, healthy or with one of the faults that operators of fleets describe: metrics
// that vanish before a GPU detaches (GWDG, arXiv 2603.28781), links and Xids (NVSentinel, gpud, NVIDIA's catalog), a wedge with all
// heartbeats alive (marin issue 7344). Sensors have noise. The same kind, seed and severity give the same recording.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/health/reading.h"

namespace holdfast::test {

struct SyntheticRecording {
  HealthRecording recording = {};
  std::optional<std::int64_t> fails_ms = {};  // when a run on the host would fail
};

// What happens on the host, and the rules of which one shall find it; none: it is healthy.
struct SyntheticKind {
  std::string name = {};
  std::vector<std::string> expected = {};
};
// Returns all kinds: first those of sick hosts.
const std::vector<SyntheticKind>& synthetic_kinds();

// Returns two hours and a half; a fault begins after an hour or later. `severity`: 1 as described; 0.7: slower, or less of it.
SyntheticRecording synthetic_recording(const SyntheticKind& kind, std::uint64_t seed, double severity);

class SyntheticHost {
 public:
  static constexpr std::int64_t interval_ms = 10'000;
  explicit SyntheticHost(std::uint64_t seed);

  // Goes on by one look, with noise; returns its readings.
  std::vector<HealthReading> look();
  std::int64_t now_ms() const { return now_ms_; }

  // State that a fault changes.
  struct Gpu {
    std::string name = {};
    double temperature_C = 65, heat_C = 0, power_mW = 600'000, power_share = 1;
    double ecc_corrected = 0, ecc_uncorrected = 0, pcie_replays = 0, remap_pending = 0, remap_failed = 0,
           recovery_action = 0;
    bool is_slowed = false;
    int silent_looks = 0, spike_looks = 0;
  };
  struct Link {
    bool is_up = true;
    double errors = 0, carrier_changes = 0;
  };
  std::vector<Gpu> gpus = {{.name = "0000:18:00.0"}, {.name = "0000:2a:00.0"}};
  Link link = {};
  std::map<std::string, double> port = {};  // counters of an InfiniBand port
  double throttle_count = 0, available_percent = 45, memory_full_percent = 0, io_full_percent = 1,
         free_MB = 400'000;
  double noise = 1;  // how often sensors do odd things that mean nothing

  void log(std::string line) { lines_.push_back(std::move(line)); }
  void xid(std::size_t gpu, int code, const std::string& text);
  double uniform(double from, double to) { return std::uniform_real_distribution<double>(from, to)(random_); }
  bool happens(double per_hour);   // within one look
  double events(double per_hour);  // how many within one look

 private:
  void add_noise();
  std::mt19937_64 random_;
  std::int64_t now_ms_ = 1'790'000'000'000;
  int dip_looks_ = 0, save_looks_ = 0, down_looks_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace holdfast::test
