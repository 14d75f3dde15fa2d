// ShadowRunner computes calls of an op twice on the host's processor: by the implementation that the run has, on the run's
// memory, and by a candidate, on a copy of what it writes; and compares the two. The thread of the device's queue calls it,
// but for take(), which another one may call while nothing is in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/registry.h"
#include "runtime/device/shadow_result.h"

namespace holdfast::device {

// ShadowedCall is one call of an op. `arguments` is its struct.
struct ShadowedCall {
  OpId id = OpId::count;
  CallPlace place = {};
  const void* arguments = nullptr;
};

// PluginReport gets the name of a plug-in's kernel before it runs and nothing after it (Device::report_plugins); may be empty.
using PluginReport = std::function<void(std::string_view)>;

class ShadowRunner {
 public:
  // `counts`: no memory is allocated, as by a device that only counts.
  explicit ShadowRunner(bool counts) : threads_(counts ? -1 : 1), scratch_(threads_) {}

  // Returns the shadow of a call, or null. `step`: of the call; 0 = any.
  static const KernelRule* shadow_of(const KernelChoice& choice, const ShadowedCall& call,
                                     std::uint64_t step);

  // Asks for the memory that a call takes, which allocate() gets. Returns why what a plug-in asks for is refused, or nothing.
  std::string plan(const KernelRule& shadow, const cpu::Context& context, const ShadowedCall& call,
                   const PluginReport& report);
  // Returns false where there is not enough memory.
  bool allocate() { return scratch_.enough() || scratch_.allocate(); }
  // Forgets what was asked for.
  void forget() { scratch_ = cpu::Scratch(threads_); }
  std::uint64_t bytes() const { return scratch_.bytes(); }

  // Runs the call by run_chosen(), and by the candidate. Which of them comes first alternates, because the second finds the inputs in the
  // caches.
  void run(const KernelRule& shadow, const cpu::Context& context, const ShadowedCall& call,
           const Implementation& chosen, const std::function<void()>& run_chosen, const PluginReport& report);

  std::vector<ShadowResult> take() { return std::exchange(results_, {}); }

 private:
  ShadowResult& result_of(const KernelRule& shadow, const ShadowedCall& call, const Implementation& chosen);

  int threads_;
  cpu::Scratch scratch_;
  std::int64_t calls_ = 0;
  std::vector<ShadowResult> results_;
};

}  // namespace holdfast::device
