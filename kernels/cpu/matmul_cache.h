// Caches oneDNN matmul primitives by shape, each of which runs on the calling thread alone. oneDNN's own
// threading is never used: it cuts sums by the number of threads, and so the bits would depend on the
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "kernels/product_shape.h"

namespace holdfast::kernels::cpu {

// Limits each primitive to the calling thread. Must be called first on every thread that creates or runs
// products.
void use_one_thread_per_primitive();
// Lets primitives made and run on this thread take `threads` threads instead; kernels never do.
void use_threads_per_primitive(int threads);

// Returns the library and the instruction set it chose, such as "oneDNN 2.6.3 avx512_core_bf16".
std::string matmul_library();

// One matrix product on one thread. Different threads may run it at once.
class Product {
 public:
  virtual ~Product() = default;
  // Runs the product. `scratch` has scratch_bytes() and belongs to `thread`.
  virtual void run(int thread, const void* a, const void* b, const void* bias, void* c,
                   std::byte* scratch) const = 0;
  virtual std::size_t scratch_bytes() const = 0;
};

// Selects how bf16 is multiplied: by the library where the processor allows, or always by widening to fp32.
enum class Bf16Products { native, widened };

// Holds the products by shape. Only the queue thread uses the cache; the team uses the products that it hands
// out.
class MatmulCache {
 public:
  explicit MatmulCache(int threads, Bf16Products bf16 = Bf16Products::native);
  ~MatmulCache();

  // Returns whether the library multiplies this type itself (bf16 needs a processor with AVX-512); otherwise
  // callers widen to fp32.
  bool supports(DType dtype) const;

  // Returns the product of a shape, made at the first request; it lives as long as the cache. m, n and k are
  // positive.
  const Product& product(const ProductShape& shape);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  std::unordered_map<ProductShape, std::unique_ptr<Product>, ProductShapeHash> products_;
};

}  // namespace holdfast::kernels::cpu
