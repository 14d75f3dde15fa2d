// A matrix product made by oneDNN alone: the whole shape in one primitive, with the library's own threads.
// The yardstick of our own products, for benchmarks only: its bits depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/matmul_cache.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cpu {

// Runs oneDNN products. Used by the thread that made it. While it lives, that thread's oneDNN primitives take
// `threads` threads.
class LibraryMatmul {
 public:
  explicit LibraryMatmul(int threads);
  ~LibraryMatmul();

  bool supports(DType dtype) const;
  // Runs the product. The first call of a shape makes the primitive.
  void run(const Matmul& op);

 private:
  std::unique_ptr<MatmulCache> products_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace holdfast::kernels::cpu
