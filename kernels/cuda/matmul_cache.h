// Caches cuBLASLt's matrix products by shape. The algorithm of a call is chosen once, when the call is
// planned. A plan that prefer() was given comes first: an algorithm that it has for the shape is taken wherever this
// library and this GPU have it, too, so that a run keeps its bits when it moves to another GPU of its kind. Else a
// rule chooses, which uses the shape alone: the first of the eight best answers of the library's
// heuristic, for a fixed limit of workspace and the alignment that the leading dimensions allow, that does
// not split sums and add them in the order in which blocks arrive (CUBLASLT_REDUCTION_SCHEME_INPLACE). A
// library that is newer than this file may refuse a query or give an unknown answer: such a product is
// computed by the own kernel, and never a reason to end the program. Nothing is ever timed, so two runs with
// one version of the library on GPUs of one kind take the same algorithms; and the library promises the same
// bits for one algorithm as long as streams do not share a workspace, which they do not here.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/product_plan.h"
#include "kernels/product_shape.h"
#include "runtime/core/result.h"

namespace holdfast::kernels::cuda {

// Returns the library's version, such as "cuBLASLt 13.1.0": with the GPU it decides the algorithms, and so
// the bits.
std::string matmul_library();

// Returns whether the library's product multiplies by GELU's derivative itself. In fp32, where a pass of its own
// has the same result, it does not: NVIDIA does not say which epilogues "pedantic" products have.
constexpr bool ends_with_gelu_slope(DType dtype_c) {
  return dtype_c == DType::bf16;
}

// One product as the library describes it, with the algorithm chosen for it.
class Product {
 public:
  // Takes the algorithm with the text `preferred` (algorithm()), or queries the heuristic where there is no such one.
  // m, n and k are positive.
  Product(cublasLtHandle_t library, const ProductShape& shape, std::string_view preferred = {});

  // Returns false when the library has no algorithm for this shape whose sums have a known order.
  bool found() const { return why_not_.empty(); }
  // Returns a clause, such as "cuBLASLt has no algorithm for it"; empty when there is one.
  const std::string& why_not() const { return why_not_; }
  std::size_t workspace_bytes() const { return choice_.workspaceSize; }
  // Returns whether the algorithm may be used with these addresses. It was chosen for 16 bytes, or less where
  // a leading dimension is odd.
  bool takes(const Matmul& op) const;
  // Puts the product on the stream; host memory is not allocated. The workspace is 256-byte aligned.
  cublasStatus_t run(cublasLtHandle_t library, const Matmul& op, std::byte* workspace,
                     cudaStream_t stream) const;
  // Returns a text such as "algorithm 66 tile 20 stages 36 splits 1 reduction 0 swizzle 0 custom 0 inner 0
  // cluster 2"; "?" stands for an attribute that the library does not report.
  std::string algorithm() const;
  // Returns the texts of all algorithms to try beside the chosen one, which is the first: what the heuristic names,
  // and each of it with its sums in parts.
  std::vector<std::string> alternatives(cublasLtHandle_t library);

 private:
  template <auto destroy>
  struct Destroy {
    void operator()(auto* description) const { destroy(description); }
  };
  using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  Operation operation_of(const ProductShape& shape);
  Layout layout_of(std::int64_t rows, std::int64_t row_length, std::int64_t leading, DType dtype);
  // Returns the answers of the heuristic that may be used, the best first; else notes why there are none.
  std::vector<cublasLtMatmulHeuristicResult_t> ask(cublasLtHandle_t library, int most);
  void choose(cublasLtHandle_t library);
  // Returns false where this library has no such algorithm for the product.
  bool take(cublasLtHandle_t library, std::string_view text);
  // Notes the first refusal of the library as the reason why there is no algorithm; false when it is one.
  bool accepted(cublasStatus_t status, const char* what);

  DType dtype_, dtype_c_;
  std::string why_not_;
  Operation operation_;
  Layout a_, b_, c_;
  std::uint32_t alignment_a_bytes_, alignment_b_bytes_, alignment_c_bytes_;  // of our operands
  cublasLtMatmulHeuristicResult_t choice_ = {};
};

// Holds the products by shape. Used by the launching thread only.
class MatmulCache {
 public:
  static Result<std::unique_ptr<MatmulCache>> make();  // for the current device
  ~MatmulCache();
  MatmulCache(const MatmulCache&) = delete;
  MatmulCache& operator=(const MatmulCache&) = delete;

  // Gives algorithms for products that are made from now on; what an earlier call gave for a shape stays.
  void prefer(const ProductAlgorithms& plan);
  // Returns the product of a shape, made at the first request; it lives as long as the cache.
  const Product& product(const ProductShape& shape);
  // Returns Product::alternatives() of a shape.
  std::vector<std::string> algorithms_for(const ProductShape& shape) const {
    return Product(library_, shape).alternatives(library_);
  }
  // Returns null when the product was not made.
  const Product* find(const ProductShape& shape) const;
  cublasLtHandle_t library() const { return library_; }

  // Returns every product with its algorithm, one a line, in a fixed order: to be recorded with a run.
  std::string description() const;

 private:
  explicit MatmulCache(cublasLtHandle_t library) : library_(library) {}

  cublasLtHandle_t library_;
  ProductAlgorithms preferred_;
  std::unordered_map<ProductShape, Product, ProductShapeHash> products_;
};

}  // namespace holdfast::kernels::cuda
