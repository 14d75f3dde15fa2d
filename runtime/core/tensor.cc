#include "runtime/core/tensor.h"

namespace holdfast::core {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::int32:
      return "int32";
    case DType::fp64:
      return "fp64";
  }
  return "unknown";
}

}  // namespace holdfast::core
