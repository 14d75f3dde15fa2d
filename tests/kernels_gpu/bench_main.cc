// bench_kernels_gpu [fp32|bf16] [MILLISECONDS] [OP]: every op on the shapes that models call it with, on a
// GPU, beside what that GPU was measured to copy and to multiply. Writes one JSON document on stdout;
// tools/gpu-check makes a table of it. Exit code 77 and a sentence without a GPU.
//
// A time is that of many calls put on the stream at once, divided by their number, so launches that the GPU
// finishes faster than the host can start them are limited by the host. A limit is the larger of an op's
// bytes (kernels/cost.h) at the rate of a copy and its products at the rate of the fastest product.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cost.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/table.h"
#include "kernels/matmul.h"
#include "runtime/bench/op_samples.h"
#include "runtime/bench/op_text.h"
#include "runtime/bench/report.h"

namespace {

using namespace holdfast;

constexpr int skipped = 77;

// Freed at the end of its scope.
class ManagedMemory {
 public:
  ManagedMemory() = default;
  ~ManagedMemory() {
    for (void* block : blocks_) cudaFree(block);
  }
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;
  OpMemory operands() {
    return OpMemory([this](std::uint64_t bytes) -> void* {
      void* block = nullptr;
      if (cudaMallocManaged(&block, bytes) != cudaSuccess) return nullptr;
      blocks_.push_back(block);
      return block;
    });
  }

 private:
  std::vector<void*> blocks_;
};

// Per call, of as many as take about this long together.
double seconds_of(Device& device, const OpCall& call, double duration_seconds) {
  const auto run = [&](int calls) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call.launch(device);
    device.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  run(3);  // memory moves to the GPU, kernels are loaded
  constexpr int probe = 5, most = 20'000;
  const double once = run(probe) / probe;
  const int calls = std::min(most, std::max(probe, static_cast<int>(duration_seconds / once)));
  return run(calls) / calls;
}

struct Rates {
  double bytes_per_second = 0.0, flops_per_second = 0.0;

  double limit_seconds(const OpCost& cost) const {
    const double bytes = static_cast<double>(cost.bytes_read + cost.bytes_written);
    return std::max(bytes / bytes_per_second, cost.flops / flops_per_second);
  }
};

// One large product as an op of the device, and one large copy.
Result<Rates> measure_rates(Device& device, DType dtype, double duration_seconds) {
  constexpr std::int64_t copied_bytes = std::int64_t{1} << 30, edge = 8192;
  ManagedMemory managed;
  OpMemory memory = managed.operands();
  Matmul product{.a = memory.values(edge * edge, dtype),
                 .b = memory.values(edge * edge, dtype),
                 .c = memory.values(edge * edge, dtype),
                 .m = edge,
                 .n = edge,
                 .k = edge,
                 .lda = edge,
                 .ldb = edge,
                 .ldc = edge,
                 .transpose_b = true,
                 .dtype = dtype,
                 .dtype_c = dtype};
  void* source = memory.floats(copied_bytes / 4);
  void* target = memory.floats(copied_bytes / 4);
  HF_TRY_VOID(memory.outcome());
  const double product_seconds = seconds_of(device, OpCall(product), duration_seconds);
  cudaMemcpy(target, source, copied_bytes, cudaMemcpyDefault);  // both move to the GPU
  constexpr int copies = 20;
  cudaDeviceSynchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < copies; ++i)
    cudaMemcpyAsync(target, source, copied_bytes, cudaMemcpyDeviceToDevice, nullptr);
  cudaDeviceSynchronize();
  const double copy_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / copies;
  return Rates{.bytes_per_second = 2.0 * static_cast<double>(copied_bytes) / copy_seconds,
               .flops_per_second = 2.0 * static_cast<double>(edge * edge * edge) / product_seconds};
}

Result<Json> measure_op(Device& device, OpId id, DType dtype, const Rates& rates, double duration_seconds) {
  Json rows = Json::array();
  std::vector<std::string> seen;
  for (const SampleSource& source : sample_sources(id, dtype)) {
    for (const OpSample& sample : op_samples(id, source)) {
      ManagedMemory managed;
      OpMemory memory = managed.operands();
      const OpCall call = sample.make(memory);
      HF_TRY_VOID(memory.outcome());
      const std::string shape = shape_text(id, call.arguments());
      if (std::ranges::find(seen, shape) != seen.end()) continue;
      seen.push_back(shape);
      const OpCost cost = cost_of(id, call.arguments());
      const double seconds = seconds_of(device, call, duration_seconds);
      rows.push_back(
          {{"op", name_of(id)},
           {"shape", shape},
           {"use", sample.use},
           {"implementation", device.kernels()[static_cast<std::size_t>(id)].of(call.arguments()).name},
           {"microseconds", seconds * 1e6},
           {"limit_microseconds", rates.limit_seconds(cost) * 1e6},
           {"flops", cost.flops},
           {"bytes", cost.bytes_read + cost.bytes_written}});
    }
  }
  return rows;
}

Result<Json> measure(DType dtype, double duration_seconds, std::string_view wanted) {
  HF_TRY(std::unique_ptr<Device> device, cuda::make_device({}));
  HF_TRY(const std::vector<CudaFacts> gpus, cuda::devices());
  HF_TRY(const Rates rates, measure_rates(*device, dtype, duration_seconds));
  Json result{{"gpu", gpus.front().name},
              {"device", device->description()},
              {"dtype", name_of(dtype)},
              {"copy_bytes_per_second", rates.bytes_per_second},
              {"product_flops_per_second", rates.flops_per_second},
              {"rows", Json::array()}};
  for (std::size_t i = 0; i < op_count; ++i) {
    const auto id = static_cast<OpId>(i);
    if (cuda::registry().of(id).empty() || (!wanted.empty() && wanted != name_of(id))) continue;
    HF_TRY(const Json rows, measure_op(*device, id, dtype, rates, duration_seconds));
    for (const Json& row : rows) result["rows"].push_back(row);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const DType dtype = !words.empty() && words[0] == "fp32" ? DType::fp32 : DType::bf16;
  const double milliseconds = words.size() > 1 ? std::atof(words[1].data()) : 40.0;
  if (const Result<std::vector<CudaFacts>> gpus = cuda::devices(); !gpus.ok()) {
    fmt::print(stderr, "bench_kernels_gpu: {}\n", gpus.error().message);
    return skipped;
  }
  const Result<Json> result = measure(dtype, milliseconds / 1e3, words.size() > 2 ? words[2] : "");
  if (!result.ok()) {
    fmt::print(stderr, "bench_kernels_gpu: {}\n", result.error().message);
    return static_cast<int>(result.error().code);
  }
  fmt::print("{}\n", result->dump(1));
  return 0;
}
