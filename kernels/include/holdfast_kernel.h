// holdfast_kernel.h: all that a kernel needs to be loaded by Holdfast, without a build of its tree. C99, and C++.
//
// Written by tools/kernel-header from the contracts of the ops (kernels/*.h). `holdfast kernel new OP` makes a folder
// that uses it; docs/kernels.md is the tutorial. A plug-in is a shared library that exports hf_kernels():
//
//   static int launch(const hf_call* call, void* workspace, void* stream) {
//     const hf_add* op = (const hf_add*)call->op;
//     ...
//     return 0;
//   }
//   static const hf_kernel kernels[] = {{.abi = HF_KERNEL_ABI, .device = HF_CPU, .op = "add", .schema = HF_SCHEMA_ADD,
//                                        .name = "mine", .what = "one loop", .launch = launch}};
//   HF_EXPORT const hf_kernel* hf_kernels(int* count) { *count = 1; return kernels; }
#ifndef HOLDFAST_KERNEL_H
#define HOLDFAST_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Version of what this file declares. A program loads plug-ins of its own version alone.
#define HF_KERNEL_ABI 1

#define HF_EXPORT __attribute__((visibility("default")))

// Devices.
enum { HF_CPU = 0, HF_CUDA = 1 };
// Types of elements, the values of fields named dtype. bf16: the upper half of an fp32.
enum { HF_FP32 = 0, HF_BF16 = 1, HF_INT32 = 2, HF_FP64 = 3 };
// Blocks of ops that have results by block: so many elements of one tensor, the last block of it perhaps fewer.
#define HF_BLOCK_ELEMENTS 4096

// What a kernel promises about its bits. `holdfast kernel check` runs it to find out, and believes nothing.
enum {
  HF_SAME_BITS_TWICE = 1,  // the same arguments give the same bits in every run
  HF_LAYOUT_FREE = 2,      // and on every number of threads, at every address: in every layout of a run
  HF_GRAPH_SAFE = 4,       // for a GPU: a launch may be recorded once and repeated
  HF_BITS_OF_PARTS = 8     // of an op that is others in turn: their bits, as Holdfast's own kernels have them
};

// A part of a kernel's work: part `index`, on thread `thread` of the team.
typedef void (*hf_task)(void* data, int64_t index, int32_t thread);

// One call of a kernel. It and what it points to live until the function returns that got it.
typedef struct hf_call {
  uint64_t bytes;    // size of this struct in the program, which may have more fields than this file knows
  uint32_t device;   // HF_CPU or HF_CUDA
  int32_t threads;   // number of threads of the team; 0 where the question is about shapes alone
  const void* op;    // the op's struct, below: a const hf_add* for the op "add"
  const void* team;  // for parallel_for
  // Runs task(data, i, thread) for each i from 0 to count - 1 on the team, in any order, and returns when all are
  // done. Not from inside a task. Cut the work by shapes, never by the number of threads: each part is computed
  // alike wherever it runs. NULL in supports and workspace. A kernel that does without runs on one thread.
  void (*parallel_for)(const struct hf_call* call, int64_t count, hf_task task, void* data);
} hf_call;

// A kernel: one implementation of one op, constant for as long as the library is loaded.
typedef struct hf_kernel {
  uint32_t abi;       // HF_KERNEL_ABI; the first word in every version
  uint32_t device;    // HF_CPU or HF_CUDA
  uint32_t flags;     // HF_SAME_BITS_TWICE, ... added
  uint32_t reserved;  // 0
  const char* op;     // "rmsnorm_forward"
  uint64_t schema;    // HF_SCHEMA_RMSNORM_FORWARD, which changes with the op's struct
  const char* name;   // for [kernels] rmsnorm_forward = "NAME": letters, digits and _; none of Holdfast's own
  const char* what;   // a few words for tables; or NULL
  // Returns whether the kernel computes this call, from shapes and types alone: pointers that are not NULL only say
  // that something is given. Other calls go to the default. NULL: it computes all.
  int (*supports)(const hf_call* call);
  // Returns the bytes of working memory that the call needs, from shapes and types alone. It is 64-byte aligned, has
  // any content, and is anybody's again when launch has returned. NULL: none.
  size_t (*workspace)(const hf_call* call);
  // Computes the op. On a CPU the work is done when it returns, and stream is NULL; for a GPU it puts work on the
  // stream and waits for nothing. Returns 0. Anything else says that the call was not computed: the process prints the
  // number and ends, and a run that starts again meets it again. Calls that a kernel does not compute are told of by
  // supports.
  int (*launch)(const hf_call* call, void* workspace, void* stream);
} hf_kernel;

// The two functions that a plug-in exports. hf_source is optional: the git commit of its source, followed by " dirty"
// where files had been changed, for the run's record.
HF_EXPORT const hf_kernel* hf_kernels(int* count);
HF_EXPORT const char* hf_source(void);

// Structs that ops point to.

// BlockSegment is a part of an array whose blocks (runtime/core/block.h) are counted from its own first element on, as
// those of each tensor of a bucket of gradients are. The segments of a list lie in the order of the array, perhaps with
// padding between them, and are numbered through by block: an op has results for the blocks of the first one, then for
// those of the second.
typedef struct hf_block_segment {
  int64_t first;  // elements of the array
  int64_t count;
  int64_t first_block;  // number of blocks of the segments before
} hf_block_segment;

// One tensor, or the part of it that a rank owns. All arrays have `count` elements; the moments are of the type that
// the op says. A rule with one moment has no moment2. Of a frozen tensor, which only OptimizerDigest takes, moments,
// average and gradient are null.
typedef struct hf_adamw_tensor {
  float* weight;
  void* moment1;
  void* moment2;
  float* ema;  // exponential moving average of the weights; or NULL
  const float* gradient;
  uint16_t* copy;      // or NULL
  float* kept_weight;  // Second copies of what an update leaves, where it keeps_state; or NULL.
  void* kept_moment1;
  void* kept_moment2;
  float* kept_ema;
  int64_t count;
  int64_t first_block;  // number of blocks (runtime/core/block.h) in the tensors before
  float weight_decay;
  // Number of the first block for the rounding of bf16 moments. It is the same whoever owns the block.
  uint64_t rounding_block;
} hf_adamw_tensor;

// Result of comparing the blocks that an op read with the digests that an op before left.
typedef struct hf_state_damage {
  uint64_t block_count;  // number of blocks that differ
  uint64_t first_block;  // lowest of them, counted over all tensors of the table
} hf_state_damage;

