#include "runtime/device/nvml.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <utility>

namespace holdfast::device {
namespace {

// Source of what follows: nvml.h of API 13 (NVIDIA/go-nvml, gen/nvml/nvml.h).
using Return = int;  // nvmlReturn_t
constexpr Return success = 0;
using Handle = struct NvmlDevice*;  // nvmlDevice_t

struct Temperature {  // nvmlTemperature_v1_t
  unsigned version = sizeof(Temperature) | 1U << 24;
  int sensor = 0;  // NVML_TEMPERATURE_GPU
  int celsius = 0;
};
static_assert(sizeof(Temperature) == 12);

struct FieldValue {  // nvmlFieldValue_t
  unsigned field = 0, scope = 0;
  long long timestamp_us = 0, latency_us = 0;
  int type = 0;  // nvmlValueType_t
  Return result = success;
  unsigned long long value = 0;  // nvmlValue_t; of an unsigned int the lower half counts
};
static_assert(sizeof(FieldValue) == 40);

struct NvmlFunctions {
  Return (*init)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*device_by_bus_id)(const char*, Handle*) = nullptr;
  // The others are null where the driver is older or newer than they are.
  Return (*temperature)(Handle, Temperature*) = nullptr;
  Return (*old_temperature)(Handle, int sensor, unsigned* celsius) = nullptr;
  Return (*power)(Handle, unsigned* milliwatts) = nullptr;
  Return (*power_limit)(Handle, unsigned* milliwatts) = nullptr;
  Return (*clock)(Handle, int kind, unsigned* megahertz) = nullptr;
  Return (*clock_reasons)(Handle, unsigned long long* bits) = nullptr;
  Return (*ecc_errors)(Handle, int kind, int counter, unsigned long long* count) = nullptr;
  Return (*remapped_rows)(Handle, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                          unsigned* failed) = nullptr;
  Return (*pcie_replays)(Handle, unsigned* count) = nullptr;
  Return (*field_values)(Handle, int count, FieldValue*) = nullptr;
};

Error not_loaded(const std::string& file, const std::string& why) {
  return with_reach(Reach::host, fail(ExitCode::config, "NVML could not be loaded from {}: {}", file, why));
}

// Returns the reading that `call(&value)` gives, where the function is there and the GPU has it.
template <typename Value, typename Taken, typename Function, typename Call>
void take(std::optional<Taken>& reading, Function* function, const Call& call) {
  Value value{};
  if (function != nullptr && call(&value) == success) reading = static_cast<Taken>(value);
}

class LoadedNvml final : public Nvml {
 public:
  explicit LoadedNvml(const NvmlFunctions& functions) : nvml_(functions) {}

  Result<GpuReadings> read(const std::string& pci_bus_id) override {
    Handle gpu = nullptr;
    if (const Return found = nvml_.device_by_bus_id(pci_bus_id.c_str(), &gpu); found != success) {
      return with_reach(Reach::host, fail(ExitCode::config, "NVML says of the GPU at {}: {}", pci_bus_id,
                                          nvml_.error_string(found)));
    }
    GpuReadings readings;
    read_heat(gpu, readings);
    read_errors(gpu, readings);
    return readings;
  }

 private:
  void read_heat(Handle gpu, GpuReadings& readings) const {
    constexpr int sm_clock = 1, memory_clock = 2;
    Temperature heat;
    if (nvml_.temperature != nullptr && nvml_.temperature(gpu, &heat) == success) {
      readings.temperature_C = heat.celsius;
    } else {
      take<unsigned>(readings.temperature_C, nvml_.old_temperature,
                     [&](unsigned* celsius) { return nvml_.old_temperature(gpu, 0, celsius); });
    }
    take<unsigned>(readings.power_mW, nvml_.power, [&](unsigned* mW) { return nvml_.power(gpu, mW); });
    take<unsigned>(readings.power_limit_mW, nvml_.power_limit,
                   [&](unsigned* mW) { return nvml_.power_limit(gpu, mW); });
    take<unsigned>(readings.sm_MHz, nvml_.clock,
                   [&](unsigned* MHz) { return nvml_.clock(gpu, sm_clock, MHz); });
    take<unsigned>(readings.memory_MHz, nvml_.clock,
                   [&](unsigned* MHz) { return nvml_.clock(gpu, memory_clock, MHz); });
    take<unsigned long long>(readings.clock_reasons, nvml_.clock_reasons,
                             [&](unsigned long long* bits) { return nvml_.clock_reasons(gpu, bits); });
  }

