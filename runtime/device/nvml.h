// Nvml: what the driver's own library (libnvidia-ml) says about the health of a GPU: heat, power, clocks and what
// lowers them, errors of memory and of the PCI bus, and what it advises. It is loaded at run time, as CUDA and NCCL
// are, and declares the few functions that it calls: the header is often missing where the driver is there. A GPU,
// or a driver, that does not have a reading leaves it out; what a reading means is for the caller to judge.
//
// Threads: any. A call asks the driver, takes a millisecond or less, and does not return when the driver hangs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::device {

struct GpuReadings {
  std::optional<std::int64_t> temperature_C = {};
  std::optional<std::int64_t> power_mW = {}, power_limit_mW = {};
  std::optional<std::int64_t> sm_MHz = {}, memory_MHz = {};
  std::optional<std::uint64_t> clock_reasons = {};  // bits of NVML for why the clocks are not higher
  // Errors of memory since the driver was loaded; none where ECC is off.
  std::optional<std::uint64_t> ecc_corrected = {}, ecc_uncorrected = {};
  std::optional<std::int64_t> rows_corrected = {},
                              rows_uncorrected = {};  // rows that spare ones replace, by cause
  std::optional<bool> remap_pending = {};             // a row is replaced at the next reset of the GPU
  std::optional<bool> remap_failed = {};              // there was no spare row
  std::optional<std::int64_t> pcie_replays = {};
  // These are counted on all NVLink links together, since the driver was loaded.
  std::optional<std::int64_t> nvlink_crc_errors = {}, nvlink_replays = {}, nvlink_recoveries = {};
  std::optional<std::int64_t> recovery_action = {};  // what the driver advises; 0: nothing (from driver 570)
};

// Returns the readings as a text: "41 C, 123 of 700 W, SM at 1980 MHz, memory at 2619 MHz; ECC errors 0 corrected, 0
// uncorrected; ...". What is fine and counts nothing is left out, as is what is not known.
std::string text_of(const GpuReadings& readings);

// Returns the readings that the rules of a host's health know (runtime/health/health_rules.h), by their names there.
std::vector<std::pair<std::string, double>> named_readings(const GpuReadings& readings);

// Name of the library for the dynamic loader.
inline constexpr const char* nvml_library_file = "libnvidia-ml.so.1";

class Nvml {
 public:
  virtual ~Nvml() = default;
  // Reads all that the GPU with this name on the PCI bus (CudaFacts::pci_bus_id) has. Errors: config, with a clause,
  // where NVML does not know the GPU, or has lost it.
  virtual Result<GpuReadings> read(const std::string& pci_bus_id) = 0;
};

// Loads the library `file`, which stays loaded until the process ends. ExitCode::config and Reach::host with a clause
// where it is missing, or finds no driver.
Result<std::unique_ptr<Nvml>> load_nvml(const std::string& file = nvml_library_file);

// Returns a function that has the named_readings() of the GPU with this name on the PCI bus, and none of one that does not
// answer; a null function where NVML cannot be loaded.
std::function<std::vector<std::pair<std::string, double>>(const std::string& pci_bus_id)> nvml_reader();

}  // namespace holdfast::device
