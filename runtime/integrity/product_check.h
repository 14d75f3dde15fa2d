// The check of products: ProductTest lets a rank find out by itself whether its device computes matrix products right: it makes
// products whose results are known (a known-answer test). It finds a broken unit that gives the same wrong
// numbers every time, which a rank that computes something twice cannot find.
//
//   device.inspect_with(&test);     // while all kinds of ops are planned: notes the shapes of their products
//   ...
//   device.inspect_with(nullptr);
//   test.plan(device);              // still while planning
//   test.run(place, step, pace);    // then finding() has what it found
//
// Method: A = u s^T and B = t v^T of small integers, so C = (s . t) u v^T. Every partial sum is an integer that
// fp32 holds exactly, whatever the order of the sums and the instructions. The shapes are those of the run's
// own products, because a broken unit may matter to some of them only. Not tested are other ops, attention
// among them.
//
// Threads: that which launches ops. Allocates nothing on the device, and some rows on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "runtime/device/device.h"
#include "runtime/device/host_access.h"
#include "runtime/integrity/check_record.h"

namespace holdfast::integrity {

struct WrongProduct {
  std::string shape = {};        // "of 512 x 64 by 64 x 256 numbers in bf16"
  bool lasts = false;            // it was wrong again when it was made again
  std::uint64_t right_step = 0;  // newest step after which the same shape came out right; 0: none is known
};

class ProductTest final : public OpInspector {
 public:
  // Notes the shape of a product, unless it is known.
  void launched(OpId id, const void* arguments) override;
  // Launches every test once, on a device that is planning.
  void plan(Device& device) const;
  std::size_t shapes() const { return shapes_.size(); }

  // Place says where tests run. `scratch` is device memory, in which their numbers are zeros afterwards; a shape that does
  // not fit is skipped. `wait` returns when the device has run what was launched.
  struct Place {
    Device& device;
    HostAccess& access;
    std::span<std::byte> scratch;
    std::function<void()> wait;
  };
  // Makes all products, up to one that is wrong, which is made once more. `step`: the newest one that was made.
  // `pace` is called after each product.
  void run(const Place& place, std::uint64_t step, const std::function<void()>& pace);
  // Returns the product that was wrong in the last run; nothing: none was, or it was forgotten since.
  const std::optional<WrongProduct>& finding() const { return finding_; }
  void forget() { finding_.reset(); }

 private:
  struct Shape {
    Matmul op = {};  // without addresses
    std::uint64_t right_step = 0;
  };

  static std::optional<WrongProduct> test(Shape& shape, const Place& place, std::uint64_t step);

  std::vector<Shape> shapes_;
  std::optional<WrongProduct> finding_;
};

// Makes one small product with a known result on a device that has nothing else to do yet. ExitCode::config with
// Reach::host when it is wrong.
Result<void> try_product(Device& device, DType dtype);

// TestedProducts says what the test of one rank found; no shape: nothing.
struct TestedProducts {
  std::string shape = {};
  bool lasts = false;

  bool is_wrong() const { return !shape.empty(); }
  static void visit_fields(auto& self, auto&& visit) {
    visit("shape", self.shape);
    visit("lasts", self.lasts);
  }
};
using ProductRecords = CheckRecords<TestedProducts>;

// Attributes wrong products to the ranks that computed them: to be evicted are those whose finding lasts, or the only
// one, unless they are of more than one copy of the model, without which the run may not be able to continue.
// `verified_step`: the newest step that was made. Pure.
Finding attribute(const ProductRecords& records, std::uint64_t verified_step);

// Makes the known products of this rank, in the memory of the gradients, which are not needed any more.
void test_products(const StepAccess& step);

// Checks a step in whose vote some rank had a finding, which is forgotten. All ranks call it together.
Result<CheckedStep> check_products(const StepAccess& step, const Attempt& attempt);

// Makes all known products on all ranks, and returns what they show where a rank computed one wrong for good; else
// there are no suspects. All ranks call it together, when the gradients in memory are not needed any more.
Result<Finding> lasting_products(const StepAccess& step);

}  // namespace holdfast::integrity
