#include "tests/kernels/kernel_cases.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace holdfast::test {

namespace {

struct Cases {
  const char* name;
  CaseLength length;
  std::vector<OpId> ops;
  void (*run)();
};

std::vector<Cases>& all_cases() {
  static std::vector<Cases> cases;
  return cases;
}

bool is_about(const Cases& cases, OpId op, CaseLength length) {
  return cases.length == length && std::ranges::find(cases.ops, op) != cases.ops.end();
}

// Every KERNEL_CASES of the implementation's op, or every LONG_KERNEL_CASES.
class KernelTest : public testing::Test {
 public:
  KernelTest(const KernelRegistry& registry, const Implementation& implementation,
             const DeviceProvider& provider, CaseLength length)
      : subject_(registry, implementation, provider), length_(length) {}

  void TestBody() override {
    under_test() = &subject_;
    for (const Cases& cases : all_cases()) {
      if (!is_about(cases, subject_.implementation().op, length_)) continue;
      SCOPED_TRACE(cases.name);
      cases.run();
      if (HasFatalFailure()) break;
    }
    under_test() = nullptr;
    if (length_ == CaseLength::long_) return;  // not every op's implementations have some
    EXPECT_GT(subject_.checked, 0) << "it supports none of the cases of its op, or the op has none";
  }

 private:
  UnderTest subject_;
  CaseLength length_;
};

// The builds of one source share a name; where there are several, their instruction set is part of the
// test's.
std::string test_name(const KernelRegistry& registry, const Implementation& implementation) {
  const std::vector<const Implementation*> all = registry.of(implementation.op);
  const auto builds = std::ranges::count_if(
      all, [&](const Implementation* other) { return std::string_view(other->name) == implementation.name; });
  return builds == 1 ? implementation.name
                     : fmt::format("{}_{}", implementation.name, name_of(implementation.needs));
}

}  // namespace

Device& UnderTest::device(int threads) {
  if (provider_) return provider_(implementation_, threads);
  for (const std::unique_ptr<Device>& device : devices_) {
    if (device->threads() == threads) return *device;
  }
  // Limited to what this build needs, so that a wider one of the same name does not take its place.
  devices_.push_back(make_cpu_device({.threads = threads,
                                      .isa = implementation_.needs,
                                      .kernels = {{implementation_.op, implementation_.name}},
                                      .registry = &registry_}));
  return *devices_.back();
}

std::span<const int> UnderTest::thread_counts() const {
  static constexpr int counts[] = {1, 2, 3, 5, 16};
  if (provider_) return std::span(counts).first(3);
  if (std::string_view(implementation_.name) == "reference") return std::span(counts).first(1);
  return std::span(counts).first(implementation_.needs == CpuIsa::portable ? 3 : std::size(counts));
}

Device& UnderTest::portable_device() {
  if (portable_ == nullptr)
    portable_ = make_cpu_device({.threads = 1,
                                 .kernels = {{implementation_.op, "portable"}},
                                 .registry = provider_ ? &kernel_registry() : &registry_});
  return *portable_;
}

UnderTest*& under_test() {
  static UnderTest* current = nullptr;
  return current;
}

bool add_kernel_cases(const char* name, CaseLength length, std::initializer_list<OpId> ops, void (*run)()) {
  all_cases().push_back({name, length, ops, run});
  return true;
}

void register_kernel_tests(const KernelRegistry& registry, std::string_view name,
                           const DeviceProvider& provider, bool long_too) {
  const auto add = [&](const Implementation& implementation, CaseLength length, const std::string& test) {
    testing::RegisterTest(op_names[static_cast<std::size_t>(implementation.op)], test.c_str(), nullptr,
                          nullptr, __FILE__, __LINE__,
                          [&registry, &implementation, provider, length]() -> testing::Test* {
                            return new KernelTest(registry, implementation, provider, length);
                          });
  };
  for (std::size_t index = 0; index < op_count; ++index) {
    const auto op = static_cast<OpId>(index);
    const bool has_long = std::ranges::any_of(
        all_cases(), [&](const Cases& cases) { return is_about(cases, op, CaseLength::long_); });
    for (const Implementation* each : registry.of(op)) {
      if (each->needs > best_cpu_isa() || (!name.empty() && each->name != name)) continue;
      const std::string test = test_name(registry, *each);
      add(*each, CaseLength::usual, test);
      if (has_long) add(*each, CaseLength::long_, (long_too ? "Long_" : "DISABLED_Long_") + test);
    }
  }
}

}  // namespace holdfast::test