  void read_errors(Handle gpu, GpuReadings& readings) const {
    constexpr int corrected = 0, uncorrected = 1, since_load = 0;
    const auto ecc = [&](int kind) {
      return [this, gpu, kind](unsigned long long* count) {
        return nvml_.ecc_errors(gpu, kind, since_load, count);
      };
    };
    take<unsigned long long>(readings.ecc_corrected, nvml_.ecc_errors, ecc(corrected));
    take<unsigned long long>(readings.ecc_uncorrected, nvml_.ecc_errors, ecc(uncorrected));
    unsigned by_corrected = 0, by_uncorrected = 0, pending = 0, failed = 0;
    if (nvml_.remapped_rows != nullptr &&
        nvml_.remapped_rows(gpu, &by_corrected, &by_uncorrected, &pending, &failed) == success) {
      readings.rows_corrected = by_corrected;
      readings.rows_uncorrected = by_uncorrected;
      readings.remap_pending = pending != 0;
      readings.remap_failed = failed != 0;
    }
    take<unsigned>(readings.pcie_replays, nvml_.pcie_replays,
                   [&](unsigned* count) { return nvml_.pcie_replays(gpu, count); });
    const auto field = [&](unsigned id, std::optional<std::int64_t>& reading) {
      FieldValue value{.field = id};
      if (nvml_.field_values == nullptr || nvml_.field_values(gpu, 1, &value) != success ||
          value.result != success)
        return;
      constexpr int unsigned_int = 1;
      reading = static_cast<std::int64_t>(value.type == unsigned_int ? static_cast<unsigned>(value.value)
                                                                     : value.value);
    };
    field(38, readings.nvlink_crc_errors);  // NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
    field(52, readings.nvlink_replays);     // NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
    field(59, readings.nvlink_recoveries);  // NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
    field(230, readings.recovery_action);   // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
  }

  NvmlFunctions nvml_;
};

void add(std::string& text, const std::string& separator, const std::string& part) {
  text += (text.empty() ? "" : separator) + part;
}

// Names the reasons that a user can do something about; an idle GPU and clocks that somebody has set are none.
std::string clock_limits(std::uint64_t reasons) {
  static constexpr std::array<std::pair<std::uint64_t, const char*>, 6> names = {
      {{0x4, "the power limit"},
       {0x8, "the hardware"},
       {0x10, "another GPU (sync boost)"},
       {0x20, "heat (driver)"},
       {0x40, "heat (hardware)"},
       {0x80, "the power supply (brake)"}}};
  std::string text;
  for (const auto& [bit, name] : names) {
    if ((reasons & bit) != 0) add(text, ", ", name);
  }
  return text.empty() ? text : "clocks lowered by " + text;
}

// Words of nvmlDeviceGpuRecoveryAction_t.
std::string advice_of(std::int64_t action) {
  static constexpr std::array actions = {"",
                                         "reset the GPU",
                                         "restart the host",
                                         "drain the traffic between GPUs",
                                         "drain the traffic between GPUs and reset the GPU",
                                         "recover the IMEX domain"};
  if (action < 0 || action >= static_cast<std::int64_t>(actions.size()))
    return fmt::format("the driver advises action {}", action);
  return fmt::format("the driver advises to {}", actions[static_cast<std::size_t>(action)]);
}

void add_counts(std::string& text, const char* what, const std::optional<std::uint64_t>& corrected,
                const std::optional<std::uint64_t>& uncorrected) {
  if (corrected.value_or(0) + uncorrected.value_or(0) == 0) return;
  add(text, "; ",
      fmt::format("{}: {} corrected, {} uncorrected", what, corrected.value_or(0), uncorrected.value_or(0)));
}

}  // namespace

std::vector<std::pair<std::string, double>> named_readings(const GpuReadings& readings) {
  // Reasons for clocks that the hardware lowers: slowdown, heat, power brake.
  constexpr std::uint64_t slowed = 0x8 | 0x40 | 0x80;
  std::vector<std::pair<std::string, double>> named;
  const auto add = [&named](const char* name, const auto& reading) {
    if (reading.has_value()) named.emplace_back(name, static_cast<double>(*reading));
  };
  add("temperature_C", readings.temperature_C);
  add("power_mW", readings.power_mW);
  add("sm_MHz", readings.sm_MHz);
  add("ecc_corrected", readings.ecc_corrected);
  add("ecc_uncorrected", readings.ecc_uncorrected);
  add("remap_pending", readings.remap_pending);
  add("remap_failed", readings.remap_failed);
  add("pcie_replays", readings.pcie_replays);
  add("nvlink_crc_errors", readings.nvlink_crc_errors);
  add("nvlink_replays", readings.nvlink_replays);
  add("nvlink_recoveries", readings.nvlink_recoveries);
  add("recovery_action", readings.recovery_action);
  if (readings.clock_reasons.has_value())
    named.emplace_back("is_slowed", (*readings.clock_reasons & slowed) != 0 ? 1.0 : 0.0);
  return named;
}

