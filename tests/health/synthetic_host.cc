#include "tests/health/synthetic_host.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace holdfast::test {
namespace {

constexpr double looks_per_hour = 3'600'000.0 / SyntheticHost::interval_ms;
constexpr std::int64_t minute_ms = 60'000, length_ms = 150 * minute_ms;
constexpr std::array counters = {"link_downed",
                                 "excessive_buffer_overrun_errors",
                                 "local_link_integrity_errors",
                                 "symbol_error",
                                 "link_error_recovery",
                                 "port_rcv_errors",
                                 "port_xmit_discards"};
constexpr std::array harmless = {
    "[  512.1] usb 1-1: new high-speed USB device number 4 using xhci_hcd",
    "[  600.5] systemd-journald[411]: Data hash table has a fill level at 75.0",
    "[  700.9] perf: interrupt took too long (2501 > 2500), lowering kernel.perf_event_max_sample_rate",
    "[  801.3] EXT4-fs (nvme0n1p2): re-mounted. Opts: (null)",
    "[  822.0] mlx5_core 0000:5e:00.0 eth0: Link up",
    "[  900.2] audit: type=1400 audit(1790000000.1:77): apparmor=\"STATUS\"",
    "[  950.8] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
};

}  // namespace

SyntheticHost::SyntheticHost(std::uint64_t seed) : random_(seed) {
  for (const char* name : counters) port[name] = std::floor(uniform(0, 40));
  for (Gpu& gpu : gpus) gpu.temperature_C = uniform(58, 70);
  throttle_count = std::floor(uniform(0, 500));
}

bool SyntheticHost::happens(double per_hour) {
  return uniform(0, 1) < per_hour / looks_per_hour;
}

double SyntheticHost::events(double per_hour) {
  return static_cast<double>(std::poisson_distribution<int>(per_hour / looks_per_hour)(random_));
}

void SyntheticHost::xid(std::size_t gpu, int code, const std::string& text) {
  const std::string name = gpus[gpu].name.substr(0, gpus[gpu].name.rfind('.'));
  log(fmt::format("[ 1234.5] NVRM: Xid (PCI:{}): {}, pid=4711, name=holdfast, {}", name, code, text));
}

