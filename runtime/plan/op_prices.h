// OpPrices says how long an op takes on one rank, for estimates of a step before it runs: from stated peaks,
// or from ops that were timed.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>

#include "kernels/op.h"
#include "runtime/measure/op_timer.h"

namespace holdfast::plan {

class OpPrices {
 public:
  virtual ~OpPrices() = default;
  // Returns the time of one op. `arguments` is the struct of `id`; its memory is not read, except for the
  // table of AdamW.
  virtual double seconds(OpId id, const void* arguments) const = 0;
  // Returns the rate at arrays larger than any cache, of bytes read plus written.
  virtual double memory_bytes_per_second() const = 0;
  // Returns the rate of large products, which is the peak for MFU.
  virtual double flops_per_second() const = 0;
  virtual std::string description() const = 0;  // a clause: "stated peaks of 989 TFLOP/s and 3350 GB/s"
};

// Prices an op at the larger of its products at one rate and its bytes at the other (kernels/cost.h): a lower
// bound for any implementation.
class PeakPrices final : public OpPrices {
 public:
  PeakPrices(double flops_per_second, double bytes_per_second, std::string description)
      : flops_per_second_(flops_per_second),
        bytes_per_second_(bytes_per_second),
        description_(std::move(description)) {}
  double seconds(OpId id, const void* arguments) const override;
  double memory_bytes_per_second() const override { return bytes_per_second_; }
  double flops_per_second() const override { return flops_per_second_; }
  std::string description() const override { return description_; }

 private:
  double flops_per_second_, bytes_per_second_;
  std::string description_;
};

// Prices an op by the time that ops of the same shape took; one of another shape is scaled by its products,
// or its bytes if it has none.
class TimedPrices final : public OpPrices {
 public:
  // Takes timed ops. `rounds`: the same ops repeatedly, AdamW among them; medians count. `launch_seconds`:
  // time of each op in addition to its kernel. `flops_per_second`: of large products, measured separately.
  // Tables in the records are read now.
  TimedPrices(std::span<const std::vector<OpTimer::Record>> rounds, double launch_seconds,
              double flops_per_second, std::string description);
  double seconds(OpId id, const void* arguments) const override;
  double memory_bytes_per_second() const override { return memory_bytes_per_second_; }
  double flops_per_second() const override { return flops_per_second_; }
  std::string description() const override { return description_; }

 private:
  struct Sum {
    double seconds = 0.0, flops = 0.0, bytes = 0.0;
  };
  std::map<std::pair<OpId, std::string>, double> seconds_;  // by op and shape
  std::map<OpId, Sum> sums_;
  double launch_seconds_, flops_per_second_;
  double memory_bytes_per_second_ = 0.0;  // rate of AdamW, whose data exceeds any cache
  std::string description_;
};

}  // namespace holdfast::plan
