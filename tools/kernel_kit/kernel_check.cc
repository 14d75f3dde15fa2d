#include "tools/kernel_kit/kernel_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/composed.h"
#include "kernels/plugin.h"
#include "kernels/registry.h"
#include "kernels/visit_op.h"
#include "runtime/measure/call_key.h"
#include "runtime/os/thread.h"
#include "tools/kernel_kit/call_cut.h"
#include "tools/kernel_kit/check_shapes.h"
#include "tools/kernel_kit/checked_memory.h"
#include "tools/kernel_kit/kernel_runner.h"

namespace holdfast::bench::kernel_kit {
namespace {

constexpr int thread_counts[] = {1, 2, 3, 5, 16};
constexpr std::size_t most_problems = 5;

// Disturber keeps a processor and its caches busy for as long as it lives.
class Disturber {
 public:
  explicit Disturber(Env& env) : memory_(bytes) {
    Result<std::unique_ptr<Thread>> started = env.start_thread("disturber", [this] { work(); });
    if (started.ok()) thread_ = std::move(started).value();
  }
  ~Disturber() {
    stops_ = true;
    if (thread_ != nullptr) thread_->wait();
  }
  Disturber(const Disturber&) = delete;
  Disturber& operator=(const Disturber&) = delete;

 private:
  static constexpr std::size_t bytes = std::size_t{8} << 20;
  void work() {
    for (std::uint8_t round = 0; !stops_; ++round) std::ranges::fill(memory_, round);
  }
  std::atomic<bool> stops_{false};
  std::vector<std::uint8_t> memory_;
  std::unique_ptr<Thread> thread_;
};

// AllowedAlias names two operands that the contract lets be the same memory; of several with a name, it is the last.
struct AllowedAlias {
  OpId op;
  const char* read;
  const char* written;
};
constexpr AllowedAlias allowed_aliases[] = {{OpId::add, "a", "y"},
                                            {OpId::add, "b", "y"},
                                            {OpId::layernorm_backward, "dresidual", "dx"},
                                            {OpId::rmsnorm_backward, "dresidual", "dx"},
                                            {OpId::tree_sum, "parts", "y"}};

// Trial is one call of one kernel, tried in all ways.
template <typename Op>
class Trial {
 public:
  Trial(const Implementation& kernel, const Implementation& usual, const Op& shape, const CheckShape& call,
        std::uint64_t seed)
      : kernel_(kernel), usual_(usual), shape_(shape), call_(call), seed_(seed) {}

  bool is_computed() const { return kernel_.computes(&shape_); }
  const Implementation& usual() const { return usual_; }

  // The memory of a run and what the kernel did to memory that is not its own.
  struct Outcome {
    CheckedMemory memory;
    std::string damage;
  };
  struct Ways {
    Values values = Values::usual;
    std::byte poison = std::byte{0xff};
    std::byte guard = std::byte{0xa5};  // a small number; 0xff is a NaN
    std::size_t shift = 0;
    bool is_fenced = false;
    const AllowedAlias* alias = nullptr;
  };

  Outcome run(KernelRunner& runner, const Ways& ways) const {
    Outcome outcome{.memory = memory_of(ways), .damage = {}};
    const Op op = bound(outcome.memory, ways);
    outcome.damage = runner.run(kernel_, &op, ways.poison);
    if (outcome.damage.empty()) outcome.damage = outcome.memory.damage();
    return outcome;
  }
  // Runs the kernel on the two parts of the call; nothing where it is one piece, or the kernel computes no such parts.
  std::optional<Outcome> run_cut(KernelRunner& runner, const Ways& ways) const {
    Outcome outcome{.memory = memory_of(ways), .damage = {}};
    const std::optional<std::pair<Op, Op>> parts = cut_in_two(bound(outcome.memory, ways));
    if (!parts.has_value() || !kernel_.computes(&parts->first) || !kernel_.computes(&parts->second))
      return std::nullopt;
    for (const Op* part : {&parts->first, &parts->second}) {
      if (outcome.damage.empty()) outcome.damage = runner.run(kernel_, part, ways.poison);
    }
    if (outcome.damage.empty()) outcome.damage = outcome.memory.damage();
    return outcome;
  }
  CheckedMemory run_usual(KernelRunner& runner, const Ways& ways) const {
    CheckedMemory memory = memory_of(ways);
    const Op op = bound(memory, ways);
    runner.run(usual_, &op, ways.poison);
    return memory;
  }
  CheckedMemory run_reference(const Ways& ways) const {
    CheckedMemory memory = memory_of(ways);
    reference(bound(memory, ways));
    return memory;
  }

