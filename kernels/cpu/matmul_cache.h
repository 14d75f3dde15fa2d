// oneDNN matmul primitives by shape, each of which runs on the calling thread alone. oneDNN's own threading
// is never used: it cuts sums by the number of threads, and so the bits would follow the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "kernels/product_shape.h"

namespace holdfast::inline kernels::cpu {

// To be called first on every thread that creates or runs products: each primitive then uses that thread
// only.
void use_one_thread_per_primitive();
// What primitives made and run on this thread may take instead; kernels never do.
void use_threads_per_primitive(int threads);

// "oneDNN 2.6.3 avx512_core_bf16": the library and the instruction set it chose.
std::string matmul_library();

// One matrix product of one thread. Different threads may run it at once.
class Product {
 public:
  virtual ~Product() = default;
  // `scratch` has scratch_bytes() and belongs to `thread`.
  virtual void run(int thread, const void* a, const void* b, const void* bias, void* c,
                   std::byte* scratch) const = 0;
  virtual std::size_t scratch_bytes() const = 0;
};

// How bf16 is multiplied: by the library where the processor allows, or always by widening to fp32.
enum class Bf16Products { native, widened };

// Used by the queue thread only; the products it hands out are used by the team.
class MatmulCache {
 public:
  explicit MatmulCache(int threads, Bf16Products bf16 = Bf16Products::native);
  ~MatmulCache();

  // Whether the library multiplies this type itself (bf16 needs a processor with AVX-512); where it does not,
  // callers widen to fp32.
  bool supports(DType dtype) const;

  // Made when first asked for; lives as long as the cache. m, n and k are positive.
  const Product& product(const ProductShape& shape);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  std::unordered_map<ProductShape, std::unique_ptr<Product>, ProductShapeHash> products_;
};

}  // namespace holdfast::inline kernels::cpu
