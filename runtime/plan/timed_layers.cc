#include "runtime/plan/timed_layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "parallel/local/local_communicator.h"
#include "runtime/core/median.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/measure/gemm_peak.h"
#include "runtime/measure/host_limits.h"
#include "runtime/measure/measured_device.h"
#include "runtime/measure/op_timer.h"
#include "runtime/measure/report.h"
#include "runtime/os/machine_facts.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"
#include "runtime/train/worker.h"

namespace holdfast::plan {
namespace {

constexpr std::int64_t layers_max = 2;
constexpr double microbatch_seconds_max = 2.0;
constexpr int rounds = 7;

// The rank of a run with `layers_max` layers, one lane and no replicas; its tensor group stays what it is.
Config few_layers(Config config) {
  config.model.layers = std::min(config.model.layers, layers_max);
  config.parallel.lanes = config.parallel.lane_block = 1;
  config.parallel.data = config.parallel.pipeline = config.parallel.pipeline_chunks = 1;
  config.parallel.pipeline_schedule = "1f1b";
  config.training.microbatches_per_lane = 1;
  config.model.freeze = {};  // frozen layers run none but these ops
  return config;
}

// Setup that all ranks that are timed together share.
struct Bench {
  Env& env;
  const Config& config;  // of few_layers()
  const MeasuredDevice& device;
  int ranks;
};

// One of them, with its times.
class TimedRank {
 public:
  TimedRank(const Bench& bench, Communicator& others)
      : bench_(bench),
        others_(others),
        timer_(bench.env),
        peers_(0, static_cast<int>(bench.config.parallel.tensor)) {}

  Result<void> prepare() {
    HF_TRY(const KernelRequest kernels, kernel_request(bench_.env, bench_.config.kernels));
    HF_TRY(device_, bench_.device.make(kernels, &timer_));
    HF_TRY(worker_, Worker::plan({.rank = {{.env = bench_.env, .faults = faults_, .communicator = peers_},
                                           *device_,
                                           bench_.config,
                                           mesh_of(bench_.config, peers_.size())},
                                  .data = nullptr}));
    HF_TRY_VOID(worker_->prepare_kernels());
    HF_TRY_VOID(initialize_weights(worker_->state_view()));
    const TrainingConfig& training = bench_.config.training;
    std::vector<std::int32_t> tokens(
        static_cast<std::size_t>(training.microbatch_size * training.sequence_length));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] =
          static_cast<std::int32_t>(static_cast<std::int64_t>(i * 7919) % bench_.config.model.vocabulary);
    }
    const std::vector<std::int32_t> first_key(tokens.size(), 0);
    worker_->stage().tokens().stage(0, tokens, tokens, first_key);
    return {};
  }

  // All ranks together.
  Result<void> run(int round) {
    const Waiter waiter(bench_.env, bench_.config.parallel.timeout_ms);
    HF_TRY_VOID(barrier(others_, waiter));
    timer_.clear();
    const std::int64_t begin_ns = bench_.env.monotonic_ns();
    const Model& model = worker_->stage().model();
    const TokenBatch tokens = worker_->stage().tokens().at(0);
    for (const bool accumulate : {false, true}) {
      HF_TRY_VOID(model.forward_backward(*device_, tokens, worker_->stage().loss_sums().data(),
                                         {.accumulate = accumulate}));
    }
    worker_->optimizer().launch_update(*device_, {.step = round + 1, .learning_rate = 0.0});
    device_->synchronize();
    const std::int64_t elapsed_ns = bench_.env.monotonic_ns() - begin_ns;
    if (round == 0) return {};  // which touched the memory for the first time
    std::int64_t in_ops_ns = 0;
    for (const OpTimer::Record& record : timer_.records()) in_ops_ns += record.duration_ns;
    rounds_.push_back(timer_.records());
    launch_seconds_.push_back(static_cast<double>(std::max<std::int64_t>(0, elapsed_ns - in_ops_ns)) * 1e-9 /
                              static_cast<double>(timer_.records().size()));
    return {};
  }

  std::unique_ptr<OpPrices> prices(double flops_per_second, std::string description) const {
    return std::make_unique<TimedPrices>(rounds_, median(launch_seconds_), flops_per_second,
                                         std::move(description));
  }