 private:
  CheckedMemory memory_of(const Ways& ways) const {
    return CheckedMemory({.seed = seed_,
                          .values = ways.values,
                          .poison = ways.poison,
                          .guard = ways.guard,
                          .shift = ways.shift,
                          .is_fenced = ways.is_fenced,
                          .contents = call_.contents,
                          .given = call_.given});
  }
  int count_of(std::string_view name) const {
    int count = 0;
    Op::visit_operands(shape_,
                       [&](const auto&, const Operand& operand) { count += name == operand.name ? 1 : 0; });
    return count;
  }
  Op bound(CheckedMemory& memory, const Ways& ways) const {
    if (ways.alias == nullptr) return memory.bind(shape_);
    Op shape = shape_;
    static const std::byte same_place{};  // an address that stands for memory, and that no other operand has
    const void* const place = &same_place;
    int of_name = count_of(ways.alias->read);
    Op::visit_operands(shape, [&](auto& pointer, const Operand& operand) {
      const std::string_view name = operand.name;
      if (name == ways.alias->written || (name == ways.alias->read && --of_name == 0))
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(const_cast<void*>(place));
    });
    return memory.bind(shape);
  }

  const Implementation& kernel_;
  const Implementation& usual_;
  const Op& shape_;
  const CheckShape& call_;
  std::uint64_t seed_;
};

// Tells whether an op may be given such numbers. Two read what another op found out about the same numbers; where those
// are large, and what the other found is made up, everything overflows. Where queries and cached keys have outliers in the
// same channels, scores are known to a hundredth in fp32.
template <typename Op>
bool may_be_given(const Op& op, Values values) {
  if constexpr (requires { op.cache; }) {
    if (op.cache != nullptr && values == Values::outliers) return false;
  }
  constexpr bool reads_findings =
      Op::id == OpId::attention_backward || Op::id == OpId::cross_entropy_gradient;
  return !reads_findings || (values != Values::outliers && values != Values::large);
}

// Tells whether the contract of an op says each bit of an array that it writes: "rounded once". A sum of squares is in any
// fixed order.
bool has_fixed_bits(OpId op, std::string_view array) {
  constexpr OpId fixed[] = {OpId::add, OpId::accumulate, OpId::cast, OpId::tree_sum};
  if (op == OpId::residual_layernorm || op == OpId::residual_rmsnorm) return array == "sum";
  return std::ranges::find(fixed, op) != std::end(fixed) && array != "square_sums";
}

// Returns the index of the first element with other bits; -1: there is none.
std::int64_t first_difference(const CheckedMemory::Array& one, const CheckedMemory::Array& two) {
  const std::span<const std::byte> left = one.content(), right = two.content();
  const auto found = std::ranges::mismatch(left, right).in1;
  return found == left.end() ? -1 : (found - left.begin()) / one.operand.element_bytes;
}

// Names of arrays count, because aliases and shifts change places.
bool same_bits(const CheckedMemory& one, const CheckedMemory& two, std::string& where) {
  for (const CheckedMemory::Array& a : one.arrays()) {
    if (!a.is_written || a.operand.access == Operand::Access::scratch) continue;
    for (const CheckedMemory::Array& b : two.arrays()) {
      if (std::string_view(a.operand.name) != b.operand.name || a.bytes != b.bytes) continue;
      const std::int64_t at = first_difference(a, b);
      if (at < 0) break;
      where = fmt::format("element {} of {}", at, a.operand.name);
      return false;
    }
  }
  return true;
}

class KernelChecker {
 public:
  // `usual` is what a run without the kernel would choose from.
  KernelChecker(Env& env, const Implementation& kernel, const KernelChoice& usual,
                const std::function<void(const std::string&)>& tell, std::uint64_t seed)
      : env_(env), kernel_(kernel), usual_(usual), tell_(tell), seed_(seed) {
    for (const int threads : thread_counts) runners_.push_back(std::make_unique<KernelRunner>(threads));
    verdict_.op = name_of(kernel.op);
    verdict_.name = kernel.name;
    verdict_.is_of_parts = is_composed(kernel.op);
  }

