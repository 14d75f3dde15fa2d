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
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// Implementations of an op on one device.
struct KernelChoice {
  // Implementations in order; the first that supports the arguments runs. The last supports all.
  std::vector<const Implementation*> order;
  std::string why;  // reason for the first

  const Implementation& first() const { return *order.front(); }
  const Implementation& of(const void* arguments) const;
};
using KernelTable = std::array<KernelChoice, op_count>;  // by OpId

// A user's choice of an implementation.
struct KernelPreference {
  OpId op = OpId::count;
  std::string name;
  std::string origin = {};  // location of the setting, such as "run.toml:12:19"; or empty
};
// Returns "kernels.rmsnorm_forward = "mine" (run.toml:12:19)".
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
  // cannot run, and when the kernels for this processor were not built: others might give other bits.
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
  std::vector<const Implementation*> default_order(OpId op, const KernelTarget& target) const;

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

}  // namespace holdfast::kernels
