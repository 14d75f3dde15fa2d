#include "kernels/plugin.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/context.h"
#include "kernels/cpu/team.h"
#include "kernels/float_mode.h"
#include "kernels/op_fields.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"

namespace holdfast::kernels {
namespace {

constexpr std::size_t short_digest_digits = 16;
// A size above this is a mistake: a negative number, or a product that has overflowed.
constexpr std::size_t largest_workspace = std::size_t{1} << 40;

// LaunchTeam is what `call->team` points to.
struct LaunchTeam {
  const cpu::Context& context;
  std::atomic<unsigned> changed_mode = 0;  // that a thread was left in; 0: none was
  void note(const KeptFloatMode& mode) {
    if (mode.is_changed()) changed_mode = KeptFloatMode::now();
  }
};

void run_parts(const hf_call* call, std::int64_t count, hf_task task, void* data) {
  auto& team = *static_cast<LaunchTeam*>(const_cast<void*>(call->team));
  team.context.parallel_for(count, [&](std::int64_t index, int thread) {
    const KeptFloatMode mode;
    task(data, index, thread);
    team.note(mode);
  });
}

// Nothing can go on with numbers that were not computed, and others may without this process. The guard names the kernel
// of a process that ends so.
[[noreturn]] void end_process(const std::string& problem) {
  print_message(
      "{}. This process ends; a run that starts again meets it again, so let [kernels] name another kernel "
      "for the op",
      problem);
  std::abort();
}

// ShapeOfCall is a call for questions about shapes and types: its arrays are given or left out, and the same or others, as
// the call's are, at addresses where no process has memory. A kernel cannot answer from numbers, which are not there when
// a step is planned, or compute while nobody waits for it.
class ShapeOfCall {
 public:
  ShapeOfCall(OpId id, const void* arguments) {
    visit_op(id, arguments, [this](const auto& op) { copy(op); });
  }
  const void* arguments() const { return bytes_.data(); }

 private:
  // No canonical address of x86-64 and none of a process of arm64 begins with these bits.
  static constexpr std::uintptr_t nowhere = std::uintptr_t{0x8000} << 48, room = std::uintptr_t{1} << 40;

  template <typename Op>
  void copy(const Op& op) {
    static_assert(std::is_trivially_copyable_v<Op> && sizeof(Op) <= op_bytes_max);
    std::memcpy(bytes_.data(), &op, sizeof(Op));
    visit_fields(op, [&](const char*, const auto& field) {
      using Field = std::remove_cvref_t<decltype(field)>;
      // A list of segments is a shape.
      if constexpr (std::is_pointer_v<Field> && !std::is_same_v<Field, const BlockSegment*>) {
        const std::uintptr_t away = field == nullptr ? 0 : nowhere + room * number_of(field);
        const auto* const place = reinterpret_cast<const std::byte*>(&field);
        std::memcpy(bytes_.data() + (place - reinterpret_cast<const std::byte*>(&op)), &away, sizeof(away));
      }
    });
  }
  std::uintptr_t number_of(const void* array) {
    std::size_t number = 0;
    while (number < count_ && arrays_[number] != array) ++number;
    if (number == count_) arrays_[count_++] = array;
    return number;
  }

  alignas(16) std::array<std::byte, op_bytes_max> bytes_ = {};
  std::array<const void*, op_bytes_max / sizeof(void*)> arrays_ = {};
  std::size_t count_ = 0;
};

hf_call call_of(const void* arguments) {
  return {.bytes = sizeof(hf_call),
          .device = HF_CPU,
          .threads = 0,
          .op = arguments,
          .team = nullptr,
          .parallel_for = nullptr};
}

hf_call call_on(const cpu::Context& context, const void* arguments) {
  hf_call call = call_of(arguments);
  call.threads = context.team().threads();
  return call;
}

}  // namespace

std::size_t workspace_bytes(const Implementation& implementation, const cpu::Context& context,
                            const void* arguments) {
  if (implementation.plugin == nullptr || implementation.plugin->kernel->workspace == nullptr) return 0;
  const ShapeOfCall shape(implementation.op, arguments);
  const hf_call call = call_on(context, shape.arguments());
  const KeptFloatMode mode;
  return implementation.plugin->kernel->workspace(&call);
}

std::string workspace_problem(const PluginKernel& kernel, std::size_t bytes) {
  if (bytes <= largest_workspace) return {};
  return fmt::format(
      "{}, asks for {} bytes of working memory; expected at most {}: see its function workspace", kernel.text,
      bytes, format_bytes(largest_workspace));
}

std::string short_digest(const PluginFile& file) {
  return file.digest.substr(0, short_digest_digits);
}

std::string text_of(const PluginFile& file) {
  return fmt::format("{} (digest {}{})", file.path, short_digest(file),
                     file.source.empty() ? "" : fmt::format(", commit {}", file.source));
}

bool Implementation::computes_all() const {
  return plugin == nullptr ? supports == nullptr : plugin->kernel->supports == nullptr;
}

bool Implementation::computes(const void* arguments) const {
  if (computes_all()) return true;
  if (plugin == nullptr) return supports(arguments);
  const ShapeOfCall shape(op, arguments);
  const hf_call call = call_of(shape.arguments());
  const KeptFloatMode mode;
  return plugin->kernel->supports(&call) != 0;
}

void Implementation::prepare_on(const cpu::Context& context, const void* arguments) const {
  if (plugin != nullptr) {
    const std::size_t bytes = workspace_bytes(*this, context, arguments);
    if (workspace_problem(*plugin, bytes).empty()) context.request_shared_scratch(bytes);
  } else if (prepare != nullptr) {
    prepare(context, arguments);
  }
}

void Implementation::run_on(const cpu::Context& context, const void* arguments) const {
  if (plugin == nullptr) return run(context, arguments);
  const std::size_t bytes = workspace_bytes(*this, context, arguments);
  if (const std::string problem = workspace_problem(*plugin, bytes); !problem.empty()) end_process(problem);
  const PluginLaunch launch =
      launch_plugin(*plugin, context, arguments, bytes > 0 ? context.shared_scratch() : nullptr);
  if (launch.code != 0)
    end_process(
        fmt::format("{}, returned {} instead of 0: it has not computed its call", plugin->text, launch.code));
}

PluginLaunch launch_plugin(const PluginKernel& kernel, const cpu::Context& context, const void* arguments,
                           void* workspace) {
  LaunchTeam team{.context = context};
  hf_call call = call_on(context, arguments);
  call.team = &team;
  call.parallel_for = run_parts;
  const KeptFloatMode mode;
  const int code = kernel.kernel->launch(&call, workspace, nullptr);
  team.note(mode);
  const unsigned changed = team.changed_mode;
  return {.code = code, .mode = changed == 0 ? mode.before() : changed, .before = mode.before()};
}

}  // namespace holdfast::kernels