  void check(const CheckShape& shape) {
    visit_op(shape.call.id(), shape.call.arguments(), [&](const auto& op) {
      const Trial trial(kernel_, first_that_computes(usual_.order, shape.call.arguments()), op, shape, seed_);
      ++verdict_.calls;
      label_ = measure::call_text(shape.call.id(), shape.call.arguments());
      if constexpr (requires { op.dtype; }) label_ += op.dtype == DType::fp32 ? ", fp32" : "";
      const bool is_traced = !shape.given.empty();
      if (is_traced) label_ += ", " + shape.use;
      tell("supports()", 0);
      if (!trial.is_computed()) return;
      const bool is_first = verdict_.computed++ == 0 || shape.use == "odd";
      check_values(trial, is_traced ? Values::traced : Values::usual);
      if (failed_) return;
      check_bits(trial);
      if (is_traced) return;
      check_aliases(trial, op);
      for (const Values values :
           {Values::zeros, Values::outliers, Values::large, Values::tiny, Values::denormal}) {
        if (is_first && !failed_ && may_be_given(op, values)) check_values(trial, values);
      }
    });
  }

  KernelVerdict finish() {
    if (verdict_.computed == 0)
      problem(
          fmt::format("it computes none of the {} calls that it was offered: supports() returns 0 for all",
                      verdict_.calls));
    if (verdict_.cut > 0 && verdict_.layout_free && verdict_.passed() && (flags() & HF_LAYOUT_FREE) == 0)
      verdict_.notes.emplace_back(
          "its bits were the same in all ways, also of calls cut in two; it can have the flag "
          "HF_LAYOUT_FREE");
    if (!is_composed(kernel_.op) && (flags() & HF_BITS_OF_PARTS) != 0)
      problem(fmt::format("it has the flag HF_BITS_OF_PARTS, and {} is no op of parts", verdict_.op));
    if (is_composed(kernel_.op) && verdict_.bits_of_parts && verdict_.passed() &&
        (flags() & HF_BITS_OF_PARTS) == 0)
      verdict_.notes.push_back(
          fmt::format("it has the bits of {} in all calls; it can have the flag HF_BITS_OF_PARTS",
                      parts_text(kernel_.op)));
    return std::move(verdict_);
  }
  bool gives_up() const { return verdict_.problems.size() >= most_problems; }

 private:
  std::uint32_t flags() const { return kernel_.plugin == nullptr ? 0 : kernel_.plugin->kernel->flags; }
  void tell(std::string_view what, int threads) {
    tell_(fmt::format("{} on {}{}", what, label_, threads > 0 ? fmt::format(", {} threads", threads) : ""));
  }
  void problem(std::string sentence) {
    failed_ = true;
    if (!gives_up()) verdict_.problems.push_back(std::move(sentence));
  }

  template <typename Op>
  std::optional<CheckedMemory> run(const Trial<Op>& trial, std::size_t runner,
                                   const typename Trial<Op>::Ways& ways, std::string_view what) {
    tell(what, thread_counts[runner]);
    auto outcome = trial.run(*runners_[runner], ways);
    if (outcome.damage.empty()) return std::move(outcome.memory);
    problem(fmt::format("{}: {}", label_, outcome.damage));
    return std::nullopt;
  }

