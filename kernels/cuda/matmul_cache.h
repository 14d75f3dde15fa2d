// cuBLASLt's matrix products by shape. Which of the library's algorithms a call takes is decided once, when
// it is planned, by a rule that knows the shape alone: the first of the eight best answers of the library's
// heuristic, for a fixed limit of workspace and the alignment that the leading dimensions allow, that does
// not split sums and add them in the order in which blocks arrive (CUBLASLT_REDUCTION_SCHEME_INPLACE). A
// library that is newer than this file may refuse a question or give an answer that is not known here: such a
// product is computed by the own kernel, never a reason to end the program. Nothing is ever timed, so two
// runs with one version of the library on GPUs of one kind take the same algorithms; and the library promises
// the same bits for one algorithm as long as streams do not share a workspace, which they do not here.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "kernels/product_shape.h"
#include "runtime/core/result.h"

namespace holdfast::inline kernels::cuda {

// "cuBLASLt 13.1.0": with the GPU it decides the algorithms, and so the bits.
std::string matmul_library();

// One product as the library wants it described, with the algorithm chosen for it.
class Product {
 public:
  // Asks the heuristic. m, n and k are positive.
  Product(cublasLtHandle_t library, const ProductShape& shape);

  // False: the library has no algorithm for this shape whose sums have an order that is known.
  bool found() const { return why_not_.empty(); }
  // A clause, such as "cuBLASLt has no algorithm for it"; empty when there is one.
  const std::string& why_not() const { return why_not_; }
  std::size_t workspace_bytes() const { return choice_.workspaceSize; }
  // Whether the algorithm may be given these addresses. It was chosen for 16 bytes, or less where a leading
  // dimension is odd.
  bool takes(const Matmul& op) const;
  // Puts it on the stream; host memory is not allocated. The workspace is 256-byte aligned.
  cublasStatus_t run(cublasLtHandle_t library, const Matmul& op, std::byte* workspace,
                     cudaStream_t stream) const;
  // "algorithm 66 tile 20 stages 36 splits 1 reduction 0 swizzle 0 custom 0 inner 0 cluster 2"; "?" stands
  // for an attribute that the library does not tell.
  std::string algorithm() const;

 private:
  template <auto destroy>
  struct Destroy {
    void operator()(auto* description) const { destroy(description); }
  };
  using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  Operation operation_of(const ProductShape& shape);
  Layout layout_of(std::int64_t rows, std::int64_t row_length, std::int64_t leading, DType dtype);
  void choose(cublasLtHandle_t library);
  // Notes the first refusal of the library as the reason why there is no algorithm; false when it is one.
  bool accepted(cublasStatus_t status, const char* what);

  std::string why_not_;
  Operation operation_;
  Layout a_, b_, c_;
  std::uint32_t alignment_a_bytes_, alignment_b_bytes_, alignment_c_bytes_;  // of our operands
  cublasLtMatmulHeuristicResult_t choice_ = {};
};

// Used by the launching thread only.
class MatmulCache {
 public:
  static Result<std::unique_ptr<MatmulCache>> make();  // for the current device
  ~MatmulCache();
  MatmulCache(const MatmulCache&) = delete;
  MatmulCache& operator=(const MatmulCache&) = delete;

  // Made when first asked for; lives as long as the cache.
  const Product& product(const ProductShape& shape);
  // Null when it was not made.
  const Product* find(const ProductShape& shape) const;
  cublasLtHandle_t library() const { return library_; }

  // Every product with its algorithm, a line each, in an order of their own: what to keep with a run.
  std::string description() const;

 private:
  explicit MatmulCache(cublasLtHandle_t library) : library_(library) {}

  cublasLtHandle_t library_;
  std::unordered_map<ProductShape, Product, ProductShapeHash> products_;
};

}  // namespace holdfast::inline kernels::cuda
