#include "runtime/os/processor_count.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

namespace holdfast::os {
namespace {

int processors_of_affinity() {
  // The mask must be as long as the kernel's, which is not known: double it until it is.
  for (std::size_t processors = 1024; processors <= (std::size_t{1} << 20); processors *= 2) {
    const std::size_t bytes = CPU_ALLOC_SIZE(processors);
    const auto release = [](cpu_set_t* set) { CPU_FREE(set); };
    const std::unique_ptr<cpu_set_t, decltype(release)> set(CPU_ALLOC(processors), release);
    if (set == nullptr) break;
    if (sched_getaffinity(0, bytes, set.get()) == 0) return CPU_COUNT_S(bytes, set.get());
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The path of this process in the cgroup v2 hierarchy ("/" when there is none).
std::string own_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

int processors_of_quota(std::string_view cpu_max) {
  long long quota = 0;
  long long period = 0;
  const char* end = cpu_max.data() + cpu_max.size();
  const auto first = std::from_chars(cpu_max.data(), end, quota);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return 0;
  const auto second = std::from_chars(first.ptr + 1, end, period);
  if (second.ec != std::errc() || quota <= 0 || period <= 0) return 0;
  const long long processors = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int>(std::min<long long>(processors, 1 << 20));
}

int available_processors() {
  int count = processors_of_affinity();
  // A quota anywhere on the way up holds for everything below it.
  for (std::filesystem::path group = own_cgroup();; group = group.parent_path()) {
    std::ifstream file("/sys/fs/cgroup" + group.string() + "/cpu.max");
    std::string text;
    const int quota = std::getline(file, text) ? processors_of_quota(text) : 0;
    if (quota > 0) count = std::min(count, quota);
    if (!group.has_relative_path()) break;
  }
  return std::max(count, 1);
}

}  // namespace holdfast::os
