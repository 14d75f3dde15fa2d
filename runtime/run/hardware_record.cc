#include "runtime/run/hardware_record.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/core/record.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::run {
namespace {

constexpr std::int64_t us_per_ms = 1'000, us_per_s = 1'000'000;
constexpr std::int64_t largest_time_us = std::int64_t{253'402'300'799} * us_per_s;  // end of the year 9999

auto order_of(const DeviceFindings& device) {
  return std::tie(device.host, device.machine, device.device);
}

// Sorts the findings, drops those that are there twice, and keeps the newest.
void tidy(std::vector<HardwareFinding>& findings) {
  std::ranges::sort(findings, {},
                    [](const HardwareFinding& each) { return std::tie(each.time_us, each.step, each.what); });
  const auto twice = std::ranges::unique(findings);
  findings.erase(twice.begin(), twice.end());
  if (findings.size() <= HardwareRecord::findings_max) return;
  const std::size_t too_many = findings.size() - HardwareRecord::findings_max;
  findings.erase(findings.begin(), findings.begin() + static_cast<std::ptrdiff_t>(too_many));
}

// Drops the devices whose newest finding is the oldest.
void limit_devices(std::vector<DeviceFindings>& devices) {
  while (devices.size() > HardwareRecord::devices_max) {
    devices.erase(std::ranges::min_element(
        devices, {}, [](const DeviceFindings& each) { return each.findings.back().time_us; }));
  }
}

// Returns whether these are findings about that host. Those of older programs have no machine.
bool is_of(const DeviceFindings& device, std::string_view host, std::string_view machine) {
  return device.host == host && (device.machine == machine || device.machine.empty() || machine.empty());
}

bool is_valid(const HardwareFinding& finding) {
  return finding.time_us >= 0 && finding.time_us <= largest_time_us;
}

}  // namespace

void HardwareRecord::add(const HardwarePlace& place, const HardwareFinding& finding) {
  merge({.devices = {
             {.host = place.host, .machine = place.machine, .device = place.device, .findings = {finding}}}});
}

void HardwareRecord::merge(const HardwareRecord& other) {
  for (const DeviceFindings& theirs : other.devices) {
    if (theirs.findings.empty()) continue;
    auto found = std::ranges::lower_bound(devices, order_of(theirs), {}, order_of);
    if (found == devices.end() || order_of(*found) != order_of(theirs))
      found =
          devices.insert(found, {.host = theirs.host, .machine = theirs.machine, .device = theirs.device});
    found->findings.insert(found->findings.end(), theirs.findings.begin(), theirs.findings.end());
    tidy(found->findings);
  }
  limit_devices(devices);
}

bool HardwareRecord::computes_wrong(std::string_view host, std::string_view machine, std::int64_t now_us,
                                    std::int64_t window_ms) const {
  return std::ranges::any_of(devices, [&](const DeviceFindings& device) {
    return is_of(device, host, machine) &&
           std::ranges::any_of(device.findings, [&](const HardwareFinding& finding) {
             return finding.what == finding_kinds::lasts && finding.time_us > now_us - window_ms * us_per_ms;
           });
  });
}

RecentFindings HardwareRecord::recent(const HardwarePlace& place, std::int64_t now_us,
                                      std::int64_t window_ms) const {
  RecentFindings found;
  if (window_ms == 0) return found;
  for (const DeviceFindings& each : devices) {
    const bool is_gpu = place.device.starts_with("GPU-");
    if (each.device != place.device || (!is_gpu && !is_of(each, place.host, place.machine))) continue;
    for (const HardwareFinding& finding : each.findings) {
      if (finding.time_us <= now_us - window_ms * us_per_ms) continue;
      if (found.count++ == 0) found.since_us = finding.time_us;
    }
  }
  return found;
}

std::string HardwareRecord::text() const {
  return record_to_text(*this) + "\n";
}

Result<HardwareRecord> HardwareRecord::from_text(std::string_view text) {
  const Result<HardwareRecord> read = record_from_text<HardwareRecord>(text);
  if (!read.ok()) return fail(ExitCode::data, "{}", read.error().message);
  for (const DeviceFindings& device : read->devices) {
    if (!std::ranges::all_of(device.findings, is_valid))
      return fail(ExitCode::data, "it has a time that is none");
  }
  HardwareRecord record;
  record.merge(*read);
  return record;
}

std::string time_text(std::int64_t time_us) {
  const auto seconds =
      static_cast<std::time_t>(std::clamp(time_us, std::int64_t{0}, largest_time_us) / us_per_s);
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(seconds));
}

std::map<std::string, std::string> sentences_of_hosts(const HardwareRecord& record, const RunPaths& paths,
                                                      std::int64_t now_us, std::int64_t window_ms) {
  struct OfHost {
    std::size_t count = 0;
    HardwareFinding newest = {};
  };
  std::map<std::string, OfHost> hosts;
  for (const DeviceFindings& device : record.devices) {
    const RecentFindings recent = record.recent(
        {.host = device.host, .machine = device.machine, .device = device.device}, now_us, window_ms);
    if (recent.count == 0) continue;
    OfHost& host = hosts[device.host];
    host.count += recent.count;
    if (device.findings.back().time_us >= host.newest.time_us) host.newest = device.findings.back();
  }
  std::map<std::string, std::string> sentences;
  for (const auto& [name, host] : hosts) {
    sentences.emplace(
        name,
        fmt::format("the hardware of host {} gave wrong numbers {} in the last {}, the last time at step {} "
                    "on {}; holdfast "
                    "drain {} {} leaves the host",
                    printable(name), host.count == 1 ? "once" : fmt::format("{} times", host.count),
                    format_duration(window_ms), host.newest.step, time_text(host.newest.time_us),
                    paths.directory, printable(name)));
  }
  return sentences;
}

HardwareFile read_hardware_record(Env& env, const RunPaths& paths) {
  HardwareFile file;
  const Result<FileStatus> status = env.status(paths.hardware());
  if (status.ok() && !status->exists) {
    file.text = file.record.text();
    return file;
  }
  const auto begin_anew = [&](const std::string& why) {
    file.damage = fmt::format(
        "{} is damaged ({}): what was found about the hardware of the run is forgotten, and counted anew",
        paths.hardware(), why);
    return file;
  };
  if (!status.ok()) return begin_anew(status.error().message);
  const Result<std::string> text = read_text_within(env, paths.hardware(), text_limits::hardware_record);
  if (!text.ok()) return begin_anew(text.error().message);
  Result<HardwareRecord> record = HardwareRecord::from_text(*text);
  if (!record.ok()) return begin_anew(record.error().message);
  file.record = std::move(record).value();
  file.text = *text;
  return file;
}

}  // namespace holdfast::run
