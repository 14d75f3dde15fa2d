#include "runtime/health/host_sources.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "runtime/health/dcgm_exporter.h"
#include "runtime/health/health_rules.h"
#include "runtime/os/kernel_log.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/parse_address.h"

namespace holdfast::health {
namespace {

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

// Returns the percentage after "avg60=" in the line of /proc/pressure/* that begins with `kind`.
std::optional<double> pressure_in(std::string_view text, std::string_view kind) {
  const std::size_t line = text.find(kind);
  const std::size_t at = line == std::string_view::npos ? line : text.find("avg60=", line);
  return at == std::string_view::npos ? std::nullopt : number_in(text.substr(at + 6));
}

}  // namespace

Result<std::optional<os::NetworkAddress>> exporter_address(const std::string& text) {
  if (text.empty()) return std::optional<os::NetworkAddress>();
  std::optional<os::NetworkAddress> address = parse_address(text);
  if (!address.has_value() || address->host.empty() || address->port == 0)
    return fail(
        ExitCode::config,
        "health.dcgm_exporter = \"{}\" is no address of an exporter; expected a numeric address and a port, "
        "such as \"127.0.0.1:9400\"",
        text);
  return address;
}

Result<void> check_health_keys(std::span<const std::string> rules, const std::string& exporter) {
  HF_TRY_VOID(outcome_of(changed_rules(rules)));
  return outcome_of(exporter_address(exporter));
}

// One look: the readings so far, all of one time.
class HostSources::Look {
 public:
  Look(Env& env, const std::string& root) : env_(&env), root_(&root), time_ms_(env.wall_time_us() / 1000) {}

  void add(std::string source, std::string part, std::string name, std::optional<double> value) {
    readings_.push_back({.time_ms = time_ms_,
                         .source = std::move(source),
                         .part = std::move(part),
                         .name = std::move(name),
                         .value = value});
  }
  void add_line(std::string source, std::string text) {
    readings_.push_back(
        {.time_ms = time_ms_, .source = std::move(source), .name = "line", .text = std::move(text)});
  }
  std::optional<std::string> text(const std::string& path) const {
    Result<std::string> text = env_->read_text_within(*root_ + path, 1 << 16);
    return text.ok() ? std::optional(std::move(text).value()) : std::nullopt;
  }
  std::optional<double> number(const std::string& path) const {
    const std::optional<std::string> content = text(path);
    return content.has_value() ? number_in(*content) : std::nullopt;
  }
  std::vector<std::string> list(const std::string& path) const {
    Result<std::vector<std::string>> names = env_->list(*root_ + path);
    if (!names.ok()) return {};
    std::ranges::sort(*names);
    return std::move(names).value();
  }
  bool is_there(const std::string& path) const {
    const Result<FileStatus> status = env_->status(*root_ + path);
    return status.ok() && status->exists;
  }
  bool has(const std::string& source, const std::string& part, const std::string& name) const {
    return std::ranges::any_of(readings_, [&](const HealthReading& each) {
      return each.source == source && each.part == part && each.name == name;
    });
  }
  std::vector<HealthReading> take() { return std::move(readings_); }

