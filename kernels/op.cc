#include "kernels/op.h"

namespace holdfast::kernels {
namespace {

constexpr const char* class_names[op_class_count] = {
#define HF_CLASS_NAME(op_class, name) name,
    HF_OP_CLASSES(HF_CLASS_NAME)
#undef HF_CLASS_NAME
};
constexpr OpClass classes[op_count] = {
#define HF_CLASS_OF(op, contract, op_class) OpClass::op_class,
    HF_OPS(HF_CLASS_OF)
#undef HF_CLASS_OF
};

}  // namespace

const char* name_of(OpId id) {
  return id < OpId::count ? op_names[static_cast<std::size_t>(id)] : "unknown";
}

const char* name_of(OpClass op_class) {
  return op_class < OpClass::count ? class_names[static_cast<std::size_t>(op_class)] : "unknown";
}

OpClass class_of(OpId id) {
  return id < OpId::count ? classes[static_cast<std::size_t>(id)] : OpClass::copy;
}

bool once_per_step(OpId id) {
  const OpClass op_class = class_of(id);
  return op_class == OpClass::optimizer || op_class == OpClass::copy;
}

}  // namespace holdfast::kernels
