#include "kernels/cpu/lists.h"

#include <vector>

namespace holdfast::cpu {

namespace {

std::vector<ImplementationList> all_lists() {
  std::vector<ImplementationList> lists = {reference_list,     portable::table_list,    avx2::table_list,
                                           avx512::table_list, avx512_bf16::table_list, amx::table_list};
  for (const ImplementationList* list : custom_lists()) lists.push_back(*list);
  return lists;
}

}  // namespace

std::span<const ImplementationList> implementation_lists() {
  static const std::vector<ImplementationList> lists = all_lists();
  return lists;
}

}  // namespace holdfast::cpu