 private:
  Env* env_;
  const std::string* root_;
  std::int64_t time_ms_;
  std::vector<HealthReading> readings_;
};

HostSources::HostSources(Env& env, Places places, GpuReader read_gpu)
    : env_(&env), places_(std::move(places)), read_gpu_(std::move(read_gpu)) {}

void HostSources::lacks(const std::string& source, const std::string& why, const std::string& what) {
  if (is_first_) missing_.push_back(fmt::format("{}: {}; {} is not seen", source, why, what));
}

void HostSources::look_at_gpus(Look& look) {
  const std::vector<std::string> gpus = look.list("/proc/driver/nvidia/gpus");
  if (gpus.empty()) return lacks("nvml", "there is no GPU of NVIDIA", "the health of GPUs");
  if (!read_gpu_) return lacks("nvml", "NVML could not be loaded", "the health of GPUs");
  for (const std::string& gpu : gpus) {
    const std::vector<std::pair<std::string, double>> readings = read_gpu_(gpu);
    for (const auto& [name, value] : readings) look.add("nvml", gpu, name, value);
    // That a GPU was asked and gave no answer says something, too.
    if (readings.empty()) look.add("nvml", gpu, "temperature_C", std::nullopt);
  }
}

// Adds what NVML did not say. The exporter has the number of the last Xid only: a change of it is a line of the log that others may
// have read, too, and one that comes again is not seen.
void HostSources::look_at_exporter(Look& look) {
  if (!places_.exporter.has_value()) return;
  const Result<std::string> text = ask_exporter(*env_, *places_.exporter);
  if (!text.ok()) return lacks("dcgm", text.error().message, "what DCGM says of the GPUs");
  for (const auto& [gpu, name, value] : readings_of_exporter(*text)) {
    if (name != "xid") {
      if (!look.has("nvml", gpu, name)) look.add("dcgm", gpu, name, value);
      continue;
    }
    const std::int64_t xid = std::llround(value);
    const auto [last, is_new] = last_xid_.try_emplace(gpu, xid);
    if (std::exchange(last->second, xid) == xid || is_new || xid <= 0) continue;
    look.add_line("kmsg",
                  fmt::format("NVRM: Xid (PCI:{}): {}, as DCGM says", gpu.substr(0, gpu.rfind('.')), xid));
  }
}

void HostSources::look_at_log(Look& look) {
  Result<std::vector<std::string>> lines = places_.reads_log ? kernel_log() : std::vector<std::string>();
  if (!lines.ok())
    return lacks("kmsg", lines.error().message, "what the kernel says of GPUs, memory and disks");
  if (lines->empty()) return;
  auto next = lines->begin();
  if (const auto last = std::ranges::find(*lines, last_line_); last != lines->end()) next = last + 1;
  last_line_ = lines->back();
  if (is_first_) return;
  for (; next != lines->end(); ++next) look.add_line("kmsg", std::move(*next));
}

// Reads devices alone: bridges and tunnels have none behind them.
void HostSources::look_at_network(Look& look) {
  bool is_one = false;
  for (const std::string& name : look.list("/sys/class/net")) {
    const std::string folder = "/sys/class/net/" + name;
    const std::optional<std::string> state = look.text(folder + "/operstate");
    if (!look.is_there(folder + "/device") || !state.has_value()) continue;
    is_one = true;
    look.add("net", name, "is_up", state->starts_with("up") ? 1 : 0);
    const std::optional<double> received = look.number(folder + "/statistics/rx_errors");
    const std::optional<double> sent = look.number(folder + "/statistics/tx_errors");
    if (received.has_value() && sent.has_value()) look.add("net", name, "errors", *received + *sent);
    if (const std::optional<double> changes = look.number(folder + "/carrier_changes"); changes.has_value())
      look.add("net", name, "carrier_changes", changes);
  }
  if (!is_one) lacks("net", "there is no network device", "the health of links");
}

void HostSources::look_at_infiniband(Look& look) {
  const std::vector<std::string> devices = look.list("/sys/class/infiniband");
  if (devices.empty()) return lacks("infiniband", "there is no device of it", "the health of its links");
  for (const std::string& device : devices) {
    for (const std::string& port : look.list("/sys/class/infiniband/" + device + "/ports")) {
      const std::string counters = "/sys/class/infiniband/" + device + "/ports/" + port + "/counters/";
      for (const char* name :
           {"link_downed", "excessive_buffer_overrun_errors", "local_link_integrity_errors", "symbol_error",
            "link_error_recovery", "port_rcv_errors", "port_xmit_discards"}) {
        const std::optional<double> value = look.number(counters + name);
        if (value.has_value()) look.add("infiniband", device + "/" + port, name, value);
      }
    }
  }
}

void HostSources::look_at_processors(Look& look) {
  std::optional<double> count;
  for (const std::string& name : look.list("/sys/devices/system/cpu")) {
    const std::optional<double> of_core =
        look.number("/sys/devices/system/cpu/" + name + "/thermal_throttle/core_throttle_count");
    if (of_core.has_value()) count = count.value_or(0) + *of_core;
  }
  if (!count.has_value())
    return lacks("cpu", "the kernel does not count it", "heat that slows processors down");
  look.add("cpu", "", "throttle_count", count);
}

void HostSources::look_at_memory(Look& look) {
  const std::optional<std::string> meminfo = look.text("/proc/meminfo");
  const std::optional<MemoryRoom> room = meminfo.has_value() ? room_of_meminfo(*meminfo) : std::nullopt;
  if (room.has_value() && room->total_bytes > 0)
    look.add("memory", "", "available_percent",
             100.0 * static_cast<double>(room->available_bytes) / static_cast<double>(room->total_bytes));
  for (const char* what : {"memory", "io"}) {
    const std::optional<std::string> text = look.text(fmt::format("/proc/pressure/{}", what));
    const std::optional<double> full = text.has_value() ? pressure_in(*text, "full") : std::nullopt;
    if (full.has_value()) look.add("pressure", "", fmt::format("{}_full_percent", what), full);
    if (!full.has_value())
      lacks("pressure", fmt::format("the kernel has no /proc/pressure/{}", what), "what waits for it");
  }
}

// Reads what each rank has taken for itself: pages of files and of shared memory are no leak.
void HostSources::look_at_ranks(Look& look) {
  if (!places_.ranks) return;
  for (const HostRank& each : places_.ranks()) {
    const Result<std::string> status =
        env_->read_text_within(fmt::format("/proc/{}/status", each.process), 1 << 16);
    constexpr std::string_view key = "RssAnon:";
    const std::size_t at = status.ok() ? status->find(key) : std::string::npos;
    if (at == std::string::npos) continue;  // it has ended
    std::string_view rest = std::string_view(*status).substr(at + key.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    if (const std::optional<double> kB = number_in(rest); kB.has_value())
      look.add("rank", fmt::format("rank {}", each.rank), "memory_MB", *kB * 1024 / 1e6);
  }
}

void HostSources::look_at_disks(Look& look) {
  for (const std::string& path : places_.disks) {
    const Result<std::uint64_t> free_bytes = env_->free_bytes(path);
    if (free_bytes.ok()) look.add("disk", path, "free_MB", static_cast<double>(*free_bytes / 1'000'000));
    if (!free_bytes.ok()) lacks("disk", free_bytes.error().message, "its room");
  }
}

void HostSources::look_at_clock(Look& look) {
  const std::int64_t offset_us = env_->wall_time_us() - env_->monotonic_ns() / 1000;
  if (!is_first_)
    look.add("clock", "", "step_ms", static_cast<double>(std::abs(offset_us - clock_offset_us_) / 1000));
  clock_offset_us_ = offset_us;
}

std::vector<HealthReading> HostSources::look() {
  Look look(*env_, places_.root);
  look_at_gpus(look);
  look_at_exporter(look);
  look_at_log(look);
  look_at_network(look);
  look_at_infiniband(look);
  look_at_processors(look);
  look_at_memory(look);
  look_at_ranks(look);
  look_at_disks(look);
  look_at_clock(look);
  is_first_ = false;
  return look.take();
}

}  // namespace holdfast::health
