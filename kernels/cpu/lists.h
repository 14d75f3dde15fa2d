// The lists that the registry is made of. Each names its files' implementations explicitly, so that the
// linker cannot leave one out.
#pragma once

#include <span>

#include "kernels/cpu/isa.h"
#include "kernels/implementation.h"

namespace holdfast::kernels::cpu {

// Returns all lists, in the order that tables show.
std::span<const ImplementationList> implementation_lists();

// Returns the instruction sets that kernels are compiled for: all, or those that the build machine's
// processor chooses among (HOLDFAST_NATIVE). CMake writes this function and the next.
std::span<const CpuIsa> built_isas();

// Returns the lists below of kernels/cpu/ops and kernels/cpu/ops_bf16 that are built.
std::span<const ImplementationList* const> table_lists();

// List of kernels/reference/table.cc: every op in double, on one thread.
extern const ImplementationList reference_list;

// List of kernels/cpu/ops/table.cc, once per instruction set.
namespace portable {
extern const ImplementationList table_list;
}
namespace avx2 {
extern const ImplementationList table_list;
}
namespace avx512 {
extern const ImplementationList table_list;
}

// List of kernels/cpu/ops_bf16/table.cc, once per instruction set.
namespace avx512_bf16 {
extern const ImplementationList table_list;
}
namespace amx {
extern const ImplementationList table_list;
}

// Returns the lists of kernels/cpu/custom/*.cc; CMake writes the function.
std::span<const ImplementationList* const> custom_lists();

}  // namespace holdfast::kernels::cpu
