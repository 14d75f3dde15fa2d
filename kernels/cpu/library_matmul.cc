#include "kernels/cpu/library_matmul.h"

namespace holdfast::kernels::cpu {

LibraryMatmul::LibraryMatmul(int threads) {
  use_threads_per_primitive(threads);
  products_ = std::make_unique<MatmulCache>(1);
}

LibraryMatmul::~LibraryMatmul() {
  use_one_thread_per_primitive();
}

bool LibraryMatmul::supports(DType dtype) const {
  return products_->supports(dtype);
}

void LibraryMatmul::run(const Matmul& op) {
  check_matmul(op);
  const Product& product = products_->product(product_shape(op));
  constexpr std::size_t alignment_bytes = 64;
  if (product.scratch_bytes() + alignment_bytes > scratch_bytes_) {
    scratch_bytes_ = product.scratch_bytes() + alignment_bytes;
    scratch_ = std::make_unique<std::byte[]>(scratch_bytes_);
  }
  const std::size_t misalignment = reinterpret_cast<std::uintptr_t>(scratch_.get()) % alignment_bytes;
  product.run(0, op.a, op.b, op.bias, op.c, scratch_.get() + (alignment_bytes - misalignment));
}

}  // namespace holdfast::kernels::cpu
