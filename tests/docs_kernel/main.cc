// The kernel that docs/kernels.md walks through, compiled from the page and held to the tests of its op like
// any other. In a program of its own, so that who follows the page can give his the same name.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/lists.h"
#include "kernels/registry.h"
#include "tests/kernels/kernel_cases.h"

namespace holdfast::kernels::cpu {
std::span<const ImplementationList* const> documented_lists();  // CMake writes it
}

namespace {

const holdfast::kernels::KernelRegistry& registry_of_page() {
  static const holdfast::kernels::KernelRegistry registry = [] {
    using namespace holdfast::kernels::cpu;
    std::vector<holdfast::kernels::ImplementationList> lists = {reference_list, portable::table_list,
                                                                avx2::table_list, avx512::table_list};
    for (const holdfast::kernels::ImplementationList* list : documented_lists()) lists.push_back(*list);
    return holdfast::kernels::KernelRegistry(lists);
  }();
  return registry;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  holdfast::test::register_kernel_tests(registry_of_page(), "mine");
  return RUN_ALL_TESTS();
}
