# HOLDFAST_NATIVE: what tools/quickstart builds, so that nobody waits for what this machine does not run. The kernels that are left
# are those that a build of everything would choose here, so runs have the same bits. The program refuses to choose among them
# on another processor (KernelRegistry::choose()). The tests of kernels need all; those of other layers do not.
#
# HOLDFAST_OPS_ISAS, HOLDFAST_OPS_BF16_ISAS: the instruction sets that kernels/cpu/ops and kernels/cpu/ops_bf16 are compiled for.
set(HOLDFAST_OPS_ISAS portable avx2 avx512)
set(HOLDFAST_OPS_BF16_ISAS avx512_bf16 amx)
if(NOT HOLDFAST_NATIVE)
  return()
endif()

# Asks the code that the program asks.
if(NOT DEFINED CACHE{HOLDFAST_BEST_ISA})
  set(asks ${CMAKE_BINARY_DIR}/CMakeFiles/best_isa.cc)
  file(WRITE ${asks} "#include <cstdio>\n#include \"runtime/core/layers.h\"\n#include \"kernels/cpu/isa.cc\"\n"
    "int main() { std::puts(name_of(holdfast::kernels::best_cpu_isa())); }\n")
  try_run(code compiled SOURCES ${asks} CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON RUN_OUTPUT_VARIABLE best)
  if(NOT compiled OR NOT code EQUAL 0)
    message(FATAL_ERROR "what this processor runs could not be found out (${asks}): configure with -DHOLDFAST_NATIVE=OFF")
  endif()
  string(STRIP "${best}" best)
  set(HOLDFAST_BEST_ISA ${best} CACHE INTERNAL "What the program takes for the best that this processor runs")
endif()
if(HOLDFAST_BEST_ISA IN_LIST HOLDFAST_OPS_BF16_ISAS)
  set(HOLDFAST_OPS_ISAS avx512)
  set(HOLDFAST_OPS_BF16_ISAS ${HOLDFAST_BEST_ISA})
else()
  set(HOLDFAST_OPS_ISAS ${HOLDFAST_BEST_ISA})
  set(HOLDFAST_OPS_BF16_ISAS "")
endif()
message(STATUS "Kernels for this processor only: ${HOLDFAST_OPS_ISAS} ${HOLDFAST_OPS_BF16_ISAS}")
