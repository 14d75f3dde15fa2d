// KernelRegistry: every implementation of every op, by name, and the choice of a device among them.
//
//   const KernelRegistry& registry = kernel_registry();
//   for (const Implementation* each : registry.of(OpId::rmsnorm_forward)) fmt::print("{}\n", each->name);
//   HF_TRY(const KernelTable table, registry.choose(best_cpu_isa(), {{OpId::rmsnorm_forward, "mine"}}));
//
// docs/kernels.md walks through adding one. The registry is built once, from constant lists that the files of
// kernels name; nothing changes it afterwards, so any thread may read it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/call_filter.h"
#include "kernels/cpu/isa.h"
#include "kernels/implementation.h"
#include "kernels/op.h"
#include "runtime/core/result.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// The processor that kernels are chosen for.
struct KernelTarget {
  CpuIsa isa = CpuIsa::portable;
  int gpu = 0;  // 10 times the compute capability of a GPU, 0 = none

  bool runs(const Implementation& implementation) const {
    return implementation.needs <= isa && (implementation.needs_gpu == 0 || implementation.needs_gpu == gpu);
  }
};

using ImplementationOrder = std::vector<const Implementation*>;
// Returns the first of them that computes the call. The last computes all.
const Implementation& first_that_computes(const ImplementationOrder& order, const void* arguments);

// KernelRule is a choice for some calls of an op.
struct KernelRule {
  CallFilter filter;
  ImplementationOrder order;  // as that of a KernelChoice
  std::string why;
  std::string key;         // "kernels.rules[0]"
  std::int64_t every = 0;  // of a shadow: the number of steps from one comparison to the next

  const Implementation& first() const { return *order.front(); }
};

// Implementations of an op on one device.
struct KernelChoice {
  // Implementations in order; the first that supports the arguments runs. The last supports all.
  ImplementationOrder order;
  std::string why;  // reason for the first
  // Rules for some of the calls, which come before `order`. Those that are about one call choose the same.
  std::vector<KernelRule> rules = {};
  // Implementations that compute some of the calls a second time, in some steps, to be compared with the chosen one. They
  // decide no bit of a run.
  std::vector<KernelRule> shadows = {};

  const Implementation& first() const { return *order.front(); }
  // Returns the order of a call. `arguments` is the struct of the op. A pure function of both.
  const ImplementationOrder& order_of(const CallPlace& place, const void* arguments) const {
    for (const KernelRule& rule : rules) {
      if (rule.filter.has(place, arguments)) return rule.order;
    }
    return order;
  }
};
using KernelTable = std::array<KernelChoice, op_count>;  // by OpId

// A user's choice of an implementation.
struct KernelPreference {
  OpId op = OpId::count;
  std::string name;
  std::string origin = {};  // location of the setting, such as "run.toml:12:19"; or empty
  // A rule, which is about some of the calls, has a key, such as "kernels.rules[0]", and a filter (CallFilter::parse).
  std::string key = {};
  std::string layers = {};
  std::vector<ShapeCondition> where = {};
  std::int64_t every = 0;  // above 0: it is a shadow
};
// Returns "kernels.rmsnorm_forward = "mine" (run.toml:12:19)", or "kernels.rules[0] (run.toml:12:9)".
std::string preference_text(const KernelPreference& request);

class KernelRegistry {
 public:
  // Makes a registry. `built` lists the instruction sets for which they are compiled.
  explicit KernelRegistry(std::span<const ImplementationList> lists,
                          std::span<const CpuIsa> built = cpu_isas);

  // Returns the implementations of an op in the order of their files, every build of them.
  std::vector<const Implementation*> of(OpId op) const;
  // Returns the build of `name` that needs most of what the target has; null when there is none.
  const Implementation* find(OpId op, std::string_view name, const KernelTarget& target) const;
  const Implementation* find(OpId op, std::string_view name, CpuIsa isa) const {
    return find(op, name, KernelTarget{.isa = isa});
  }

  // Returns the kernels that a device with this processor runs. ExitCode::config with a sentence when two
  // files give one name to different things, when a request names nothing, or something that the processor
  // cannot run, when a rule is none or contradicts another, and when the kernels for this processor were not
  // built: others might give other bits.
  Result<KernelTable> choose(const KernelTarget& target, std::span<const KernelPreference> requests) const;
  Result<KernelTable> choose(CpuIsa isa, std::span<const KernelPreference> requests) const {
    return choose(KernelTarget{.isa = isa}, requests);
  }

 private:
  struct Entry {
    const Implementation* implementation;
    const char* file;
  };
  Result<void> check_names() const;
  Result<void> check_isa(CpuIsa isa) const;
  Result<const Implementation*> find_request(const KernelPreference& request,
                                             const KernelTarget& target) const;
  ImplementationOrder default_order(OpId op, const KernelTarget& target) const;
  Result<void> add_request(const KernelPreference& request, const KernelTarget& target,
                           KernelTable& table) const;

  std::vector<Entry> entries_;
  std::span<const CpuIsa> built_;
};

// Returns the registry of this program.
const KernelRegistry& kernel_registry();

// Returns the choices that decide the bits of a run in `precision` (fp32 or bf16) beyond what is the same on
// every processor: "oneDNN 2.6.3 avx512_core_amx, rmsnorm_forward mine". Empty when every choice gives the
// bits of "portable".
std::string bits_of(const KernelTable& table, DType precision);
std::string bits_of(const KernelChoice& choice, DType precision);

// Calls visit(implementation, text) for each implementation that decides bits of an op, where `is_known` does not say that
// its bits are those that every device has. `text`: " in layers 0-3" for one of a rule, which counts also where its bits are
// known and those of the other calls are not.
void visit_bits(const KernelChoice& choice, const std::function<bool(const Implementation&)>& is_known,
                const std::function<void(const Implementation&, const std::string& text)>& visit);

}  // namespace holdfast::kernels
