#include "tools/bench_native/cases.h"

#include <fmt/core.h>

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "kernels/optimizer.h"
#include "runtime/config/presets.h"
#include "runtime/core/median.h"
#include "runtime/core/text.h"
#include "runtime/device/host_access.h"
#include "runtime/measure/op_memory.h"
#include "runtime/measure/op_timer.h"
#include "runtime/measure/report.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/os/machine_facts.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench {
namespace {

// State that one rank of a run alone holds for its updates.
class Updates {
 public:
  Updates(Env& env, const ModelSpec& spec, const OptimizerConfig& config)
      : env_(env),
        timer_(env),
        buckets_(backward_buckets(spec), 1),
        parameters_slot_(plan_.reserve("parameters", MemoryClass::weights,
                                       buckets_.parameter_elements() * bytes_of(spec.dtype))),
        gradients_slot_(plan_.reserve("gradients", MemoryClass::gradients,
                                      buckets_.accumulator_elements(0) * sizeof(float))),
        square_sums_slot_(plan_.reserve("square_sums", MemoryClass::workspace, sum_count() * sizeof(double))),
        gradient_digests_slot_(
            plan_.reserve("gradient_digests", MemoryClass::workspace, sum_count() * sizeof(std::uint64_t))),
        optimizer_(buckets_, 0, spec.dtype, config, plan_) {
    std::uint64_t kept_bytes = 0;
    const std::vector<ShardSpec> weights = buckets_.shard_specs(0, "weight");
    for (ShardSpec piece : weights) {
      kept_bytes += room_of(piece);
      piece.dtype = config.moment_type();
      kept_bytes += 2 * room_of(piece);
    }
    kept_slot_ = plan_.reserve("kept", MemoryClass::snapshot, kept_bytes);
    table_slot_ = plan_.reserve("table", MemoryClass::workspace, weights.size() * sizeof(OptimizerTensor));
  }

  Result<void> allocate(const MeasuredDevice& bench) {
    HF_TRY(device_, bench.make({}, &timer_));
    host_access_.emplace(*device_, plan_);
    HF_TRY_VOID(check_fits(plan_, available_memory_bytes(env_), 1, device_->host_sees_memory()));
    HF_TRY(arena_, allocate_memory(*device_, plan_));
    host_access_->bind(arena_);
    gradients_ = arena_.at<float>(gradients_slot_);
    const std::vector<float> small(4096, 1e-3F);
    fill_memory(*device_, arena_.bytes(gradients_slot_), std::as_bytes(std::span(small)));
    square_sums_ = arena_.at<double>(square_sums_slot_);
    gradient_digests_ = arena_.at<std::uint64_t>(gradient_digests_slot_);
    optimizer_.bind(*device_, arena_, arena_.bytes(parameters_slot_).data(),
                    {.values = gradients_, .digests = gradient_digests_});
    std::vector<std::byte*> kept;
    std::byte* room = arena_.bytes(kept_slot_).data();
    for (const OwnedState& piece : optimizer_.state()) {
      kept.push_back(room);
      room += room_of(piece.spec);
    }
    const std::vector<OptimizerTensor> table = optimizer_.keeping_table(kept);
    write_memory(*device_, arena_.at<OptimizerTensor>(table_slot_), std::as_bytes(std::span(table)));
    return {};
  }

  // One pass of each kind over all parameters, with the clock cleared before.
  const std::vector<OpTimer::Record>& square_sums(bool with_digests = true) {
    return timed([&] {
      std::uint64_t block = 0;
      for (const Segment& segment : optimizer_.segments()) {
        device_->launch(SquareSum{.values = gradients_ + segment.shard_offset,
                                  .count = static_cast<std::int64_t>(segment.elements),
                                  .sums = square_sums_ + block,
                                  .digests = with_digests ? gradient_digests_ + block : nullptr});
        block += segment.block_count;
      }
    });
  }
  const std::vector<OpTimer::Record>& update(std::int64_t step) {
    return timed([&] {
      optimizer_.launch_update(*device_, {.step = step, .learning_rate = 1e-4, .gradient_scale = 1.0});
      device_->synchronize();
      std::memcpy(&launched_, timer_.records().back().arguments.data(), sizeof(launched_));
    });
  }
  // Makes the update again without digests.
  const std::vector<OpTimer::Record>& update_without_digests() {
    AdamW op = launched_;
    op.block_digests = nullptr;
    op.gradient_digests = nullptr;
    return timed([&] { device_->launch(op); });
  }
  // Makes it again, and keeps the state as a RAM snapshot has it.
  const std::vector<OpTimer::Record>& update_keeping_state() {
    AdamW op = launched_;
    op.tensors = arena_.at<OptimizerTensor>(table_slot_);
    op.keeps_state = true;
    return timed([&] { device_->launch(op); });
  }
  // Computes the digests of all of the state, as a start does.
  const std::vector<OpTimer::Record>& digests() {
    const OptimizerDigest op{.tensors = launched_.tensors,
                             .tensor_count = launched_.tensor_count,
                             .block_count = launched_.block_count,
                             .block_digests = launched_.block_digests,
                             .moments = launched_.moments};
    return timed([&] { device_->launch(op); });
  }
  // Makes an update that is not timed, and whose digests the next one compares.
  void update_after_others(std::int64_t step) {
    optimizer_.forget_digests();
    update(step);
  }
  // Returns the seconds of the last pass, from the first launch to the end of the last op.
  double pass_seconds() const { return pass_seconds_; }
  const Device& device() const { return *device_; }
  Result<void> outcome() { return device_->status(); }