// Digest of the elements of a tensor, whose bits are taken as an unsigned integer of their size.
typedef struct hf_digest_words {
  uint64_t sum;        // of the bits of all elements
  uint64_t weighted;   // of the bits of each element times digest_multiplier() of its index
  uint64_t nonfinite;  // number of elements that are infinite or NaN; 0 for int32
  // Bits of the largest magnitude of the finite elements, as fp32 (those of fp64 rounded, and at most the
  // largest finite value of fp32); 0 for int32.
  uint32_t largest;
  uint32_t reserved;  // always 0
} hf_digest_words;

// Statistics of one row: sum = sum of e^(x - largest) over some columns; without a column -infinity, 0 and 0.
typedef struct hf_softmax_statistics {
  float largest;
  float sum;
  float target_logit;  // if the target is among the columns, else 0
} hf_softmax_statistics;

// Functions that contracts name.

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wconversion"
#endif

// Returns digest_multiplier() of kernels/digest.h: the multiplier of the element with an index, in the op digest.
static inline uint32_t hf_digest_multiplier(uint64_t index) {
  return (uint32_t)(2 * index + 1) * UINT32_C(0x9e3779b1);
}

// Digests of blocks (runtime/core/block_digest.h): sum over the arrays of the array's weight, times the sum over its elements
// i of g^i modulo 2^32 times the bits of the element, modulo 2^64. The weight of `weight`, and of a gradient, is 1.
#define HF_DIGEST_GENERATOR UINT32_C(747796405)
#define HF_DIGEST_OF_MOMENT1 UINT64_C(1960755201)
#define HF_DIGEST_OF_MOMENT2 UINT64_C(2042462209)
#define HF_DIGEST_OF_EMA UINT64_C(245121025)

// Returns the sum of the elements of one array, of fp32 or of bf16, whose bits are those of the same number in fp32.
static inline uint64_t hf_digest_sum(const void* values, uint8_t dtype, int64_t count) {
  const unsigned char* bytes = (const unsigned char*)values;
  uint32_t weight = 1;
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    if (dtype == HF_BF16) {
      uint16_t upper;
      __builtin_memcpy(&upper, bytes + 2 * i, sizeof(upper));
      bits = (uint32_t)upper << 16;
    } else {
      __builtin_memcpy(&bits, bytes + 4 * i, sizeof(bits));
    }
    sum += (uint64_t)weight * bits;
    weight *= HF_DIGEST_GENERATOR;
  }
  return sum;
}

// Returns state_digest(): the digest of a block. Moments that are NULL count as zeros; for a gradient both are. An average of the
// weights adds HF_DIGEST_OF_EMA * hf_digest_sum(ema, HF_FP32, count).
static inline uint64_t hf_state_digest(const float* weight, const void* moment1, const void* moment2,
                                       int64_t count, uint8_t moments) {
  uint64_t digest = hf_digest_sum(weight, HF_FP32, count);
  if (moment1) digest += HF_DIGEST_OF_MOMENT1 * hf_digest_sum(moment1, moments, count);
  if (moment2) digest += HF_DIGEST_OF_MOMENT2 * hf_digest_sum(moment2, moments, count);
  return digest;
}

// Stochastic rounding of fp32 to bf16 (kernels/stochastic_rounding.h).
typedef struct hf_rounding_key {
  uint32_t first, second;
} hf_rounding_key;

// Returns rounding_key_of_block(): the key of a block. `key`: rounding_key of adamw.
static inline hf_rounding_key hf_rounding_key_of_block(uint64_t key, uint64_t block) {
  hf_rounding_key result;
  uint64_t x = key + block * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  x = x ^ (x >> 31);
  result.first = (uint32_t)x;
  result.second = (uint32_t)(x >> 32);
  return result;
}

// Returns rounding_bits(): 32 random bits of an element of a block.
static inline uint32_t hf_rounding_bits(hf_rounding_key key, uint32_t element) {
  uint32_t x = element + key.first;
  x = (x ^ (x >> 17)) * UINT32_C(0xed5ad4bb);
  x = x ^ (x >> 11) ^ key.second;
  x = x * UINT32_C(0xac4c1b51);
  x = (x ^ (x >> 15)) * UINT32_C(0x31848bab);
  return x ^ (x >> 14);
}

// Returns rounded_with(): the bits of a number rounded to bf16, as fp32 bits whose lower half is zero. `random`: 16 bits.
static inline uint32_t hf_rounded_with(uint32_t bits, uint32_t random) {
  const uint32_t is_nan = (bits & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000);
  return (is_nan ? bits | UINT32_C(0x00400000) : bits + random) & UINT32_C(0xffff0000);
}

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

// === op matmul ===
//
// Matrix product C[m,n] = op(A)[m,k] x op(B)[k,n] (+ bias[n]) (+ residual[m,n], or C if accumulate), or times
// the derivative of GELU at gelu_of[m,n] (kernels/activation.h). Row-major with leading dimensions in elements.
//
// The three products of a linear layer y_NO = x_NI W_OI^T:
//   forward          A = x (N,I), B = W transposed, C = y in the activation dtype, bias optional; a layer
//                    that ends a branch adds the branch to the residual stream
//   input gradient   A = dy (N,O), B = W, C = dx; of a layer that reads GELU, C = the gradient of GELU's input
//   weight gradient  A = dy transposed, B = x, C = dW in fp32, accumulate over microbatches
// Products and sums are fp32 (bf16 inputs are exact in fp32); C is rounded once: with bias and residual, in
// whose order an implementation is free, or times the derivative, which is computed in fp32. How a call is cut into
// pieces for threads never changes a bit.
//
// Own implementations (kernels/cpu/gemm): every element is a sum over the depth in order, in chunks that
// follow from k alone, so with vector instructions the bits are those of any processor; with bf16
// instructions ("avx512_bf16", "amx") they are specific to that instruction. "onednn" cuts a call into tiles
// that follow from the shape; its bits depend on the library and the processor. Device::description names
// what decides them.
typedef struct hf_matmul {
  // read, dtype, m * k elements, in transpose_a ? k : m rows, one every lda; (m,k), or (k,m) when transpose_a
  const void* a;
  // read, dtype, k * n elements, in transpose_b ? n : k rows, one every ldb; (k,n), or (n,k) when transpose_b
  const void* b;
  void* c;  // written, dtype_c, m * n elements, in m rows, one every ldc, added to where accumulate; (m,n)
  const void* bias;  // read, dtype, n elements, or NULL; (n), or NULL
  // read, dtype_c, m * n elements, in m rows, one every ldc, or NULL; (m,n) in rows of ldc, or NULL; apart
  // from c, and not together with accumulate.
  const void* residual;
  // read, dtype_c, m * n elements, in m rows, one every ldc, or NULL; (m,n) in rows of ldc, or NULL; apart
  // from c, and not together with accumulate, bias or residual.
  const void* gelu_of;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t lda;
  int64_t ldb;
  int64_t ldc;
  uint8_t transpose_a;
  uint8_t transpose_b;
  uint8_t accumulate;  // requires dtype_c == fp32
  uint8_t dtype;       // HF_FP32 or HF_BF16; of a, b, bias: fp32 or bf16
  uint8_t dtype_c;     // HF_FP32 or HF_BF16; fp32, or bf16 when dtype is
} hf_matmul;
#define HF_SCHEMA_MATMUL UINT64_C(0x88881debac90fd7a)