  template <typename Op>
  void check_values(const Trial<Op>& trial, Values values) {
    failed_ = false;
    const typename Trial<Op>::Ways ways{.values = values, .guard = std::byte{0xff}};
    const std::optional<CheckedMemory> actual = run(trial, 0, ways, name_of(values));
    if (!actual.has_value()) return;
    const CheckedMemory expected = trial.run_reference(ways);
    const CheckedMemory usual = trial.run_usual(*runners_[0], ways);
    for (std::size_t i = 0; i < actual->arrays().size(); ++i) {
      const CheckedMemory::Array& array = actual->arrays()[i];
      if (!array.is_written || array.operand.access == Operand::Access::scratch) continue;
      const std::vector<std::byte> own = actual->follows_from_others(array);
      compare(trial.usual().name, array, own.empty() ? expected.arrays()[i].content() : own,
              usual.arrays()[i], values);
    }
  }

  void compare(const char* usual_name, const CheckedMemory::Array& actual,
               std::span<const std::byte> expected, const CheckedMemory::Array& usual, Values values) {
    const DType dtype = actual.operand.dtype;
    const bool is_words = actual.operand.content == Operand::Content::words;
    CallVerdict& found = verdict_.numbers.emplace_back();
    found.call = fmt::format("{}, {}", label_, name_of(values));
    found.array = actual.operand.name;
    found.dtype = is_words ? "words" : core::name_of(dtype);
    found.errors = compare_numbers(actual.content(), expected, dtype, is_words);
    const NumberErrors of_usual = compare_numbers(usual.content(), expected, dtype, is_words);
    found.default_name = usual_name;
    found.default_relative = of_usual.relative();
    found.limits = error_limits(dtype, is_words, of_usual);
    const NumberErrors& errors = found.errors;
    if (errors.wrong_kind > found.limits.wrong_kind) {
      problem(fmt::format(
          "{}: {} has {} elements that are not finite where they should be, or finite where they should "
          "not; the first is element {}: {}, expected {}",
          found.call, found.array, errors.wrong_kind, errors.first_wrong_kind, errors.actual,
          errors.expected));
      return;
    }
    if (errors.relative() > found.limits.relative) {
      problem(fmt::format(
          "{}: element {} of {} is {}, expected {}: {:.3g} ULP, an error of {:.2g} of the largest element, "
          "where {:.2g} is allowed",
          found.call, errors.worst, found.array, errors.actual, errors.expected, errors.ulp_max,
          errors.relative(), found.limits.relative));
      return;
    }
    const std::int64_t at = first_difference(actual, usual);
    if (at < 0) return;
    verdict_.bits_of_parts = false;
    if (has_fixed_bits(kernel_.op, found.array)) {
      problem(
          fmt::format("{}: element {} of {} has not the bits of {}, and the contract of {} leaves no choice",
                      found.call, at, found.array, found.default_name, verdict_.op));
    } else if ((flags() & HF_BITS_OF_PARTS) != 0) {
      problem(
          fmt::format("{}: element {} of {} has not the bits of {}: it breaks the promise HF_BITS_OF_PARTS",
                      found.call, at, found.array, parts_text(kernel_.op)));
    }
  }

  void other_bits(const std::string& because, const std::string& where, bool twice) {
    (twice ? verdict_.same_bits_twice : verdict_.layout_free) = false;
    verdict_.layout_free = false;
    problem(fmt::format("{}: {} has other bits {}: a run with it depends on that", label_, where, because));
  }