 private:
  // Returns the bytes of a kept piece, which begins at a page as in a snapshot.
  static std::uint64_t room_of(const ShardSpec& piece) {
    constexpr std::uint64_t page = 4096;
    return (piece.byte_count() + page - 1) / page * page;
  }
  std::size_t sum_count() const {
    std::size_t count = 0;
    for (const Segment& segment : buckets_.segments(0)) count += segment.block_count;
    return count;
  }
  template <typename Launch>
  const std::vector<OpTimer::Record>& timed(const Launch& launch) {
    timer_.clear();
    const std::int64_t begin_ns = env_.monotonic_ns();
    launch();
    device_->synchronize();
    pass_seconds_ = static_cast<double>(env_.monotonic_ns() - begin_ns) * 1e-9;
    timer_.fetch_tables(*host_access_);
    return timer_.records();
  }

  Env& env_;
  OpTimer timer_;
  BucketPlan buckets_;
  MemoryPlan plan_;
  MemoryPlan::Slot parameters_slot_, gradients_slot_, square_sums_slot_, gradient_digests_slot_, kept_slot_,
      table_slot_;
  ShardedOptimizer optimizer_;
  std::optional<HostAccess> host_access_;
  MemoryArena arena_;
  float* gradients_ = nullptr;
  double* square_sums_ = nullptr;
  std::uint64_t* gradient_digests_ = nullptr;
  double pass_seconds_ = 0.0;
  AdamW launched_;                  // the last update, as the device got it
  std::unique_ptr<Device> device_;  // last: its queue drains while the memory is still there
};

OpCost cost_of(const std::vector<OpTimer::Record>& records) {
  OpCost sum;
  for (const OpTimer::Record& record : records) {
    const OpCost cost = kernels::cost_of(record.id, record.arguments.data());
    sum.bytes_read += cost.bytes_read;
    sum.bytes_written += cost.bytes_written;
    sum.bytes_updated += cost.bytes_updated;
  }
  return sum;
}

struct Pass {
  std::string name;
  OpCost cost;
  std::vector<double> seconds;
  double limit_seconds = 0.0;
};

}  // namespace

Result<Json> run_optimizer_case(Env& env, const OptimizerCaseOptions& options) {
  HF_TRY(const ModelSpec spec, preset_spec(options.preset, options.dtype, 64));
  HF_TRY(const MeasuredDevice bench, MeasuredDevice::find(env, options.device));
  OptimizerConfig config;
  config.moments = options.moments;
  Updates updates(env, spec, config);
  HF_TRY_VOID(updates.allocate(bench));
  const std::unique_ptr<Limits> limits = bench.limits(options.limit_ms);
  updates.update(1);
  Pass update{.name = "adamw", .cost = cost_of(updates.update(2)), .seconds = {}};
  Pass bare{
      .name = "adamw_without_digests", .cost = cost_of(updates.update_without_digests()), .seconds = {}};
  Pass keeping{.name = "adamw_keeping_state", .cost = cost_of(updates.update_keeping_state()), .seconds = {}};
  Pass digests{.name = "optimizer_digest", .cost = cost_of(updates.digests()), .seconds = {}};
  Pass sums{.name = "square_sum", .cost = cost_of(updates.square_sums()), .seconds = {}};
  Pass bare_sums{
      .name = "square_sum_without_digests", .cost = cost_of(updates.square_sums(false)), .seconds = {}};
  for (std::int64_t i = 0; i < options.updates; ++i) {
    if (i == options.updates / 2) {
      for (Pass* const pass : {&update, &bare, &keeping, &digests, &sums, &bare_sums}) {
        HF_TRY(pass->limit_seconds, limits->stream_seconds(pass->cost));
      }
    }
    updates.update_after_others(i + 3);
    updates.square_sums();
    sums.seconds.push_back(updates.pass_seconds());
    updates.square_sums(false);
    bare_sums.seconds.push_back(updates.pass_seconds());
    updates.update(i + 3);
    update.seconds.push_back(updates.pass_seconds());
    updates.update_without_digests();
    bare.seconds.push_back(updates.pass_seconds());
    updates.update_keeping_state();
    keeping.seconds.push_back(updates.pass_seconds());
    updates.digests();
    digests.seconds.push_back(updates.pass_seconds());
  }
  HF_TRY_VOID(updates.outcome());
  fmt::print("{}\n{}: {} parameters, {}, moments in {}{}, median of {} updates\n\n", bench.line(),
             options.preset, parameter_count(spec), name_of(options.dtype), options.moments,
             bench.threads_text(), options.updates);
  TextTable table({"op", "bytes", "ms", "rate", "limit ms", "limit", "of limit"}, 1);
  Json result{{"preset", options.preset},
              {"parameters", parameter_count(spec)},
              {"dtype", name_of(options.dtype)},
              {"moments", options.moments},
              {"device", updates.device().description()}};
  bench.describe(result);
  for (const Pass& pass : {update, bare, keeping, digests, sums, bare_sums}) {
    const double seconds = median(pass.seconds);
    table.add({pass.name, std::to_string(pass.cost.bytes_moved()), digits(seconds * 1e3),
               rate_text(pass.cost, seconds), digits(pass.limit_seconds * 1e3),
               rate_text(pass.cost, pass.limit_seconds), percent(pass.limit_seconds / seconds)});
    result[pass.name] = {{"bytes_read", pass.cost.bytes_read},
                         {"bytes_written", pass.cost.bytes_written},
                         {"ms", seconds * 1e3},
                         {"limit_ms", pass.limit_seconds * 1e3}};
  }
  fmt::print("{}", table.text());
  return result;
}

}  // namespace holdfast::bench
