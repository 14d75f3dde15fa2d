// A libnvidia-ml without a driver: it reads out what the file that NVML_DOUBLE names has recorded.
//
//   e0e0:00:00.0 temperature 41
//   e0e0:00:00.0 ecc_corrected 3
//
// A GPU without a line is not found; a reading without one is not supported. "driver 9" alone says what nvmlInit
// returns. Types and values are those of nvml.h.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace {

constexpr int success = 0, invalid_argument = 2, not_supported = 3, not_found = 6, gpu_is_lost = 15;

struct Gpu {
  std::string bus_id;
};

// Reads the file anew each time: a test may write another one.
std::map<std::string, std::map<std::string, unsigned long long>> recorded() {
  std::map<std::string, std::map<std::string, unsigned long long>> all;
  const char* const path = std::getenv("NVML_DOUBLE");
  std::ifstream file(path == nullptr ? "" : path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string gpu, name;
    unsigned long long value = 0;
    if (words >> gpu >> name >> value) {
      all[gpu][name] = value;
    } else {
      all[""][gpu] = std::strtoull(name.c_str(), nullptr, 10);
    }
  }
  return all;
}

template <typename Value>
int reading(const void* handle, const std::string& name, Value* value) {
  const auto all = recorded();
  const auto& readings = all.at(static_cast<const Gpu*>(handle)->bus_id);
  const auto found = readings.find(name);
  if (found == readings.end()) return not_supported;
  *value = static_cast<Value>(found->second);
  return success;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const auto all = recorded();
  const auto own = all.find("");
  return own == all.end() || !own->second.contains("driver") ? success
                                                             : static_cast<int>(own->second.at("driver"));
}
const char* nvmlErrorString(int result) {
  switch (result) {
    case not_found:
      return "Not Found";
    case 9:
      return "Driver Not Loaded";
    case gpu_is_lost:
      return "GPU is lost";
    default:
      return "Unknown Error";
  }
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  static std::deque<Gpu> gpus;
  const auto all = recorded();
  const auto found = all.find(bus_id);
  if (found == all.end()) return not_found;
  if (found->second.contains("lost")) return gpu_is_lost;
  *handle = &gpus.emplace_back(Gpu{bus_id});
  return success;
}
int nvmlDeviceGetTemperatureV(void* handle, void* temperature) {
  struct {
    unsigned version;
    int sensor, celsius;
  } wanted;
  std::memcpy(&wanted, temperature, sizeof(wanted));
  if (wanted.version != (sizeof(wanted) | 1U << 24) || wanted.sensor != 0) return invalid_argument;
  const int result = reading(handle, "temperature", &wanted.celsius);
  std::memcpy(temperature, &wanted, sizeof(wanted));
  return result;
}
int nvmlDeviceGetTemperature(void* handle, int sensor, unsigned* celsius) {
  return sensor == 0 ? reading(handle, "old_temperature", celsius) : invalid_argument;
}
int nvmlDeviceGetPowerUsage(void* handle, unsigned* milliwatts) {
  return reading(handle, "power", milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(void* handle, unsigned* milliwatts) {
  return reading(handle, "power_limit", milliwatts);
}
int nvmlDeviceGetClockInfo(void* handle, int kind, unsigned* megahertz) {
  return reading(handle, kind == 1 ? "sm_clock" : kind == 2 ? "memory_clock" : "other_clock", megahertz);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* handle, unsigned long long* bits) {
  return reading(handle, "clock_reasons", bits);
}
int nvmlDeviceGetTotalEccErrors(void* handle, int kind, int counter, unsigned long long* count) {
  if (counter != 0) return invalid_argument;
  return reading(handle, kind == 0 ? "ecc_corrected" : "ecc_uncorrected", count);
}
int nvmlDeviceGetRemappedRows(void* handle, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  for (const auto& [name, value] :
       {std::pair{"rows_corrected", corrected}, std::pair{"rows_uncorrected", uncorrected},
        std::pair{"remap_pending", pending}, std::pair{"remap_failed", failed}}) {
    if (const int result = reading(handle, name, value); result != success) return result;
  }
  return success;
}
int nvmlDeviceGetPcieReplayCounter(void* handle, unsigned* count) {
  return reading(handle, "pcie_replays", count);
}
// One field is asked for; the type of the advice is unsigned int, that of counters of NVLink unsigned long long.
int nvmlDeviceGetFieldValues(void* handle, int count, void* fields) {
  struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    unsigned long long value;
  } wanted;
  std::memcpy(&wanted, fields, sizeof(wanted));
  static const std::map<unsigned, const char*> names = {
      {38, "nvlink_crc_errors"}, {52, "nvlink_replays"}, {59, "nvlink_recoveries"}, {230, "recovery_action"}};
  const auto name = names.find(wanted.field);
  if (count != 1 || name == names.end()) return invalid_argument;
  unsigned long long value = 0;
  wanted.result = reading(handle, name->second, &value);
  const bool is_int = wanted.field == 230;
  wanted.value = is_int ? value | 0xffffffff00000000U : value;  // what is beyond the type is not set
  wanted.type = is_int ? 1 : 3;
  std::memcpy(fields, &wanted, sizeof(wanted));
  return success;
}

}  // extern "C"
