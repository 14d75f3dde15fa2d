#include "tools/kernel_kit/kernel_runner.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

#include "kernels/plugin.h"
#include "runtime/core/check.h"
#include "runtime/os/fenced_buffer.h"

namespace holdfast::bench::kernel_kit {
namespace {

// Calls that are checked move 2 MiB at most.
constexpr std::size_t most_workspace = std::size_t{1} << 30;
constexpr std::size_t guard_bytes = 4096, line_bytes = 64;
constexpr std::byte guard = std::byte{0x5a};

bool is_whole(std::span<const std::byte> guards) {
  for (const std::byte each : guards) {
    if (each != guard) return false;
  }
  return true;
}

}  // namespace

KernelRunner::KernelRunner(int threads)
    : team_(threads, cpu::use_one_thread_per_primitive),
      scratch_(threads),
      matmuls_(threads),
      context_(team_, scratch_, matmuls_) {}

std::string KernelRunner::run(const Implementation& kernel, const void* arguments, std::byte poison) {
  if (kernel.plugin != nullptr) return run_plugin(kernel, arguments, poison);
  prepare(kernel, arguments);
  run_prepared(kernel, arguments);
  return {};
}

void KernelRunner::prepare(const Implementation& kernel, const void* arguments) {
  kernel.prepare_on(context_, arguments);
  HF_CHECK(scratch_.allocate(), "no memory for the workspace of a kernel");
}

std::string KernelRunner::run_plugin(const Implementation& kernel, const void* arguments, std::byte poison) {
  const std::size_t bytes = workspace_bytes(kernel, context_, arguments);
  if (bytes > most_workspace)
    return fmt::format(
        "its workspace() asks for {} bytes, and more than {} are not given to a call of this size", bytes,
        most_workspace);
  const std::size_t whole_lines = (bytes + line_bytes - 1) / line_bytes * line_bytes;
  const os::FencedBuffer buffer(guard_bytes + whole_lines + guard_bytes);
  const std::span<std::byte> memory = buffer.bytes();
  std::memset(memory.data(), std::to_integer<int>(guard), memory.size());
  std::memset(memory.data() + guard_bytes, std::to_integer<int>(poison), bytes);

  PluginLaunch launch;
  try {
    launch =
        launch_plugin(*kernel.plugin, context_, arguments, bytes > 0 ? memory.data() + guard_bytes : nullptr);
  } catch (...) {
    return "it throws an exception, which ends a run";
  }
  if (launch.code != 0)
    return fmt::format("it returns {} instead of 0: it has not computed its call", launch.code);
  if (launch.mode != launch.before)
    return fmt::format(
        "it leaves the floating point control of a thread (MXCSR) changed, {:#x} instead of {:#x}: what "
        "other kernels compute there has other bits",
        launch.mode, launch.before);
  if (!is_whole(memory.first(guard_bytes)))
    return fmt::format("it writes in front of its workspace of {} bytes", bytes);
  if (!is_whole(memory.subspan(guard_bytes + bytes)))
    return fmt::format("it writes behind the end of its workspace of {} bytes", bytes);
  return {};
}

}  // namespace holdfast::bench::kernel_kit