// === op bias_gradient ===
//
// Matrix product C[m,n] = op(A)[m,k] x op(B)[k,n] (+ bias[n]) (+ residual[m,n], or C if accumulate), or times
// the derivative of GELU at gelu_of[m,n] (kernels/activation.h). Row-major with leading dimensions in elements.
//
// The three products of a linear layer y_NO = x_NI W_OI^T:
//   forward          A = x (N,I), B = W transposed, C = y in the activation dtype, bias optional; a layer
//                    that ends a branch adds the branch to the residual stream
//   input gradient   A = dy (N,O), B = W, C = dx; of a layer that reads GELU, C = the gradient of GELU's input
//   weight gradient  A = dy transposed, B = x, C = dW in fp32, accumulate over microbatches
// Products and sums are fp32 (bf16 inputs are exact in fp32); C is rounded once: with bias and residual, in
// whose order an implementation is free, or times the derivative, which is computed in fp32. How a call is cut into
// pieces for threads never changes a bit.
//
// Own implementations (kernels/cpu/gemm): every element is a sum over the depth in order, in chunks that
// follow from k alone, so with vector instructions the bits are those of any processor; with bf16
// instructions ("avx512_bf16", "amx") they are specific to that instruction. "onednn" cuts a call into tiles
// that follow from the shape; its bits depend on the library and the processor. Device::description names
// what decides them.
//
// Computes gradient[o] (+)= sum over rows of dy_NO[row, o]; the CPU adds them in row order, a GPU in an order
// that follows from the shape.
typedef struct hf_bias_gradient {
  const void* dy;   // read, dtype, rows * columns elements; (rows, columns)
  float* gradient;  // written, fp32, columns elements, added to where accumulate; (columns)
  int64_t rows;
  int64_t columns;
  uint8_t accumulate;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_bias_gradient;
#define HF_SCHEMA_BIAS_GRADIENT UINT64_C(0xe630f8dbcc1e324b)

// === op embedding_forward ===
//
// Token (and learned position) embedding: x_NC[row] = table[tokens[row]] (+ positions[row mod T]).
//
// A slice of the table has the tokens [first_token, first_token + token_count): for a row with another token
// the slice's op writes nothing. All slices together do what one op of the whole table does, except for the
// sign of zeros: a slice writes no -0, so that rows may be added to the zeros that the other slices have
// there.
typedef struct hf_embedding_forward {
  const int32_t* tokens;  // read, int32, rows elements; (rows), each in [0, vocabulary)
  // read, dtype, rows * width elements, of token_count * width in all; (vocabulary, width), or (token_count,
  // width)
  const void* table;
  // read, dtype, positions_read(op) * width elements, or NULL; (>= sequence_length, width), or NULL
  const void* positions;
  void* x;  // written, dtype, rows * width elements; (rows, width)
  int64_t rows;
  int64_t width;
  int64_t sequence_length;
  int64_t first_token;  // of a slice; no tokens: the whole table
  int64_t token_count;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_embedding_forward;
#define HF_SCHEMA_EMBEDDING_FORWARD UINT64_C(0x1e0063c5c0bc0b6c)

// === op embedding_backward ===
//
// Token (and learned position) embedding: x_NC[row] = table[tokens[row]] (+ positions[row mod T]).
//
// A slice of the table has the tokens [first_token, first_token + token_count): for a row with another token
// the slice's op writes nothing. All slices together do what one op of the whole table does, except for the
// sign of zeros: a slice writes no -0, so that rows may be added to the zeros that the other slices have
// there.
//
// Adds dx to the rows of the gradients, each row's contributions in row order; a slice's table takes only the
// rows of its tokens, the positions take all. The caller zeroes the gradients before the first microbatch of
// a lane.
typedef struct hf_embedding_backward {
  const int32_t* tokens;  // read, int32, rows elements
  const void* dx;         // read, dtype, rows * width elements; (rows, width)
  // read and written, fp32, rows * width elements, of token_count * width in all; (vocabulary, width) or
  // (token_count, width), added to
  float* table_gradient;
  // read and written, fp32, positions_read(op) * width elements, or NULL; (>= sequence_length, width), added
  // to; or NULL
  float* positions_gradient;
  int64_t rows;
  int64_t width;
  int64_t sequence_length;
  int64_t first_token;  // of a slice; no tokens: the whole table
  int64_t token_count;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_embedding_backward;
#define HF_SCHEMA_EMBEDDING_BACKWARD UINT64_C(0xdf6f84981947c1e1)

// === op layernorm_forward ===
//
// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension; statistics in fp32.
//   LayerNorm: y = (x - mean) * rstd * weight + bias      RMSNorm: y = x * rstd * weight
// Backward: dx (rounded once to dtype; plus dresidual when given: the gradient that flows around the norm),
// and weight gradients summed over rows in a fixed order. Where they accumulate, the sum over rows is rounded
// to fp32 and then added to what is there, so that a sum may be made in memory of its own and added later.
// LayerNorm's backward can sum dresidual in the same way, which it reads anyway: that is the gradient of the
// bias of a layer whose output was added to the residual stream.
typedef struct hf_layernorm_forward {
  const void* x;       // read, dtype, rows * width elements; (rows, width)
  const void* weight;  // read, dtype, width elements; (width)
  const void* bias;    // read, dtype, width elements; (width)
  void* y;             // written, dtype, rows * width elements; (rows, width)
  float* mean;         // written, fp32, rows elements; (rows), kept for backward
  float* rstd;         // written, fp32, rows elements; (rows), kept for backward
  int64_t rows;
  int64_t width;
  float epsilon;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_layernorm_forward;
#define HF_SCHEMA_LAYERNORM_FORWARD UINT64_C(0x39a4dff24cc3476a)

// === op layernorm_backward ===
//
// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension; statistics in fp32.
//   LayerNorm: y = (x - mean) * rstd * weight + bias      RMSNorm: y = x * rstd * weight
// Backward: dx (rounded once to dtype; plus dresidual when given: the gradient that flows around the norm),
// and weight gradients summed over rows in a fixed order. Where they accumulate, the sum over rows is rounded
// to fp32 and then added to what is there, so that a sum may be made in memory of its own and added later.
// LayerNorm's backward can sum dresidual in the same way, which it reads anyway: that is the gradient of the
// bias of a layer whose output was added to the residual stream.
typedef struct hf_layernorm_backward {
  const void* x;       // read, dtype, rows * width elements
  const void* weight;  // read, dtype, width elements
  const void* dy;      // read, dtype, rows * width elements
  const float* mean;   // read, fp32, rows elements
  const float* rstd;   // read, fp32, rows elements
  // read, dtype, rows * width elements, or NULL; (rows, width), or NULL; may be the same memory as dx
  const void* dresidual;
  void* dx;                // written, dtype, rows * width elements; (rows, width)
  float* weight_gradient;  // written, fp32, width elements, added to where accumulate; (width)
  float* bias_gradient;    // written, fp32, width elements, added to where accumulate; (width)
  // written, fp32, width elements, added to where accumulate, or NULL; (width), or NULL; only with dresidual
  float* dresidual_sum;
  int64_t rows;
  int64_t width;
  uint8_t accumulate;  // of the last three
  uint8_t dtype;       // HF_FP32 or HF_BF16
} hf_layernorm_backward;
#define HF_SCHEMA_LAYERNORM_BACKWARD UINT64_C(0xbd0316c662b63bba)

// === op rmsnorm_forward ===
//
// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension; statistics in fp32.
//   LayerNorm: y = (x - mean) * rstd * weight + bias      RMSNorm: y = x * rstd * weight
// Backward: dx (rounded once to dtype; plus dresidual when given: the gradient that flows around the norm),
// and weight gradients summed over rows in a fixed order. Where they accumulate, the sum over rows is rounded
// to fp32 and then added to what is there, so that a sum may be made in memory of its own and added later.
// LayerNorm's backward can sum dresidual in the same way, which it reads anyway: that is the gradient of the
// bias of a layer whose output was added to the residual stream.
typedef struct hf_rmsnorm_forward {
  const void* x;       // read, dtype, rows * width elements
  const void* weight;  // read, dtype, width elements
  void* y;             // written, dtype, rows * width elements
  float* rstd;         // written, fp32, rows elements
  int64_t rows;
  int64_t width;
  float epsilon;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_rmsnorm_forward;
#define HF_SCHEMA_RMSNORM_FORWARD UINT64_C(0xbcb8d2ea70318fc5)

// === op rmsnorm_backward ===
//
// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension; statistics in fp32.
//   LayerNorm: y = (x - mean) * rstd * weight + bias      RMSNorm: y = x * rstd * weight
// Backward: dx (rounded once to dtype; plus dresidual when given: the gradient that flows around the norm),
// and weight gradients summed over rows in a fixed order. Where they accumulate, the sum over rows is rounded
// to fp32 and then added to what is there, so that a sum may be made in memory of its own and added later.
// LayerNorm's backward can sum dresidual in the same way, which it reads anyway: that is the gradient of the
// bias of a layer whose output was added to the residual stream.
typedef struct hf_rmsnorm_backward {
  const void* x;           // read, dtype, rows * width elements
  const void* weight;      // read, dtype, width elements
  const void* dy;          // read, dtype, rows * width elements
  const float* rstd;       // read, fp32, rows elements
  const void* dresidual;   // read, dtype, rows * width elements, or NULL; may be the same memory as dx
  void* dx;                // written, dtype, rows * width elements
  float* weight_gradient;  // written, fp32, width elements, added to where accumulate
  int64_t rows;
  int64_t width;
  uint8_t accumulate;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_rmsnorm_backward;
#define HF_SCHEMA_RMSNORM_BACKWARD UINT64_C(0xd74aced2e33f1328)

// === op residual_rmsnorm ===
//
// The sum that ends a branch of a block, and the norm of it that begins the next one, in one op. It is composed
// (kernels/composed.h): tree_sum and then a norm, with the roundings of both. `sum` is what tree_sum stores, rounded to
// dtype, and the norm is that of these numbers, so a kernel that keeps them in registers rounds them there.
//
// Computes sum = tree of the parts, ((p0 + p1) + (p2 + p3)) + ..., (+ bias) + residual, each addition rounded to fp32, and y =
// RMSNorm of the sum. Nothing is the same memory.
typedef struct hf_residual_rmsnorm {
  const float* parts[16];  // read, fp32, rows * width elements; each (rows, width)
  int32_t part_count;      // a power of two
  const void* bias;        // read, dtype, width elements, or NULL; of the sum: dtype; (width), or NULL
  const void* residual;    // read, dtype, rows * width elements; (rows, width)
  const void* weight;      // read, dtype, width elements; of the norm: dtype; (width)
  void* sum;               // written, dtype, rows * width elements; (rows, width)
  void* y;                 // written, dtype, rows * width elements; (rows, width)
  float* rstd;             // written, fp32, rows elements; (rows), kept for backward
  int64_t rows;
  int64_t width;
  float epsilon;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_residual_rmsnorm;
#define HF_SCHEMA_RESIDUAL_RMSNORM UINT64_C(0xb33895fc02b5d3e5)

// === op residual_layernorm ===
//
// The sum that ends a branch of a block, and the norm of it that begins the next one, in one op. It is composed
// (kernels/composed.h): tree_sum and then a norm, with the roundings of both. `sum` is what tree_sum stores, rounded to
// dtype, and the norm is that of these numbers, so a kernel that keeps them in registers rounds them there.
//
// Computes sum = tree of the parts, ((p0 + p1) + (p2 + p3)) + ..., (+ bias) + residual, each addition rounded to fp32, and y =
// LayerNorm of the sum. Nothing is the same memory.
typedef struct hf_residual_layernorm {
  const float* parts[16];  // read, fp32, rows * width elements; each (rows, width)
  int32_t part_count;      // a power of two
  const void* bias;        // read, dtype, width elements, or NULL; of the sum: dtype; (width), or NULL
  const void* residual;    // read, dtype, rows * width elements; (rows, width)
  const void* weight;      // read, dtype, width elements; of the norm: dtype; (width)
  const void* norm_bias;   // read, dtype, width elements; likewise
  void* sum;               // written, dtype, rows * width elements; (rows, width)
  void* y;                 // written, dtype, rows * width elements; (rows, width)
  float* mean;             // written, fp32, rows elements; (rows), kept for backward
  float* rstd;             // written, fp32, rows elements; likewise
  int64_t rows;
  int64_t width;
  float epsilon;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_residual_layernorm;
#define HF_SCHEMA_RESIDUAL_LAYERNORM UINT64_C(0xe2a984460534d5e5)

// === op rotary ===
//
// Rotary position embedding (Su et al. 2021), in place on the first `heads` heads of each row; rotates halves
// (i, i + D/2) as Hugging Face's Llama does. inverse = true is the backward pass.
typedef struct hf_rotary {
  // read and written, dtype, rows * heads * head_size elements, in rows rows, one every row_stride; (rows,
  // row_stride), the rotated heads come first in a row
  void* x;
  // read, fp32, sequence_length * head_size / 2 elements; (sequence_length, head_size / 2)
  const float* cosine;
  const float* sine;  // read, fp32, sequence_length * head_size / 2 elements
  int64_t rows;
  int64_t row_stride;
  int64_t heads;
  int64_t head_size;
  int64_t sequence_length;
  uint8_t inverse;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_rotary;
#define HF_SCHEMA_ROTARY UINT64_C(0xb6c53911ee94d779)

// === op attention_forward ===
//
// Causal self-attention with grouped queries that never stores a T x T matrix (online softmax over tiles; Dao
// et al. 2022; backward by recomputing probabilities from the log-sum-exp). Softmax and all sums in fp32.
//
// qkv_BT(H+2K)D: per row first H query heads, then K key heads, then K value heads; query head h uses key
// head h / (H / K). scale is 1/sqrt(D).
//
// first_key (batch, sequence_length) keeps documents that share a sequence apart: query t of a sequence sees
// the keys first_key[t] to t of it. 0 <= first_key[t] <= t, never decreasing along a sequence; null = 0
// everywhere.
//
// window (0 = all) keeps attention local: of the keys that a query may see it sees the last `window`, itself among
// them, and the first `sinks` (attention sinks; Xiao et al. 2023): query t the keys s with first_key[t] <= s <= t
// and s > t - window or s < first_key[t] + sinks. sinks is 0 without a window; both are at most 2^30. A window of all keys gives the bits
// of none. Tiles that no query sees are not computed.
//
// Forward also continues sequences whose earlier tokens are in a cache, as text is made: row t is then token
// first_position + t of its sequence and sees all tokens up to itself. Their keys and values, those of the rows
// among them, are in cache_BS(2K)D with S = first_position + sequence_length, per token first K key heads, then
// K value heads; those in qkv are not read, and first_key is null. The kernels of this tree give a row the same
// bits with a cache as without.
//
// bf16: what is stored is rounded, and so are, where an implementation multiplies in bf16 (avx512_bf16, amx),
// the probabilities and the gradients of the scores before their products, as FlashAttention does; the others
// compute in fp32 between load and store. Their bits differ; each has the same in every run and for any
// number of threads.
typedef struct hf_attention_forward {
  const void* qkv;           // read, dtype, rows * (heads + 2 * kv_heads) * head_size elements; dtype
  const void* cache;         // dtype; (batch, S, 2 kv_heads, head_size), or NULL
  const int32_t* first_key;  // read, int32, rows elements, or NULL
  // written, dtype, rows * heads * head_size elements; (batch, sequence_length, heads * head_size)
  void* out;
  // written, fp32, rows * heads elements; (batch, heads, sequence_length): log of the sum of exp(scale *
  // q.k), for backward
  float* lse;
  int64_t batch;
  int64_t sequence_length;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
  int64_t first_position;  // tokens of the cache before the first row; 0 without a cache
  int64_t window;          // last keys that a query sees; 0 = all
  int64_t sinks;           // first keys that it sees besides; 0 without a window
  uint8_t dtype;           // HF_FP32 or HF_BF16
} hf_attention_forward;
#define HF_SCHEMA_ATTENTION_FORWARD UINT64_C(0xc8ff85f987ba1990)

// === op attention_backward ===
//
// Causal self-attention with grouped queries that never stores a T x T matrix (online softmax over tiles; Dao
// et al. 2022; backward by recomputing probabilities from the log-sum-exp). Softmax and all sums in fp32.
//
// qkv_BT(H+2K)D: per row first H query heads, then K key heads, then K value heads; query head h uses key
// head h / (H / K). scale is 1/sqrt(D).
//
// first_key (batch, sequence_length) keeps documents that share a sequence apart: query t of a sequence sees
// the keys first_key[t] to t of it. 0 <= first_key[t] <= t, never decreasing along a sequence; null = 0
// everywhere.
//
// window (0 = all) keeps attention local: of the keys that a query may see it sees the last `window`, itself among
// them, and the first `sinks` (attention sinks; Xiao et al. 2023): query t the keys s with first_key[t] <= s <= t
// and s > t - window or s < first_key[t] + sinks. sinks is 0 without a window; both are at most 2^30. A window of all keys gives the bits
// of none. Tiles that no query sees are not computed.
//
// Forward also continues sequences whose earlier tokens are in a cache, as text is made: row t is then token
// first_position + t of its sequence and sees all tokens up to itself. Their keys and values, those of the rows
// among them, are in cache_BS(2K)D with S = first_position + sequence_length, per token first K key heads, then
// K value heads; those in qkv are not read, and first_key is null. The kernels of this tree give a row the same
// bits with a cache as without.
//
// bf16: what is stored is rounded, and so are, where an implementation multiplies in bf16 (avx512_bf16, amx),
// the probabilities and the gradients of the scores before their products, as FlashAttention does; the others
// compute in fp32 between load and store. Their bits differ; each has the same in every run and for any
// number of threads.
typedef struct hf_attention_backward {
  const void* qkv;           // read, dtype, qkv elements
  const int32_t* first_key;  // read, int32, rows elements, or NULL
  const void* out;           // read, dtype, rows * heads * head_size elements
  const void* dout;          // read, dtype, rows * heads * head_size elements; like out
  const float* lse;          // read, fp32, rows * heads elements
  // scratch, fp32, rows * heads elements; (batch, heads, sequence_length) scratch: sum over D of out * dout
  float* delta;
  void* dqkv;  // written, dtype, qkv elements; like qkv, overwritten
  int64_t batch;
  int64_t sequence_length;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
  int64_t window;  // as forward has them
  int64_t sinks;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_attention_backward;
#define HF_SCHEMA_ATTENTION_BACKWARD UINT64_C(0x0a2cd1138a57c65b)

// === op gelu_forward ===
//
// GELU (tanh form, Hendrycks & Gimpel 2016, as GPT-2) and SwiGLU (Shazeer 2020). Elementwise; computed in
// fp32.
typedef struct hf_gelu_forward {
  const void* x;  // read, dtype, count elements
  void* y;        // written, dtype, count elements
  int64_t count;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_gelu_forward;
#define HF_SCHEMA_GELU_FORWARD UINT64_C(0x2de6f16a72143671)

// === op swiglu_forward ===
//
// GELU (tanh form, Hendrycks & Gimpel 2016, as GPT-2) and SwiGLU (Shazeer 2020). Elementwise; computed in
// fp32.
//
// Computes y_NF = silu(gate) * up, with gate = x[:, :F] and up = x[:, F:] of x_N(2F).
typedef struct hf_swiglu_forward {
  const void* x;  // read, dtype, 2 * rows * feed_forward elements; (rows, 2 * feed_forward)
  void* y;        // written, dtype, rows * feed_forward elements; (rows, feed_forward)
  int64_t rows;
  int64_t feed_forward;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_swiglu_forward;
#define HF_SCHEMA_SWIGLU_FORWARD UINT64_C(0xefbc0156f4e53bd8)

// === op swiglu_backward ===
//
// GELU (tanh form, Hendrycks & Gimpel 2016, as GPT-2) and SwiGLU (Shazeer 2020). Elementwise; computed in
// fp32.
typedef struct hf_swiglu_backward {
  const void* x;   // read, dtype, 2 * rows * feed_forward elements
  const void* dy;  // read, dtype, rows * feed_forward elements
  void* dx;        // written, dtype, 2 * rows * feed_forward elements; (rows, 2 * feed_forward)
  int64_t rows;
  int64_t feed_forward;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_swiglu_backward;
#define HF_SCHEMA_SWIGLU_BACKWARD UINT64_C(0x809c87b61f02e808)

// === op cross_entropy ===
//
// Computes softmax cross-entropy over rows of logits; probabilities are never stored: the gradient replaces
// the logits. The head calls it on chunks of rows, so that full logits never exist.
typedef struct hf_cross_entropy {
  void* logits;  // dtype; (rows, row_stride); columns >= vocabulary are padding
  // read, int32, rows elements; (rows); a negative target is not counted (loss 0, gradient 0)
  const int32_t* targets;
  float* losses;  // written, fp32, rows elements; (rows): log(sum exp) - logit[target]
  int64_t rows;
  int64_t row_stride;
  int64_t vocabulary;
  // Factor of the gradient (softmax - onehot) * gradient_scale, which is written over the logits (padding
  // columns become 0); 0 = forward only, logits untouched.
  float gradient_scale;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_cross_entropy;
#define HF_SCHEMA_CROSS_ENTROPY UINT64_C(0x510dc4af1744a8fb)

// === op cross_entropy_slice ===
//
// Computes softmax cross-entropy over rows of logits; probabilities are never stored: the gradient replaces
// the logits. The head calls it on chunks of rows, so that full logits never exist.
//
// Computes the statistics of the rows in a slice. A row without a target is not read: its statistics are
// those of no column.
typedef struct hf_cross_entropy_slice {
  // read, dtype, rows * columns elements, in rows rows, one every row_stride; (rows, row_stride); columns >=
  // columns are padding
  const void* logits;
  const int32_t* targets;  // read, int32, rows elements; (rows), of the whole vocabulary; negative: none
  hf_softmax_statistics* statistics;  // written, fp32, statistics_floats * rows elements; (rows)
  int64_t rows;
  int64_t row_stride;
  int64_t columns;
  int64_t first_token;  // column c is the token first_token + c; columns may be 0
  uint8_t dtype;        // HF_FP32 or HF_BF16
} hf_cross_entropy_slice;
#define HF_SCHEMA_CROSS_ENTROPY_SLICE UINT64_C(0x5dff419118ee5e0e)

// === op cross_entropy_join ===
//
// Computes softmax cross-entropy over rows of logits; probabilities are never stored: the gradient replaces
// the logits. The head calls it on chunks of rows, so that full logits never exist.
typedef struct hf_cross_entropy_join {
  // read, fp32, statistics_floats * slice_count * rows elements; (slice_count, rows)
  const hf_softmax_statistics* slices;
  const int32_t* targets;  // read, int32, rows elements; (rows); a negative target is not counted (loss 0)
  float* losses;           // written, fp32, rows elements; (rows)
  // written, fp32, statistics_floats * rows elements; (rows): of all columns
  hf_softmax_statistics* statistics;
  int64_t rows;  // slices: a power of two
  int64_t slice_count;
} hf_cross_entropy_join;
#define HF_SCHEMA_CROSS_ENTROPY_JOIN UINT64_C(0x1653a21842d21fc3)

// === op cross_entropy_gradient ===
//
// Computes softmax cross-entropy over rows of logits; probabilities are never stored: the gradient replaces
// the logits. The head calls it on chunks of rows, so that full logits never exist.
//
// Writes (softmax - onehot) * gradient_scale over the logits of a slice; 0 in padding columns and in rows
// without a target.
typedef struct hf_cross_entropy_gradient {
  // read and written, dtype, rows * columns elements, in rows rows, one every row_stride, and 0 between the
  // rows; as CrossEntropySlice has them
  void* logits;
  const int32_t* targets;  // read, int32, rows elements; (rows)
  // read, fp32, statistics_floats * rows elements; (rows), of all slices
  const hf_softmax_statistics* statistics;
  int64_t rows;
  int64_t row_stride;
  int64_t columns;
  int64_t first_token;
  float gradient_scale;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_cross_entropy_gradient;
#define HF_SCHEMA_CROSS_ENTROPY_GRADIENT UINT64_C(0x943cf5d827511e20)

// === op loss_sum ===
//
// Computes softmax cross-entropy over rows of logits; probabilities are never stored: the gradient replaces
// the logits. The head calls it on chunks of rows, so that full logits never exist.
//
// Sets *sum to the sum of values, in double, in a fixed order.
typedef struct hf_loss_sum {
  const float* values;  // read, fp32, count elements
  int64_t count;
  double* sum;  // written, fp64, 1 elements
} hf_loss_sum;
#define HF_SCHEMA_LOSS_SUM UINT64_C(0x88a908db94173e50)

// === op adamw ===
//
// Update rules with fp32 master weights: AdamW (Loshchilov & Hutter 2019) and Lion (Chen et al. 2023). Then the digests of
// the optimizer's state, and the block sums of the global gradient norm.
//
// Updates each element of all tensors, in fp32:
//   g = gradient * gradient_scale
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
//   w = w - learning_rate * (weight_decay * w + (m / correction1) / (sqrt(v / correction2) + epsilon))
// and, when given, copy = w rounded to bf16, ema = ema + ema_rest * (w - ema). One launch updates a whole shard:
// kernels find the tensor of a block in the table.
//
// Moments in bf16 are widened to fp32, averaged there, and the weights take those averages; what is kept for the next
// update is rounded stochastically (kernels/stochastic_rounding.h): block b of a tensor is block rounding_block + b of
// those that rounding_key rounds, and of an element's bits the lower half rounds m, the upper one v. A v that moves by a
// thousandth a step would not move at all if it were rounded to nearest.
//
// An update that keeps the state writes what it leaves of weights and moments a second time, to the kept_ arrays of those
// tensors that have some: a snapshot (checkpoint/snapshot_slot.h) that costs neither another read of the state nor room in
// caches, because nobody reads it soon. The bits of everything else are those of an update that keeps nothing.
//
// With digests, an update also finds damage of the memory at rest: it leaves the digest (runtime/core/block_digest.h)
// of what it wrote to each block, and the next one compares the digest of what it reads. The update itself
// has the same bits, whether digests are computed or not, and goes on with the values that it read, damaged
// or not. The digests of the gradient are those that the op left which took its norm. The copy is not covered.
typedef struct hf_adamw {
  const hf_adamw_tensor* tensors;  // device memory
  int64_t tensor_count;
  int64_t block_count;  // of all tensors
  float learning_rate;
  float beta1;
  float beta2;
  float epsilon;
  float correction1;  // 1 - beta^step
  float correction2;
  float gradient_scale;   // of clipping
  float ema_rest;         // 1 - decay of the average
  uint8_t moments;        // HF_FP32 or HF_BF16; or bf16
  uint64_t rounding_key;  // of bf16 moments: 64 mixed bits, others for every update
  uint8_t keeps_state;    // writes the kept_ arrays; else they are not looked at
  // written, words, block_count elements, of sizeof(uint64_t) bytes, added to where checks_digests, or NULL;
  // Digests by block of the table, in device memory; NULL: none are computed.
  uint64_t* block_digests;
  // False where nothing has left digests of what the update reads: they are written, not compared.
  uint8_t checks_digests;
  // Result of the comparison, in host_visible memory: set by every update, also where nothing is compared.
  // May be NULL where nothing is compared.
  hf_state_damage* damage;
  // read, words, block_count elements, of sizeof(uint64_t) bytes, or NULL; Digests of the gradient by block
  // of the table, in device memory, which the update compares where it computes digests of the state; NULL:
  // it compares none. The result, in host_visible memory, is set by every update.
  const uint64_t* gradient_digests;
  hf_state_damage* gradient_damage;
} hf_adamw;
#define HF_SCHEMA_ADAMW UINT64_C(0x907b1876ec59d1a2)

// === op lion ===
//
// Update rules with fp32 master weights: AdamW (Loshchilov & Hutter 2019) and Lion (Chen et al. 2023). Then the digests of
// the optimizer's state, and the block sums of the global gradient norm.
//
// Updates each element of all tensors, in fp32, by the sign of an average of the gradient:
//   g = gradient * gradient_scale
//   c = beta1 m + (1 - beta1) g        m = beta2 m + (1 - beta2) g
//   w = w - learning_rate * (weight_decay * w + sign(c))
// The sign of 0 is 0, and that of NaN is NaN. A last bit of c can decide it, so c has the same bits everywhere:
// fma(m, beta1, rest1 * g) with rest1 = 1 - beta1, each rounded to fp32, where m is the moment as it is kept.
//
// There is one moment, in moment1: moment2 and kept_moment2 are null. Everything else is as AdamW says; of an element's
// random bits the lower half rounds m.
typedef struct hf_lion {
  const hf_adamw_tensor* tensors;  // device memory
  int64_t tensor_count;
  int64_t block_count;  // of all tensors
  float learning_rate;
  float beta1;
  float beta2;
  float gradient_scale;   // of clipping
  float ema_rest;         // 1 - decay of the average
  uint8_t moments;        // HF_FP32 or HF_BF16; or bf16
  uint64_t rounding_key;  // as AdamW has it
  uint8_t keeps_state;    // writes the kept_ arrays; else they are not looked at
  // written, words, block_count elements, of sizeof(uint64_t) bytes, added to where checks_digests, or NULL;
  // Digests by block of the table, and what came of comparing them, as AdamW has them.
  uint64_t* block_digests;
  uint8_t checks_digests;
  hf_state_damage* damage;
  const uint64_t* gradient_digests;  // read, words, block_count elements, of sizeof(uint64_t) bytes, or NULL
  hf_state_damage* gradient_damage;
} hf_lion;
#define HF_SCHEMA_LION UINT64_C(0x0988a990978a012c)

// === op square_sum ===
//
// Update rules with fp32 master weights: AdamW (Loshchilov & Hutter 2019) and Lion (Chen et al. 2023). Then the digests of
// the optimizer's state, and the block sums of the global gradient norm.
//
// Computes sums[b] = sum of squares of block b (the last may be short), in double, in a fixed order inside
// the block: the same on every device. When given, digests[b] is the digest of the block
// (runtime/core/block_digest.h, of one array). One launch takes the gradients of a bucket: segments say where its tensors
// begin.
typedef struct hf_square_sum {
  const float* values;  // read, fp32, count elements
  int64_t count;
  double* sums;  // written, fp64, block_count() elements
  // written, words, block_count() elements, of sizeof(uint64_t) bytes, or NULL; by block, or NULL
  uint64_t* digests;
  // Segments of `values`, which end with element `count`: host memory that is read when the op is launched,
  // and no later. None: the array is one segment.
  const hf_block_segment* segments;
  int64_t segment_count;
} hf_square_sum;
#define HF_SCHEMA_SQUARE_SUM UINT64_C(0x619011fd07b7a6b4)

// === op add ===
//
// Small memory-bound ops, and the segments of arrays over which some of them work.
//
// y = a + b, rounded once; y may be a or b
typedef struct hf_add {
  const void* a;  // read, dtype, count elements
  const void* b;  // read, dtype, count elements
  void* y;        // written, dtype, count elements
  int64_t count;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_add;
#define HF_SCHEMA_ADD UINT64_C(0x14fae1857d73736e)

// === op accumulate ===
//
// Small memory-bound ops, and the segments of arrays over which some of them work.
//
// Adds source to target: the ordered add of lanes. When given, square_sums are those of SquareSum of the
// result, and digests, which need them, are its digests: the add that finishes a gradient saves the norm its own
// pass over memory.
typedef struct hf_accumulate {
  float* target;        // read and written, fp32, count elements
  const float* source;  // read, fp32, count elements
  int64_t count;
  double* square_sums;  // written, fp64, block_count() elements, or NULL; by block of target, or NULL
  // written, words, block_count() elements, of sizeof(uint64_t) bytes, or NULL; by block of target, or NULL
  uint64_t* digests;
  // These are as SquareSum has them. Without sums of squares there are none.
  const hf_block_segment* segments;
  int64_t segment_count;
} hf_accumulate;
#define HF_SCHEMA_ACCUMULATE UINT64_C(0xcc158c4a0429f02b)

// === op tree_sum ===
//
// Adds partial results that belong to the slices of a split tensor: one binary tree over neighbours, ((p0 +
// p1) + (p2 + p3)) + ..., in fp32. A rank that holds several consecutive slices may add its own subtree
// first, and the roots of such subtrees later: the bits are those of one tree.
//
// Computes y = tree (+ bias) (+ residual), rounded to fp32 after every addition and to dtype once, at the end.
typedef struct hf_tree_sum {
  const float* parts[16];  // read, fp32, rows * columns elements; each (rows, columns)
  int32_t part_count;      // a power of two
  const void* bias;        // read, dtype, columns elements, or NULL; (columns), or NULL
  // read, dtype, rows * columns elements, or NULL; (rows, columns), or NULL; apart from y
  const void* residual;
  void* y;  // written, dtype, rows * columns elements; (rows, columns); may be a part when dtype is fp32
  int64_t rows;
  int64_t columns;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_tree_sum;
#define HF_SCHEMA_TREE_SUM UINT64_C(0xa48585ed44949329)

// === op cast ===
//
// Small memory-bound ops, and the segments of arrays over which some of them work.
//
// fp32 -> bf16, round to nearest even
typedef struct hf_cast {
  const float* source;  // read, fp32, count elements
  uint16_t* target;     // written, bf16, count elements
  int64_t count;
} hf_cast;
#define HF_SCHEMA_CAST UINT64_C(0x8b5433f5ad945072)

// === op fill_zero ===
//
// Small memory-bound ops, and the segments of arrays over which some of them work.
typedef struct hf_fill_zero {
  void* target;  // written, words, bytes elements, of 1 bytes
  int64_t bytes;
} hf_fill_zero;
#define HF_SCHEMA_FILL_ZERO UINT64_C(0x12cedcfdd43f8f11)

// === op copy ===
//
// Small memory-bound ops, and the segments of arrays over which some of them work.
typedef struct hf_copy {
  const void* source;  // read, words, bytes elements, of 1 bytes
  void* target;        // written, words, bytes elements, of 1 bytes
  int64_t bytes;
} hf_copy;
#define HF_SCHEMA_COPY UINT64_C(0xc5ae0da794706bb0)

// === op copy_rows ===
//
// Small memory-bound ops, and the segments of arrays over which some of them work.
//
// Copies the first `columns` of each row between matrices whose rows may lie further apart; they do not overlap.
typedef struct hf_copy_rows {
  // read, dtype, rows * columns elements, in rows rows, one every source_stride; (rows, source_stride)
  const void* source;
  // written, dtype, rows * columns elements, in rows rows, one every target_stride; (rows, target_stride)
  void* target;
  int64_t rows;
  int64_t columns;
  int64_t source_stride;
  int64_t target_stride;
  uint8_t dtype;  // HF_FP32 or HF_BF16
} hf_copy_rows;
#define HF_SCHEMA_COPY_ROWS UINT64_C(0xd7381394484e7562)

// === op digest ===
//
// Digests of tensors: a few words that tell two tensors apart when a bit of one was flipped, moved or lost,
// and that say what is not finite. They guard against faulty hardware, not against an adversary.
//
// All sums are of integers that wrap, so a digest does not depend on the order of summation: every
// implementation on every device gives the same bits, and the digests of consecutive pieces add up to that of
// the whole (first_index, accumulate, add()). A single flipped bit always changes `sum` and `weighted`; two
// different elements of up to 32 bits that change places always change `weighted`, unless their indices
// differ by a multiple of 2^31.
//
// Computes the digest of `count` elements of any dtype, aligned to their size.
typedef struct hf_digest {
  const void* values;  // read, dtype, count elements
  uint8_t dtype;       // HF_FP32 or HF_BF16
  int64_t count;
  // written, words, 1 elements, of sizeof(DigestWords) bytes, added to where accumulate; 8-byte aligned; of
  // either MemoryKind
  hf_digest_words* result;
  int64_t first_index;  // index of the first element in the tensor that this is a piece of
  uint8_t accumulate;   // adds the digest to *result, as add() does, instead of replacing it
} hf_digest;
#define HF_SCHEMA_DIGEST UINT64_C(0xf7ce6e9bdb1e6dbd)

// === op optimizer_digest ===
//
// Update rules with fp32 master weights: AdamW (Loshchilov & Hutter 2019) and Lion (Chen et al. 2023). Then the digests of
// the optimizer's state, and the block sums of the global gradient norm.
//
// Computes the digests of blocks of optimizer state as it is, by the table of an update: of state that was loaded, made,
// or is to be examined without an update. A tensor without moments, with one of them, or without an average, has the
// digests of the rest, as if they were zeros.
typedef struct hf_optimizer_digest {
  const hf_adamw_tensor* tensors;  // device memory; their gradients and copies are not used
  int64_t tensor_count;
  int64_t first_block;  // Range of blocks, counted over all tensors of the table.
  int64_t block_count;
  uint64_t* block_digests;  // by block of the table, in device memory
  uint8_t checks_digests;   // compares the digests with those in memory, and writes none
  uint8_t moments;          // HF_FP32 or HF_BF16; or bf16
  // Result of the comparison, in host_visible memory: set by every op, also where nothing is compared. May be
  // NULL where nothing is compared.
  hf_state_damage* damage;
} hf_optimizer_digest;
#define HF_SCHEMA_OPTIMIZER_DIGEST UINT64_C(0xfd860b0dfa0d87b0)

#ifdef __cplusplus
}
#endif

#endif  // HOLDFAST_KERNEL_H
