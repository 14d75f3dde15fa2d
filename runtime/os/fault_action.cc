#include "runtime/os/fault_action.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <vector>

namespace holdfast::os {
namespace {

struct NamedDeviceFault {
  std::string_view action;
  DeviceFault fault;
};
constexpr NamedDeviceFault device_faults[] = {{"gpu_trap", DeviceFault::trap},
                                              {"gpu_illegal_address", DeviceFault::illegal_address},
                                              {"gpu_endless", DeviceFault::endless},
                                              {"wrong_product", DeviceFault::wrong_product},
                                              {"wrong_product_always", DeviceFault::wrong_products}};

struct NamedMemory {
  std::string_view target;
  NumberMemory memory;
};
constexpr NamedMemory memories[] = {
    {"weights", NumberMemory::weights},         {"moment1", NumberMemory::moment1},
    {"moment2", NumberMemory::moment2},         {"ema", NumberMemory::ema},
    {"parameters", NumberMemory::parameters},   {"gradients", NumberMemory::lane_gradients},
    {"activations", NumberMemory::activations}, {"run_state", NumberMemory::run_state}};

struct NamedReason {
  std::string_view name;
  int reason;
};
constexpr NamedReason reasons[] = {
    {"EIO", EIO}, {"EACCES", EACCES}, {"ENOSPC", ENOSPC}, {"ESTALE", ESTALE}, {"ETIMEDOUT", ETIMEDOUT}};

// Points at which a call may fail; the others have no error to return.
constexpr std::string_view failing_points[] = {
    read_point, load_point, write_point, "save.before_manifest", "save.before_rename", rebuild_point};
constexpr std::string_view rate_point = "step.before_update", lane_point = "step.before_reduce",
                           activation_point = "step.before_backward", message_point = "reduce.received";
constexpr std::string_view sum_points[] = {"step.before_vote", "step.after_vote", rate_point};

Error clause(std::string text) {
  return {.code = ExitCode::config, .message = std::move(text)};
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Result<void> expect_step(std::string_view action, std::string_view point, std::string_view why) {
  if (point.starts_with("step.")) return {};
  return clause(fmt::format("'{}' belongs to a point of a step, {}", action, why));
}

// Gradients are those of a lane before they leave it, and sums afterwards. Elsewhere nothing would read them.
Result<NumberMemory> memory_at(std::string_view target, std::string_view point) {
  const auto* const found = std::ranges::find(memories, target, &NamedMemory::target);
  if (found == std::end(memories)) {
    std::vector<std::string_view> names;
    for (const NamedMemory& each : memories) names.push_back(each.target);
    return clause(fmt::format("'{}' is not a memory; there are {}", target, fmt::join(names, ", ")));
  }
  if (found->memory == NumberMemory::activations && point != activation_point)
    return clause(fmt::format("nothing reads activations at {}, only at {}", point, activation_point));
  const bool are_gradients = found->memory == NumberMemory::lane_gradients;
  if (are_gradients && point == message_point) return NumberMemory::received_gradients;
  if (!are_gradients || point == lane_point) return found->memory;
  if (std::ranges::find(sum_points, point) != std::end(sum_points)) return NumberMemory::summed_gradients;
  return clause(fmt::format(
      "nothing reads gradients at {}, only at {} (of a lane), {} (of other ranks) and {} (their sums)", point,
      lane_point, message_point, fmt::join(sum_points, ", ")));
}

// A number after the memory of an action that changes numbers.
struct CorruptionWord {
  std::string_view name;
  std::uint64_t least, most;
  void (*set)(Corruption&, std::uint64_t number);
};
constexpr CorruptionWord bit_word{"a bit", 0, 31, [](Corruption& of, std::uint64_t bit) { of.bit = bit; }};
constexpr CorruptionWord bits_word{"a number of bits", 2, 16,
                                   [](Corruption& of, std::uint64_t bits) { of.bits = bits; }};
constexpr CorruptionWord numbers_word{"a number of numbers", 1, 65536,
                                      [](Corruption& of, std::uint64_t numbers) { of.numbers = numbers; }};
constexpr CorruptionWord stride_word{"a stride", 1, 1'000'000'000,
                                     [](Corruption& of, std::uint64_t stride) { of.stride = stride; }};
constexpr CorruptionWord element_word{"an element", 0, 1'000'000'000,
                                      [](Corruption& of, std::uint64_t element) { of.element = element; }};

// Actions that change numbers in memory, and what follows MEMORY; the last ones may be left out.
struct CorruptionForm {
  std::string_view action;
  NumberChange change;
  std::string_view needs;
  std::vector<CorruptionWord> words;
  std::size_t needed;
};

const std::vector<CorruptionForm>& corruption_forms() {
  static const std::vector<CorruptionForm> forms = {
      {"flip", NumberChange::flip, "MEMORY, MEMORY:BIT or MEMORY:BIT:ELEMENT", {bit_word, element_word}, 0},
      {"nan", NumberChange::to_nan, "MEMORY or MEMORY:ELEMENT", {element_word}, 0},
      {"flips", NumberChange::flip, "MEMORY:BITS or MEMORY:BITS:ELEMENT", {bits_word, element_word}, 1},
      {"flip_run",
       NumberChange::flip,
       "MEMORY:BIT:NUMBERS:STRIDE or MEMORY:BIT:NUMBERS:STRIDE:ELEMENT",
       {bit_word, numbers_word, stride_word, element_word},
       3},
      {"stuck_at_0",
       NumberChange::stuck_at_0,
       "MEMORY:BIT:NUMBERS or MEMORY:BIT:NUMBERS:ELEMENT",
       {bit_word, numbers_word, element_word},
       2},
      {"stuck_at_1",
       NumberChange::stuck_at_1,
       "MEMORY:BIT:NUMBERS or MEMORY:BIT:NUMBERS:ELEMENT",
       {bit_word, numbers_word, element_word},
       2}};
  return forms;
}

const CorruptionForm* corruption_form(std::string_view action) {
  const auto found = std::ranges::find(corruption_forms(), action, &CorruptionForm::action);
  return found == corruption_forms().end() ? nullptr : &*found;
}

Result<Corruption> parse_corruption(const CorruptionForm& form, const std::vector<std::string_view>& words,
                                    std::string_view point) {
  Corruption corruption{.change = form.change};
  if (words.size() < 2 + form.needed || words.size() > 2 + form.words.size())
    return clause(fmt::format("'{}' needs {}", words[0], form.needs));
  HF_TRY(corruption.memory, memory_at(words[1], point));
  if (corruption.memory == NumberMemory::run_state && form.change == NumberChange::to_nan)
    return clause("run_state has no floating-point numbers");
  if (corruption.memory == NumberMemory::run_state && form.action != "flip")
    return clause(fmt::format("'{}' changes numbers of tensors, which run_state has none of", words[0]));
  if (corruption.memory != NumberMemory::received_gradients)
    HF_TRY_VOID(expect_step(words[0], point, "whose memory it changes"));
  for (std::size_t i = 2; i < words.size(); ++i) {
    const CorruptionWord& word = form.words[i - 2];
    const std::optional<std::int64_t> given = parse_fault_number(words[i]);
    if (!given.has_value()) return clause(fmt::format("'{}' is not a number", words[i]));
    const auto number = static_cast<std::uint64_t>(*given);
    if (number < word.least || number > word.most)
      return clause(
          fmt::format("'{}' is not {}, which is {} to {}", words[i], word.name, word.least, word.most));
    word.set(corruption, number);
  }
  return corruption;
}

Result<double> parse_factor(const std::vector<std::string_view>& words, std::string_view point) {
  if (words.size() != 2) return clause("'scale_rate' needs a factor");
  if (point != rate_point) return clause(fmt::format("'scale_rate' belongs to {}", rate_point));
  double factor = 0.0;
  const std::string_view text = words[1];
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  if (error != std::errc() || rest != text.data() + text.size() || !std::isfinite(factor))
    return clause(fmt::format("'{}' is not a factor", text));
  return factor;
}

// Parses `error[:ERRNO[:PASSES]]`.
Result<FaultAction> parse_error(std::string_view text, std::string_view point) {
  const std::vector<std::string_view> words = words_of(text);
  if (std::ranges::find(failing_points, point) == std::end(failing_points))
    return clause(fmt::format("'error' belongs to {}", fmt::join(failing_points, ", ")));
  if (words.size() > 3) return clause("'error' needs no more than ERRNO and PASSES");
  FaultAction action{.name = std::string(words[0]), .number = 1, .reason = EIO, .record = std::string(text)};
  if (words.size() > 1) {
    const auto* const named = std::ranges::find(reasons, words[1], &NamedReason::name);
    if (named == std::end(reasons)) {
      std::vector<std::string_view> names;
      for (const NamedReason& each : reasons) names.push_back(each.name);
      return clause(fmt::format("'{}' is not an errno; there are {}", words[1], fmt::join(names, ", ")));
    }
    action.reason = named->reason;
  }
  if (words.size() < 3) return action;
  const std::optional<std::int64_t> passes = parse_fault_number(words[2]);
  if (words[2] != all_passes && passes.value_or(0) < 1)
    return clause(fmt::format("'{}' is not a number of passes, nor '{}'", words[2], all_passes));
  action.number = passes.value_or(0);
  return action;
}

// Parses what happens at a sample.
Result<FaultAction> parse_sample_action(std::string_view text) {
  FaultAction action{.name = std::string(text), .record = std::string(text)};
  if (text == "nan") action.sample = SampleFault::nan;
  if (text == "scramble") action.sample = SampleFault::scramble;
  if (action.sample.has_value()) return action;
  return clause(fmt::format("'{}' is not an action of {}, which are nan and scramble", text, sample_point));
}

// Parses the actions whose only argument, if they have one, is a number.
Result<FaultAction> parse_plain_action(const std::vector<std::string_view>& words) {
  constexpr std::string_view plain[] = {"kill", "stop", "spin", "abort", "segv"};
  constexpr std::string_view numbered[] = {"sleep", "touch", "exit"};
  FaultAction action{.name = std::string(words[0]), .record = std::string(words[0])};
  const bool takes_number = std::ranges::find(numbered, words[0]) != std::end(numbered);
  const auto* const fault = std::ranges::find(device_faults, words[0], &NamedDeviceFault::action);
  if (fault != std::end(device_faults)) action.device = fault->fault;
  if (!takes_number && !action.device.has_value() && std::ranges::find(plain, words[0]) == std::end(plain))
    return clause(fmt::format("'{}' is not an action", words[0]));
  if (words.size() != (takes_number ? 2U : 1U))
    return clause(fmt::format("'{}' {}", words[0], takes_number ? "needs a number" : "takes no number"));
  if (!takes_number) return action;
  const std::optional<std::int64_t> number = parse_fault_number(words[1]);
  if (!number.has_value()) return clause(fmt::format("'{}' is not a number", words[1]));
  action.number = *number;
  return action;
}

}  // namespace

std::optional<std::int64_t> parse_fault_number(std::string_view text) {
  constexpr std::int64_t largest = 1'000'000'000;
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size() || number < 0 || number > largest) return {};
  return number;
}

std::string_view fault_actions() {
  return "kill, stop, sleep:MILLISECONDS, touch:MILLISECONDS, spin, exit:CODE, abort, segv, gpu_trap, "
         "gpu_illegal_address, gpu_endless, flip:MEMORY[:BIT[:ELEMENT]], flips:MEMORY:BITS[:ELEMENT], "
         "flip_run:MEMORY:BIT:NUMBERS:STRIDE[:ELEMENT], stuck_at_0:MEMORY:BIT:NUMBERS[:ELEMENT], "
         "stuck_at_1:MEMORY:BIT:NUMBERS[:ELEMENT], nan:MEMORY[:ELEMENT], "
         "scale_rate:FACTOR, error[:ERRNO[:PASSES]], "
         "wrong_product or wrong_product_always, or at data.sample of nan or scramble";
}

Result<FaultAction> parse_fault_action(std::string_view text, std::string_view point) {
  if (point == sample_point) return parse_sample_action(text);
  const std::vector<std::string_view> words = words_of(text);
  FaultAction action{.name = std::string(words[0]), .record = std::string(text)};
  if (words[0] == "scramble") return clause(fmt::format("'scramble' belongs to {}", sample_point));
  if (const CorruptionForm* const form = corruption_form(words[0]); form != nullptr) {
    HF_TRY(action.corruption, parse_corruption(*form, words, point));
    return action;
  }
  if (words[0] == "error") return parse_error(text, point);
  if (words[0] == "scale_rate") {
    HF_TRY(action.factor, parse_factor(words, point));
    return action;
  }
  HF_TRY(action, parse_plain_action(words));
  if (action.device.has_value()) HF_TRY_VOID(expect_step(words[0], point, "whose thread launches kernels"));
  return action;
}

}  // namespace holdfast::os