// Sensors of healthy hosts do odd things: hot and slowed for seconds, no answer to a question or two, a few errors that are
// corrected, a cable that somebody moves, pressure while something is saved.
void SyntheticHost::add_noise() {
  for (Gpu& gpu : gpus) {
    gpu.temperature_C += 0.1 * (66 - gpu.temperature_C) + std::normal_distribution<double>(0, 0.7)(random_);
    if (happens(0.05 * noise)) gpu.spike_looks = static_cast<int>(uniform(1, 5));
    gpu.spike_looks = std::max(0, gpu.spike_looks - 1);
    gpu.is_slowed = happens(0.1 * noise);
    gpu.power_mW = uniform(560'000, 690'000);
    gpu.ecc_corrected += events(0.2 * noise) + (happens(0.01 * noise) ? std::floor(uniform(2, 8)) : 0);
    gpu.pcie_replays += events(0.5 * noise);
    gpu.silent_looks = std::max(0, gpu.silent_looks - 1);
    if (happens(0.2 * noise)) gpu.silent_looks = static_cast<int>(uniform(1, 4));
  }
  link.errors += events(2 * noise);
  if (down_looks_ > 0 && --down_looks_ == 0) ++link.carrier_changes;
  if (happens(0.01 * noise)) {
    down_looks_ = static_cast<int>(uniform(1, 8));
    ++link.carrier_changes;
  }
  port["symbol_error"] += events(5 * noise);
  port["link_error_recovery"] += events(0.1 * noise);
  port["port_rcv_errors"] += events(2 * noise);
  port["port_xmit_discards"] += happens(0.2 * noise) ? std::floor(uniform(0, 900)) : 0;
  throttle_count += happens(0.1 * noise) ? std::floor(uniform(1, 20)) : 0;
  if (happens(0.05 * noise)) dip_looks_ = static_cast<int>(uniform(1, 5));
  dip_looks_ = std::max(0, dip_looks_ - 1);
  if (happens(2)) save_looks_ = static_cast<int>(uniform(3, 30));
  save_looks_ = std::max(0, save_looks_ - 1);
  io_full_percent = save_looks_ > 0 ? uniform(60, 97) : uniform(0, 8);
  memory_full_percent = save_looks_ > 0 ? uniform(0, 15) : uniform(0, 1);
  free_MB = std::max(20'000.0, free_MB - uniform(0, 20));
  if (happens(2 * noise)) log(harmless[static_cast<std::size_t>(uniform(0, harmless.size() - 0.01))]);
}

std::vector<HealthReading> SyntheticHost::look() {
  std::vector<HealthReading> readings;
  const auto add = [&](const std::string& source, const std::string& part, const std::string& name,
                       std::optional<double> value) {
    readings.push_back({.time_ms = now_ms_, .source = source, .part = part, .name = name, .value = value});
  };
  for (const Gpu& gpu : gpus) {
    if (gpu.silent_looks > 0) {
      add("nvml", gpu.name, "temperature_C", std::nullopt);
      continue;
    }
    const double spike_C = gpu.spike_looks > 0 ? 17 : 0;
    add("nvml", gpu.name, "temperature_C", std::floor(gpu.temperature_C + gpu.heat_C + spike_C));
    add("nvml", gpu.name, "power_mW", gpu.power_mW * gpu.power_share);
    add("nvml", gpu.name, "ecc_corrected", gpu.ecc_corrected);
    add("nvml", gpu.name, "ecc_uncorrected", gpu.ecc_uncorrected);
    add("nvml", gpu.name, "remap_pending", gpu.remap_pending);
    add("nvml", gpu.name, "remap_failed", gpu.remap_failed);
    add("nvml", gpu.name, "pcie_replays", gpu.pcie_replays);
    add("nvml", gpu.name, "recovery_action", gpu.recovery_action);
    add("nvml", gpu.name, "is_slowed", gpu.is_slowed ? 1 : 0);
  }
  for (std::string& line : lines_)
    readings.push_back({.time_ms = now_ms_, .source = "kmsg", .name = "line", .text = std::move(line)});
  lines_.clear();
  add("net", "eth0", "is_up", link.is_up && down_looks_ == 0 ? 1 : 0);
  add("net", "eth0", "errors", link.errors);
  add("net", "eth0", "carrier_changes", link.carrier_changes);
  for (const char* name : counters) add("infiniband", "mlx5_0/1", name, port[name]);
  add("cpu", "", "throttle_count", throttle_count);
  add("memory", "", "available_percent", dip_looks_ > 0 ? 2.0 : available_percent);
  add("pressure", "", "memory_full_percent", memory_full_percent);
  add("pressure", "", "io_full_percent", io_full_percent);
  add("disk", "/run", "free_MB", free_MB);
  add("clock", "", "step_ms", happens(0.02 * noise) ? uniform(20, 600) : uniform(0, 2));
  now_ms_ += interval_ms;
  add_noise();
  return readings;
}

const std::vector<SyntheticKind>& synthetic_kinds() {
  static const std::vector<SyntheticKind> kinds = {
      {"silence before detachment", {"gpu-silent", "xid", "gpu-off-the-bus"}},
      {"off the bus without a sign", {"xid", "gpu-off-the-bus", "gpu-silent"}},
      {"ECC storm", {"gpu-memory-worse", "gpu-memory-wrong", "xid"}},
      {"row remap that fails", {"gpu-remap-pending", "gpu-remap-failed", "gpu-memory-wrong"}},
      {"thermal ramp", {"gpu-hot", "gpu-slowed"}},
      {"flapping link", {"network-flaps", "network-carrier", "network-down"}},
      {"InfiniBand that decays", {"infiniband-symbols", "infiniband-down", "infiniband-recoveries"}},
      {"NVLink errors", {"xid"}},
      {"GSP that does not answer", {"xid"}},
      {"driver that wants a reset", {"gpu-reset-wanted", "gpu-reboot-wanted"}},
      {"disk with errors", {"disk-errors", "disk-pressure"}},
      {"memory with errors", {"memory-corrected", "machine-check"}},
      {"leak", {"memory-leak", "memory-low", "memory-pressure", "out-of-memory"}},
      {"wedge with all heartbeats alive", {"gpu-power-falls"}},
      {"steady", {}},
      {"noisy sensors", {}},
      {"warm room", {}},
      {"faults of programs", {}},
      {"one cable moved", {}},
      {"a link that was never up", {}},
      {"counters that begin anew", {}},
      {"short silences", {}},
      {"ECC that corrects", {}},
      {"evaluation and saves", {}},
      {"almost full memory", {}},
      {"nonfatal NVLink reports", {}},
      {"talkative kernel", {}},
      {"busy disk", {}},
  };
  return kinds;
}

namespace {

// Changes the host before its look: `since_ms` after the fault began, `n` looks after; healthy kinds begin at once.
struct Fault {
  SyntheticHost& host;
  const std::string& kind;
  double severity;
  std::int64_t since_ms = 0;
  std::optional<std::int64_t> fails_ms = {};  // since the begin of the recording

  bool once_at(double minutes) const {
    const auto at_ms = static_cast<std::int64_t>(minutes * minute_ms);
    return since_ms >= at_ms && since_ms < at_ms + SyntheticHost::interval_ms;
  }
  double minutes() const { return static_cast<double>(since_ms) / minute_ms; }
  void fail() {
    if (!fails_ms.has_value()) fails_ms = host.now_ms();
  }

  void of_sick_gpu() {
    SyntheticHost::Gpu& gpu = host.gpus[1];
    if (kind == "silence before detachment") {
      // Gaps that become longer, and then nothing.
      if (host.happens(6 * severity))
        gpu.silent_looks = static_cast<int>(host.uniform(2, 4 + minutes() * severity));
      if (minutes() > 20 / severity) gpu.silent_looks = 2;
      if (once_at(30 / severity)) {
        host.xid(1, 79, "GPU has fallen off the bus.");
        fail();
      }
    } else if (kind == "off the bus without a sign") {
      if (once_at(0)) {
        host.xid(1, 79, "GPU has fallen off the bus.");
        fail();
      }
      gpu.silent_looks = 2;
    } else if (kind == "ECC storm") {
      gpu.ecc_corrected += host.events(30 * severity * (1 << std::min(12, static_cast<int>(minutes() / 10))));
      if (once_at(50 / severity)) {
        ++gpu.ecc_uncorrected;
        host.xid(1, 48, "DBE (double bit error) ECC Error");
        fail();
      }
    } else if (kind == "row remap that fails") {
      if (once_at(0)) ++gpu.ecc_uncorrected;
      gpu.remap_pending = 1;
      if (minutes() > 20 / severity) gpu.remap_failed = 1;
      if (once_at(20 / severity)) fail();
    } else if (kind == "thermal ramp") {
      gpu.heat_C = std::min(26.0, minutes() * 0.6 * severity);
      gpu.is_slowed = gpu.is_slowed || gpu.temperature_C + gpu.heat_C > 87;
      if (once_at(55)) fail();
    } else if (kind == "NVLink errors") {
      if (host.happens(20 * severity) || once_at(1))
        host.xid(1, severity < 1 ? 74 : 145,
                 "NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0)");
      if (once_at(20)) fail();
    } else if (kind == "GSP that does not answer") {
      if (host.happens(30 * severity) || once_at(1))
        host.xid(1, 119, "Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76");
      if (once_at(15)) fail();
    } else if (kind == "driver that wants a reset") {
      gpu.recovery_action = severity < 1 ? 2 : 1;
      if (once_at(15)) fail();
    } else if (kind == "wedge with all heartbeats alive") {
      for (SyntheticHost::Gpu& each : host.gpus) {
        each.power_share = 0.42 / severity;
        each.heat_C = -15;
      }
      if (once_at(33.5)) fail();
    }
  }

  void of_sick_host() {
    if (kind == "flapping link") {
      // Down for half a minute or more, every few minutes.
      const double cycle_s =
          static_cast<double>(since_ms % static_cast<std::int64_t>(12 * minute_ms / severity)) / 1000;
      const bool is_up = cycle_s > 40 + 40 * severity;
      host.link.carrier_changes += is_up == host.link.is_up ? 0 : 1;
      host.link.is_up = is_up;
      if (once_at(60)) fail();
    } else if (kind == "InfiniBand that decays") {
      host.port["symbol_error"] += host.events(260 * severity);
      host.port["link_error_recovery"] += host.events(20 * severity);
      if (once_at(55)) {
        ++host.port["link_downed"];
        fail();
      }
    } else if (kind == "disk with errors") {
      if (host.happens(10 * severity) || once_at(2))
        host.log(
            "[ 8123.4] blk_update_request: I/O error, dev nvme1n1, sector 123456 op 0x0:(READ) flags "
            "0x80700");
      if (once_at(25)) {
        host.log("[ 9000.1] EXT4-fs (nvme1n1p1): Remounting filesystem read-only");
        fail();
      }
    } else if (kind == "memory with errors") {
      const double corrected = host.events(30 * severity);
      for (int i = 0; i < static_cast<int>(corrected); ++i)
        host.log("[ 8123.4] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0");
      if (once_at(50)) {
        host.log("[ 9000.1] EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0");
        fail();
      }
    } else if (kind == "leak") {
      host.available_percent = std::max(0.8, 45 - minutes() * severity);
      if (host.available_percent < 2) host.memory_full_percent = 40;
      if (host.available_percent < 1 && !fails_ms.has_value()) {
        host.log("[ 9000.1] Out of memory: Killed process 4711 (holdfast) total-vm:99 kB, anon-rss:98 kB");
        fail();
      }
    }
  }

  void of_healthy() {
    if (kind == "noisy sensors") host.noise = 3;
    if (kind == "warm room") {
      for (SyntheticHost::Gpu& gpu : host.gpus) {
        gpu.heat_C = 9;
        gpu.spike_looks = 0;
        gpu.temperature_C = std::min(gpu.temperature_C, 69.5);
      }
    }
    if (kind == "faults of programs" && (once_at(40) || once_at(90))) {
      host.xid(0, 13, "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address");
      host.xid(1, 13, "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 1): Out Of Range Address");
    }
    if (kind == "one cable moved") {
      const bool is_up = minutes() < 50 || minutes() > 52;
      host.link.carrier_changes += is_up == host.link.is_up ? 0 : 1;
      host.link.is_up = is_up;
    }
    if (kind == "a link that was never up") host.link.is_up = false;
    if (kind == "counters that begin anew" && once_at(60 * severity)) {
      host.port.clear();
      host.throttle_count = 0;
      for (SyntheticHost::Gpu& gpu : host.gpus) gpu.ecc_corrected = gpu.pcie_replays = 0;
    }
    if (kind == "short silences" && host.happens(4))
      host.gpus[0].silent_looks = static_cast<int>(host.uniform(1, 5));
    if (kind == "ECC that corrects") host.gpus[0].ecc_corrected += host.events(20 * severity);
    if (kind == "evaluation and saves") {
      const bool is_idle = since_ms % (30 * minute_ms) < static_cast<std::int64_t>(3 * severity * minute_ms);
      for (SyntheticHost::Gpu& gpu : host.gpus) gpu.power_share = is_idle ? 0.25 : 1;
    }
    if (kind == "almost full memory") host.available_percent = host.uniform(4, 7);
    if (kind == "nonfatal NVLink reports" && host.happens(1.5))
      host.xid(0, 149, "NETIR Nonfatal XC0 i0 Link 05 (0x004505c6 0x00000000 0x00000000)");
    if (kind == "talkative kernel") {
      host.noise = 1;
      if (host.happens(60)) host.log("[ 77.7] nfs: server fileserver not responding, still trying");
      if (host.happens(60))
        host.log("[ 78.0] TCP: request_sock_TCP: Possible SYN flooding on port 22. Sending cookies.");
    }
    if (kind == "busy disk") host.io_full_percent = std::max(host.io_full_percent, host.uniform(40, 75));
  }
};

}  // namespace

SyntheticRecording synthetic_recording(const SyntheticKind& kind, std::uint64_t seed, double severity) {
  SyntheticHost host(seed);
  SyntheticRecording made;
  HealthRecording& recording = made.recording;
  recording.header = {.host = fmt::format("synthetic-{}", seed),
                      .label = kind.expected.empty() ? "healthy: " + kind.name : kind.name,
                      .interval_ms = SyntheticHost::interval_ms,
                      .expected = kind.expected};
  const bool is_sick = !kind.expected.empty();
  const std::int64_t begin_ms = host.now_ms();
  const std::int64_t sick_ms = is_sick ? static_cast<std::int64_t>(host.uniform(60, 75)) * minute_ms : 0;
  if (is_sick) recording.header.sick_from_ms = begin_ms + sick_ms;
  Fault fault{.host = host, .kind = kind.name, .severity = severity};
  while (host.now_ms() < begin_ms + length_ms) {
    fault.since_ms = host.now_ms() - begin_ms - sick_ms;
    if (is_sick && fault.since_ms >= 0) {
      fault.of_sick_gpu();
      fault.of_sick_host();
    }
    if (!is_sick) fault.of_healthy();
    for (HealthReading& reading : host.look()) recording.readings.push_back(std::move(reading));
  }
  made.fails_ms = fault.fails_ms;
  return made;
}

}  // namespace holdfast::test