  template <typename Op>
  void check_bits(const Trial<Op>& trial) {
    using Ways = typename Trial<Op>::Ways;
    std::string where;
    const std::optional<CheckedMemory> first = run(trial, 0, Ways{}, "a first run");
    for (std::size_t i = 1; first.has_value() && !failed_ && i < std::size(thread_counts); ++i) {
      const auto other = run(trial, i, Ways{}, "other threads");
      if (other.has_value() && !same_bits(*first, *other, where))
        other_bits(fmt::format("on {} threads than on 1", thread_counts[i]), where, false);
    }
    if (!first.has_value() || failed_) return;
    if (const auto other = run(trial, 2, Ways{.shift = 1}, "other addresses");
        other.has_value() && !same_bits(*first, *other, where))
      other_bits("where its arrays begin at other addresses", where, false);
    if (const auto other =
            run(trial, 1, Ways{.poison = std::byte{0}, .guard = std::byte{0xff}}, "zeros in what it writes");
        other.has_value() && !failed_ && !same_bits(*first, *other, where))
      other_bits("where its outputs, its workspace and what lies around them held something else before",
                 where, true);
    if (!failed_)
      run(trial, 1, Ways{.is_fenced = true}, "arrays that end where the memory of the process ends,");
    if (failed_) return;
    check_cut(trial, *first);
    if (failed_) return;
    const Disturber disturber(env_);
    for (int repeat = 0; repeat < 3 && !failed_; ++repeat) {
      if (const auto other = run(trial, 3, Ways{}, "beside a thread that disturbs");
          other.has_value() && !same_bits(*first, *other, where))
        other_bits("from one run to the next", where, true);
    }
    if (!failed_) ++verdict_.bits;
  }

  // A kernel that does not promise to be free of the layout may have other bits here.
  template <typename Op>
  void check_cut(const Trial<Op>& trial, const CheckedMemory& whole) {
    tell("a call cut in two", thread_counts[1]);
    const auto cut = trial.run_cut(*runners_[1], {});
    if (!cut.has_value()) return;
    std::string where;
    if (!cut->damage.empty()) return problem(fmt::format("{}, cut in two: {}", label_, cut->damage));
    ++verdict_.cut;
    if (same_bits(whole, cut->memory, where)) return;
    const bool is_first = std::exchange(verdict_.layout_free, false);
    if ((flags() & HF_LAYOUT_FREE) != 0)
      problem(fmt::format(
          "{}: {} has other bits where the call is cut in two: it breaks the promise HF_LAYOUT_FREE", label_,
          where));
    else if (is_first)
      verdict_.notes.push_back(fmt::format(
          "{}: {} has other bits where the call is cut in two: it must not have the flag HF_LAYOUT_FREE",
          label_, where));
  }

  template <typename Op>
  void check_aliases(const Trial<Op>& trial, const Op& shape) {
    using Ways = typename Trial<Op>::Ways;
    for (const AllowedAlias& alias : allowed_aliases) {
      if (alias.op != Op::id || failed_) continue;
      bool is_given = true;
      std::int64_t read_bytes = 0, written_bytes = 0;
      Op::visit_operands(shape, [&](const auto& pointer, const Operand& operand) {
        const std::string_view name = operand.name;
        if (name == alias.read && operand.optional && pointer == nullptr) is_given = false;
        if (name == alias.read) read_bytes = operand.element_bytes;
        if (name == alias.written) written_bytes = operand.element_bytes;
      });
      if (!is_given || read_bytes != written_bytes) continue;
      const auto apart = run(trial, 1, Ways{}, "no alias");
      const auto same = run(trial, 1, Ways{.alias = &alias}, "an alias");
      std::string where;
      if (apart.has_value() && same.has_value() && !same_bits(*apart, *same, where))
        problem(fmt::format("{}: {} is wrong where {} is the same memory as {}, which the contract allows",
                            label_, where, alias.written, alias.read));
    }
  }