 private:
  const Bench& bench_;
  Communicator& others_;
  OpTimer timer_;
  FaultPoints faults_;
  AbsentPeers peers_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Worker> worker_;
  std::vector<std::vector<OpTimer::Record>> rounds_;
  std::vector<double> launch_seconds_;
};

// Returns the rate of products on one rank while all ranks compute.
Result<double> product_rate(const Bench& bench) {
  std::vector<double> rates(static_cast<std::size_t>(bench.ranks));
  const Result<void> outcome = run_local_ranks(bench.ranks, [&](Communicator& others) -> Result<void> {
    HF_TRY(const std::unique_ptr<Device> device, bench.device.make({}, nullptr));
    HF_TRY(GemmPeak peak, GemmPeak::make(bench.env, *device, precision_of(bench.config)));
    HF_TRY_VOID(barrier(others, Waiter(bench.env, bench.config.parallel.timeout_ms)));
    constexpr std::int64_t duration_ns = 20'000'000;
    rates[static_cast<std::size_t>(others.rank())] = peak.rate(duration_ns);
    return {};
  });
  HF_TRY_VOID(outcome);
  return median(rates);
}

Result<bool> fits(const Bench& bench) {
  const Mesh mesh = mesh_of(bench.config, static_cast<int>(bench.config.parallel.tensor));
  HF_TRY(const std::unique_ptr<PlannedWorker> planned, PlannedWorker::make(bench.env, bench.config, mesh, 0));
  return check_fits(planned->worker().memory_plan(), available_memory_bytes(bench.env), bench.ranks).ok();
}

Result<std::unique_ptr<OpPrices>> peaks_here(const Bench& bench, int threads, double flops_per_second) {
  HostLimits limits(bench.env, threads, /*duration_ms=*/30);
  constexpr std::uint64_t stream_bytes = std::uint64_t{256} << 20U;
  HF_TRY(const double seconds,
         limits.stream_seconds({.bytes_read = stream_bytes, .bytes_written = stream_bytes}));
  const double bytes_per_second = 2.0 * static_cast<double>(stream_bytes) / seconds / bench.ranks;
  return std::unique_ptr<OpPrices>(std::make_unique<PeakPrices>(
      flops_per_second, bytes_per_second,
      fmt::format(
          "measured peaks of this machine for one of {} ranks, {} GFLOP/s and {} GB/s, which the ops of a "
          "step do not reach (the layers are too large to be timed here)",
          bench.ranks, digits(flops_per_second * 1e-9), digits(bytes_per_second * 1e-9))));
}

}  // namespace

Result<std::unique_ptr<OpPrices>> price_ops_here(Env& env, const Config& config, int ranks) {
  const Config few = few_layers(config);
  const int threads = threads_of_rank(env, config, ranks);
  const int at_once = std::clamp(env.processor_count() / threads, 1, ranks);
  HF_TRY(const MeasuredDevice device, MeasuredDevice::find(env, {.threads = threads}));
  const Bench bench{.env = env, .config = few, .device = device, .ranks = at_once};
  HF_TRY(const double flops_per_second, product_rate(bench));
  const ModelSpec spec = make_model_spec(few);
  const double flops = flops_per_token(spec, few.training.sequence_length) *
                       static_cast<double>(few.training.microbatch_size * few.training.sequence_length);
  HF_TRY(const bool has_room, fits(bench));
  if (flops / flops_per_second > microbatch_seconds_max || !has_room) {
    return peaks_here(bench, threads, flops_per_second);
  }
  std::unique_ptr<OpPrices> prices;
  const Result<void> outcome = run_local_ranks(at_once, [&](Communicator& others) -> Result<void> {
    TimedRank rank(bench, others);
    HF_TRY_VOID(rank.prepare());
    for (int round = 0; round < rounds; ++round) HF_TRY_VOID(rank.run(round));
    if (others.rank() == 0) {
      prices = rank.prices(
          flops_per_second,
          fmt::format("the ops of {} layers and the ends of this model, timed on this machine on {} "
                      "rank{} of {} thread{}",
                      few.model.layers, at_once, at_once == 1 ? "" : "s at once", threads,
                      threads == 1 ? "" : "s"));
    }
    return {};
  });
  HF_TRY_VOID(outcome);
  return prices;
}

}  // namespace holdfast::plan