std::string text_of(const GpuReadings& readings) {
  constexpr std::int64_t mW_per_W = 1000;
  std::string text;
  if (readings.temperature_C.has_value()) add(text, ", ", fmt::format("{} C", *readings.temperature_C));
  if (readings.power_mW.has_value()) {
    const std::int64_t limit_mW = readings.power_limit_mW.value_or(0);
    add(text, ", ",
        fmt::format("{}{} W", *readings.power_mW / mW_per_W,
                    limit_mW > 0 ? fmt::format(" of {}", limit_mW / mW_per_W) : ""));
  }
  if (readings.sm_MHz.has_value()) add(text, ", ", fmt::format("SM at {} MHz", *readings.sm_MHz));
  if (readings.memory_MHz.has_value()) add(text, ", ", fmt::format("memory at {} MHz", *readings.memory_MHz));
  if (const std::string limits = clock_limits(readings.clock_reasons.value_or(0)); !limits.empty())
    add(text, "; ", limits);
  add_counts(text, "ECC errors since the driver was loaded", readings.ecc_corrected,
             readings.ecc_uncorrected);
  const auto rows = [](const std::optional<std::int64_t>& count) {
    return count.has_value() ? std::optional(static_cast<std::uint64_t>(*count)) : std::nullopt;
  };
  add_counts(text, "rows of memory replaced", rows(readings.rows_corrected), rows(readings.rows_uncorrected));
  if (readings.remap_pending.value_or(false))
    add(text, "; ", "a row is replaced at the next reset of the GPU");
  if (readings.remap_failed.value_or(false)) add(text, "; ", "a row could not be replaced: exchange the GPU");
  if (readings.pcie_replays.value_or(0) > 0)
    add(text, "; ", fmt::format("{} replays on the PCI bus", *readings.pcie_replays));
  if (readings.nvlink_crc_errors.value_or(0) + readings.nvlink_replays.value_or(0) +
          readings.nvlink_recoveries.value_or(0) >
      0)
    add(text, "; ",
        fmt::format("NVLink: {} errors of checksums, {} replays, {} recoveries",
                    readings.nvlink_crc_errors.value_or(0), readings.nvlink_replays.value_or(0),
                    readings.nvlink_recoveries.value_or(0)));
  if (readings.recovery_action.value_or(0) != 0) add(text, "; ", advice_of(*readings.recovery_action));
  return text.empty() ? "no readings" : text;
}

Result<std::unique_ptr<Nvml>> load_nvml(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return not_loaded(file, reason == nullptr ? "unknown reason" : reason);
  }
  NvmlFunctions functions;
  const auto bind = [&](auto& function, const char* name) {
    if (function == nullptr)
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
  };
  bind(functions.init, "nvmlInit_v2");
  bind(functions.error_string, "nvmlErrorString");
  bind(functions.device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  bind(functions.temperature, "nvmlDeviceGetTemperatureV");
  bind(functions.old_temperature, "nvmlDeviceGetTemperature");
  bind(functions.power, "nvmlDeviceGetPowerUsage");
  bind(functions.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  bind(functions.clock, "nvmlDeviceGetClockInfo");
  bind(functions.clock_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  bind(functions.clock_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // its name before driver 535
  bind(functions.ecc_errors, "nvmlDeviceGetTotalEccErrors");
  bind(functions.remapped_rows, "nvmlDeviceGetRemappedRows");
  bind(functions.pcie_replays, "nvmlDeviceGetPcieReplayCounter");
  bind(functions.field_values, "nvmlDeviceGetFieldValues");
  if (functions.init == nullptr || functions.error_string == nullptr || functions.device_by_bus_id == nullptr)
    return not_loaded(file, "it is another library");
  if (const Return begun = functions.init(); begun != success)
    return not_loaded(file, functions.error_string(begun));
  return std::unique_ptr<Nvml>(std::make_unique<LoadedNvml>(functions));
}

std::function<std::vector<std::pair<std::string, double>>(const std::string& pci_bus_id)> nvml_reader() {
  Result<std::unique_ptr<Nvml>> nvml = load_nvml();
  if (!nvml.ok()) return {};
  return [nvml = std::shared_ptr<Nvml>(std::move(nvml).value())](const std::string& pci_bus_id) {
    const Result<GpuReadings> readings = nvml->read(pci_bus_id);
    return readings.ok() ? named_readings(*readings) : std::vector<std::pair<std::string, double>>();
  };
}

}  // namespace holdfast::device
