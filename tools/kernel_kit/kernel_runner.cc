#include "tools/kernel_kit/kernel_runner.h"

#include <fmt/format.h>

#include <atomic>
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

// Returns how the calling thread rounds, and whether it knows denormal numbers: MXCSR without what it counts.
std::uint32_t float_control() {
#ifdef __SSE__
  constexpr std::uint32_t exceptions_that_were = 0x3f;
  return __builtin_ia32_stmxcsr() & ~exceptions_that_were;
#else
  return 0;
#endif
}
void set_float_control([[maybe_unused]] std::uint32_t control) {
#ifdef __SSE__
  __builtin_ia32_ldmxcsr(control);
#endif
}

// TaskTeam is what `call->team` of a checked kernel points to.
struct TaskTeam {
  const cpu::Context& context;
  std::atomic<std::uint32_t> changed_control = 0;  // that a part of the work left; 0: none did

  // Undoes what a part of the work, or all of it, did to the calling thread.
  void expect_control(std::uint32_t before) {
    const std::uint32_t after = float_control();
    if (after == before) return;
    set_float_control(before);
    changed_control = after;
  }
};

void run_tasks(const hf_call* call, std::int64_t count, hf_task task, void* data) {
  auto& team = *static_cast<TaskTeam*>(const_cast<void*>(call->team));
  team.context.parallel_for(count, [&](std::int64_t index, int thread) {
    const std::uint32_t before = float_control();
    task(data, index, thread);
    team.expect_control(before);
  });
}

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
  kernel.prepare_on(context_, arguments);
  HF_CHECK(scratch_.allocate(), "no memory for the workspace of a kernel");
  kernel.run_on(context_, arguments);
  return {};
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

  TaskTeam team{.context = context_};
  const hf_call call{.bytes = sizeof(hf_call),
                     .device = HF_CPU,
                     .threads = team_.threads(),
                     .op = arguments,
                     .team = &team,
                     .parallel_for = run_tasks};
  const std::uint32_t before = float_control();
  int code = 0;
  try {
    code = kernel.plugin->kernel->launch(&call, bytes > 0 ? memory.data() + guard_bytes : nullptr, nullptr);
  } catch (...) {
    return "it throws an exception, which ends a run";
  }
  team.expect_control(before);
  if (code != 0) return fmt::format("it returns {} instead of 0: it has not computed its call", code);
  if (const std::uint32_t after = team.changed_control; after != 0)
    return fmt::format(
        "it leaves the floating point control of a thread (MXCSR) changed, {:#x} instead of {:#x}: what "
        "other "
        "kernels compute there has other bits",
        after, before);
  if (!is_whole(memory.first(guard_bytes)))
    return fmt::format("it writes in front of its workspace of {} bytes", bytes);
  if (!is_whole(memory.subspan(guard_bytes + bytes)))
    return fmt::format("it writes behind the end of its workspace of {} bytes", bytes);
  return {};
}

}  // namespace holdfast::bench::kernel_kit