  Env& env_;
  const Implementation& kernel_;
  const KernelChoice& usual_;
  const std::function<void(const std::string&)>& tell_;
  std::uint64_t seed_;
  std::vector<std::unique_ptr<KernelRunner>> runners_;
  KernelVerdict verdict_;
  std::string label_;
  bool failed_ = false;  // in the call that is tried
};

}  // namespace

Json KernelVerdict::json() const {
  Json arrays = Json::array();
  for (const CallVerdict& each : numbers) {
    Json one = {{"call", each.call},
                {"array", each.array},
                {"dtype", each.dtype},
                {"default", each.default_name},
                {"default_relative_error", std::min(each.default_relative, 1e300)},
                {"allowed_relative_error", each.limits.relative}};
    one.update(each.errors.json());
    arrays.push_back(std::move(one));
  }
  // A false one stays so; true says that all calls were tried.
  const auto found = [](bool is_true, bool was_tried) {
    return is_true && !was_tried ? Json("not_tried") : Json(is_true);
  };
  return {{"op", op},
          {"name", name},
          {"passed", passed()},
          {"calls", calls},
          {"computed", computed},
          {"cut_in_two", cut},
          {"same_bits_twice", found(same_bits_twice, bits == computed && computed > 0)},
          {"layout_free", found(layout_free, bits == computed && cut > 0)},
          {"bits_of_parts", is_of_parts ? found(bits_of_parts, bits == computed && computed > 0) : Json()},
          {"problems", problems},
          {"notes", notes},
          {"arrays", arrays}};
}

CallErrors errors_of(const Implementation& kernel, const CheckShape& shape, int threads) {
  const Result<KernelTable> table = kernel_registry().choose(best_cpu_isa(), {});
  HF_CHECK(table.ok(), "{}", table.error().message);
  const ImplementationOrder& order = (*table)[static_cast<std::size_t>(kernel.op)].order;
  return visit_op(shape.call.id(), shape.call.arguments(), [&](const auto& op) {
    const Trial trial(kernel, first_that_computes(order, shape.call.arguments()), op, shape, 0);
    KernelRunner runner(threads);
    CallErrors found;
    const auto actual = trial.run(runner, {});
    const CheckedMemory expected = trial.run_reference({}), usual = trial.run_usual(runner, {});
    found.is_allowed = actual.damage.empty();
    for (std::size_t i = 0; i < actual.memory.arrays().size(); ++i) {
      const CheckedMemory::Array& array = actual.memory.arrays()[i];
      if (!array.is_written || array.operand.access == Operand::Access::scratch) continue;
      const DType dtype = array.operand.dtype;
      const bool is_words = array.operand.content == Operand::Content::words;
      const std::vector<std::byte> own = actual.memory.follows_from_others(array);
      const std::span<const std::byte> right = own.empty() ? expected.arrays()[i].content() : std::span(own);
      const NumberErrors errors = compare_numbers(array.content(), right, dtype, is_words);
      const ErrorLimits limits =
          error_limits(dtype, is_words, compare_numbers(usual.arrays()[i].content(), right, dtype, is_words));
      found.relative = std::max(found.relative, errors.relative());
      found.absolute = std::max(found.absolute, errors.largest_error);
      found.ulp = std::max(found.ulp, errors.ulp_max);
      found.wrong_kind += errors.wrong_kind;
      found.is_allowed =
          found.is_allowed && errors.relative() <= limits.relative && errors.wrong_kind <= limits.wrong_kind;
    }
    return found;
  });
}

Result<KernelVerdict> check_kernel(Env& env, const Implementation& kernel,
                                   const std::function<void(const std::string&)>& tell, std::uint64_t seed,
                                   std::span<const CheckShape> traced) {
  HF_TRY(const KernelTable usual, kernel_registry().choose(best_cpu_isa(), {}));
  HF_TRY(const std::vector<CheckShape> shapes, check_shapes(env, kernel.op));
  KernelChecker checker(env, kernel, usual[static_cast<std::size_t>(kernel.op)], tell, seed);
  for (const CheckShape& shape : shapes) {
    if (checker.gives_up()) break;
    checker.check(shape);
  }
  for (const CheckShape& shape : traced) {
    if (checker.gives_up()) break;
    checker.check(shape);
  }
  return checker.finish();
}

}  // namespace holdfast::bench::kernel_kit
