#include "kernels/op.h"

namespace holdfast::kernels {

const char* name_of(OpId id) {
  return id < OpId::count ? op_names[static_cast<std::size_t>(id)] : "unknown";
}

}  // namespace holdfast::kernels
