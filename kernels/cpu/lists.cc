#include "kernels/cpu/lists.h"

#include <vector>

namespace holdfast::kernels::cpu {

namespace {

std::vector<ImplementationList> all_lists() {
  std::vector<ImplementationList> lists = {reference_list};
  for (const ImplementationList* list : table_lists()) lists.push_back(*list);
  for (const ImplementationList* list : custom_lists()) lists.push_back(*list);
  return lists;
}

}  // namespace

std::span<const ImplementationList> implementation_lists() {
  static const std::vector<ImplementationList> lists = all_lists();
  return lists;
}

}  // namespace holdfast::kernels::cpu
