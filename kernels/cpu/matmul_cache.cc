#include "kernels/cpu/matmul_cache.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <string_view>
#include <vector>

#include "runtime/core/check.h"

// The one-thread rule below is the OpenMP runtime's; a TBB build of oneDNN would take threads of its own.
#if DNNL_CPU_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_RUNTIME != DNNL_RUNTIME_SEQ
#error \
    "Holdfast needs a oneDNN built for the OpenMP or the sequential CPU runtime (tools/bootstrap installs one)"
#endif

namespace holdfast::kernels::cpu {

namespace {

using dnnl::memory;

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t leading,
                    bool transposed) {
  const memory::dims strides = transposed ? memory::dims{1, leading} : memory::dims{leading, 1};
  return memory::desc({rows, columns}, type_of(dtype), strides);
}

// Returns an empty description when the library has no fast implementation.
dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const ProductShape& shape) {
  const memory::desc a = matrix(shape.m, shape.k, shape.dtype, shape.lda, shape.transpose_a);
  const memory::desc b = matrix(shape.k, shape.n, shape.dtype, shape.ldb, shape.transpose_b);
  const memory::desc c = matrix(shape.m, shape.n, shape.dtype_c, shape.ldc, false);
  const memory::desc bias = matrix(1, shape.n, shape.dtype, shape.n, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);  // not what an environment variable makes of fp32
  if (shape.accumulate) {
    dnnl::post_ops add_to_c;
    add_to_c.append_sum(1.0F);
    attributes.set_post_ops(add_to_c);
  }
#if DNNL_VERSION_MAJOR >= 3
  return shape.bias ? dnnl::matmul::primitive_desc(engine, a, b, bias, c, attributes, true)
                    : dnnl::matmul::primitive_desc(engine, a, b, c, attributes, true);
#else
  const dnnl::matmul::desc product =
      shape.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  return dnnl::matmul::primitive_desc(product, attributes, engine, true);
#endif
}

}  // namespace

struct MatmulCache::Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<dnnl::stream> streams;  // one per thread
  bool bf16 = false;

  Library(int threads, Bf16Products wanted) {
    for (int thread = 0; thread < threads; ++thread) streams.emplace_back(engine);
    if (wanted == Bf16Products::widened) return;
    ProductShape probe{.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64};
    probe.dtype = DType::bf16;
    const dnnl::matmul::primitive_desc found = describe(engine, probe);
    bf16 = found && std::string_view(found.impl_info_str()).find("ref") == std::string_view::npos;
  }
};

namespace {

class OneDnnProduct final : public Product {
 public:
  OneDnnProduct(const dnnl::engine& engine, const std::vector<dnnl::stream>& streams,
                const ProductShape& shape)
      : streams_(streams), bias_(shape.bias) {
    const dnnl::matmul::primitive_desc description = describe(engine, shape);
    HF_CHECK(description, "oneDNN has no matmul for m {} n {} k {} lda {} ldb {} ldc {} dtype {} -> {}",
             shape.m, shape.n, shape.k, shape.lda, shape.ldb, shape.ldc, name_of(shape.dtype),
             name_of(shape.dtype_c));
    primitive_ = dnnl::matmul(description);
    scratch_bytes_ = description.scratchpad_desc().get_size();
    calls_.resize(streams.size());
    for (Call& call : calls_) {
      const auto unbound = [&](const memory::desc& view) { return memory(view, engine, DNNL_MEMORY_NONE); };
      call.memories = {unbound(description.src_desc()), unbound(description.weights_desc()),
                       unbound(description.dst_desc()), unbound(description.scratchpad_desc())};
      if (bias_) call.memories.push_back(unbound(matrix(1, shape.n, shape.dtype, shape.n, false)));
      const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS};
      for (std::size_t i = 0; i < call.memories.size(); ++i) {
        call.arguments.push_back({names[i], call.memories[i].get()});
      }
    }
  }

  void run(int thread, const void* a, const void* b, const void* bias, void* c,
           std::byte* scratch) const override {
    const Call& call = calls_[static_cast<std::size_t>(thread)];
    // The C functions: their C++ wrappers build a hash map per call.
    bool bound = bind(call, 0, a) && bind(call, 1, b) && bind(call, 2, c) && bind(call, 3, scratch);
    if (bias_) bound = bind(call, 4, bias) && bound;
    HF_CHECK(bound, "oneDNN refused a matmul's memory");
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), streams_[static_cast<std::size_t>(thread)].get(),
                               static_cast<int>(call.arguments.size()), call.arguments.data());
    HF_CHECK(status == dnnl_success, "oneDNN could not run a matmul: {}", dnnl_status2str(status));
  }

  std::size_t scratch_bytes() const override { return scratch_bytes_; }

 private:
  struct Call {  // of one thread
    std::vector<memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  static bool bind(const Call& call, std::size_t index, const void* data) {
    // oneDNN has one handle type for what it reads and what it writes.
    return dnnl_memory_set_data_handle(call.memories[index].get(), const_cast<void*>(data)) == dnnl_success;
  }

  const std::vector<dnnl::stream>& streams_;
  const bool bias_;
  dnnl::matmul primitive_;
  std::size_t scratch_bytes_ = 0;
  std::vector<Call> calls_;
};

}  // namespace

void use_one_thread_per_primitive() {
  use_threads_per_primitive(1);
}

void use_threads_per_primitive(int threads) {
  // The function is looked up by name, so that the setting reaches whichever OpenMP runtime oneDNN brought; a
  // sequential build brings none. The setting belongs to the calling thread.
  if (void* function = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(function)(threads);
  }
}

std::string matmul_library() {
  const dnnl_version_t* version = dnnl_version();
  std::string_view isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
  if (isa.starts_with("cpu_isa_")) isa.remove_prefix(8);
  return fmt::format("oneDNN {}.{}.{} {}", version->major, version->minor, version->patch, isa);
}

MatmulCache::MatmulCache(int threads, Bf16Products bf16)
    : library_(std::make_unique<Library>(threads, bf16)) {}

MatmulCache::~MatmulCache() = default;

bool MatmulCache::supports(DType dtype) const {
  return dtype == DType::fp32 || library_->bf16;
}

const Product& MatmulCache::product(const ProductShape& shape) {
  std::unique_ptr<Product>& product = products_[shape];
  if (!product) product = std::make_unique<OneDnnProduct>(library_->engine, library_->streams, shape);
  return *product;
}

}  // namespace holdfast::kernels::cpu
