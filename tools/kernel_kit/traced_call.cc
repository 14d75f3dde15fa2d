#include "tools/kernel_kit/traced_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>
#include <type_traits>

#include "kernels/op_fields.h"
#include "tools/kernel_kit/checked_memory.h"
#include "tools/kernel_kit/kernel_runner.h"

namespace holdfast::bench::kernel_kit {
namespace {

constexpr DType all_dtypes[] = {DType::fp32, DType::bf16, DType::int32, DType::fp64};
// More than any array has: numbers that ask for more were never those of a call.
constexpr std::int64_t most_bytes_of_array = std::int64_t{1} << 44;

Json numbers_of(const auto& object) {
  Json numbers = Json::object();
  visit_fields(object, [&numbers]<typename Value>(std::string_view name, const Value& value) {
    if constexpr (std::is_same_v<Value, DType>) {
      numbers[name] = Json(core::name_of(value));
    } else if constexpr (!std::is_pointer_v<Value> && !std::is_array_v<Value>) {
      numbers[name] = Json(value);
    }
  });
  return numbers;
}

// Returns false where the JSON value is none of the field's type. Sizes and places that are negative, or whose products may be
// none of 64 bits, are those of no call.
template <typename Value>
bool set_number([[maybe_unused]] std::string_view name, Value& field, const Json& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    if (!value.is_boolean()) return false;
    field = value.get<bool>();
  } else if constexpr (std::is_same_v<Value, DType>) {
    if (!value.is_string()) return false;
    const auto* const found =
        std::ranges::find(all_dtypes, value.text(), [](DType each) { return core::name_of(each); });
    if (found == std::end(all_dtypes)) return false;
    field = *found;
  } else if constexpr (std::is_floating_point_v<Value>) {
    if (!value.is_number()) return false;
    field = value.get<Value>();
  } else {
    if constexpr (std::is_unsigned_v<Value>) {  // a key, which has all 64 bits
      if (!value.is_number_unsigned()) return false;
    } else {
      const bool is_only_size = name == "count" || name == "bytes" || name.ends_with("block");
      constexpr std::int64_t most_of_product = std::numeric_limits<std::int32_t>::max();
      if (!value.is_number_integer() || value < 0 ||
          value > (is_only_size ? most_bytes_of_array : most_of_product))
        return false;
    }
    field = value.get<Value>();
  }
  return true;
}

// Sets the numbers of a struct, which may be changed; returns whether all of them were there.
bool set_numbers(auto& object, const Json& numbers) {
  bool is_whole = numbers.is_object();
  visit_fields(object, [&]<typename Value>(std::string_view name, const Value& value) {
    if constexpr (!std::is_pointer_v<Value> && !std::is_array_v<Value>) {
      const auto found = is_whole ? numbers.find(name) : JsonIterator();
      is_whole = is_whole && found != numbers.end() && set_number(name, const_cast<Value&>(value), *found);
    }
  });
  return is_whole;
}

template <typename Op>
std::vector<OptimizerTensor> table_of([[maybe_unused]] const Op& op) {
  if constexpr (requires { op.tensors; }) return {op.tensors, op.tensors + op.tensor_count};
  return {};
}

bool is_damage(const Operand& operand) {
  return std::string_view(operand.name)
      .ends_with("damage");  // of the host, and no result: measure::visit_damage()
}

// What an op leaves as it finds it, between rows and of rows that are another slice's, is kept as well.
template <typename Op>
bool is_kept_before([[maybe_unused]] const Op& op, const Operand& operand) {
  if (operand.is_read()) return true;
  if constexpr (Op::id == OpId::embedding_forward) {
    if (op.token_count > 0 && operand.is_written()) return true;
  }
  return operand.is_written() && operand.has_gaps() && !operand.pads;
}

bool is_kept_after(const Operand& operand) {
  return operand.is_written() && operand.access != Operand::Access::scratch && !is_damage(operand);
}

std::uint64_t bytes_of_operand(const Operand& operand) {
  return static_cast<std::uint64_t>(operand.extent * operand.element_bytes);
}

// OperandNames gives each operand a name that no other of the call has.
class OperandNames {
 public:
  void count(const Operand& operand) { ++counts_[operand.name]; }
  std::string next(const Operand& operand) {
    const int number = numbers_[operand.name]++;
    return counts_[operand.name] > 1 ? fmt::format("{}_{}", operand.name, number) : operand.name;
  }

 private:
  std::map<std::string, int> counts_, numbers_;
};

TracedArray array_of(std::string name, std::size_t index, const Operand& operand, const void* pointer) {
  TracedArray array{.name = std::move(name),
                    .operand = index,
                    .dtype = operand.dtype,
                    .is_words = operand.content == Operand::Content::words,
                    .bytes = bytes_of_operand(operand)};
  const auto* const begin = static_cast<const std::byte*>(pointer);
  array.content.assign(begin, begin + array.bytes);
  return array;
}

// Adds the arrays of one moment.
template <typename Op>
void add_arrays(TracedCall& call, const Op& launched, std::int64_t vocabulary, bool is_after) {
  Op op = launched;
  std::vector<OptimizerTensor> table = table_of(op);
  OperandNames names;
  visit_call(op, table, vocabulary, [&](const auto&, const Operand& operand) { names.count(operand); });
  std::size_t index = 0;
  visit_call(op, table, vocabulary, [&](const auto& pointer, const Operand& operand) {
    std::string name = names.next(operand);
    const bool has_before = is_kept_before(op, operand), has_after = is_kept_after(operand);
    if (pointer != nullptr && bytes_of_operand(operand) > 0 && (is_after ? has_after : has_before)) {
      if (is_after && has_before) name += "_after";
      call.arrays.push_back(array_of(std::move(name), index, operand, pointer));
      call.arrays.back().is_after = is_after;
    }
    ++index;
  });
}

// TracedLists are what the struct of a call points to, but for its arrays.
struct TracedLists {
  std::vector<OptimizerTensor> tensors;
  std::vector<BlockSegment> segments;
  std::vector<std::byte> places;  // addresses that stand for memory
};

template <typename Element>
bool set_list(std::vector<Element>& list, const Json& numbers) {
  if (numbers.is_null()) return true;
  if (!numbers.is_array()) return false;
  list.resize(numbers.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!set_numbers(list[i], numbers[i])) return false;
  }
  return true;
}

// Lets the struct point to its lists, where they have as many elements as it says.
template <typename Op>
bool set_lists(Op& op, const TracedCall& call, TracedLists& lists) {
  if (!set_list(lists.tensors, call.tensors) || !set_list(lists.segments, call.segments)) return false;
  if constexpr (requires { op.tensors; }) {
    op.tensors = lists.tensors.data();
    if (op.tensor_count != std::ssize(lists.tensors)) return false;
  } else if (!lists.tensors.empty()) {
    return false;
  }
  if constexpr (requires { op.segments; }) {
    op.segments = lists.segments.empty() ? nullptr : lists.segments.data();
    if (op.segment_count != std::ssize(lists.segments)) return false;
  } else if (!lists.segments.empty()) {
    return false;
  }
  if constexpr (requires { op.part_count; }) return op.part_count >= 0 && op.part_count <= Op::parts_max;
  return true;
}

// Returns whether a kernel that goes by the numbers of a struct stays in arrays of the extents of its operands: those products that
// they have of more than two sizes are of 64 bits, nothing is divided by 0, and lists say places that are there.
template <typename Op>
bool is_sound([[maybe_unused]] const Op& op, const TracedLists& lists) {
  if constexpr (requires { op.sequence_length; }) {
    if (op.sequence_length < 1) return false;
  }
  if constexpr (requires { op.kv_heads; }) {
    if (op.kv_heads < 1 || op.heads % op.kv_heads != 0) return false;
    const double sequences = static_cast<double>(op.batch) * static_cast<double>(op.sequence_length);
    if (sequences * static_cast<double>(op.heads) * static_cast<double>(op.head_size) > most_bytes_of_array)
      return false;
  } else if constexpr (requires { op.head_size; }) {
    if (static_cast<double>(op.rows) * static_cast<double>(op.row_stride) > most_bytes_of_array ||
        static_cast<double>(op.heads) * static_cast<double>(op.head_size) >
            static_cast<double>(op.row_stride))
      return false;
  }
  if constexpr (requires { op.segments; }) {
    std::int64_t end = 0, blocks = 0;
    for (const BlockSegment& each : lists.segments) {
      if (each.first < end || each.first_block != blocks) return false;
      end = each.first + each.count;
      blocks += core::blocks_of(each.count);
    }
    if (end > op.count) return false;
  }
  if constexpr (is_update(Op::id)) {
    return std::ranges::all_of(lists.tensors, [&op](const OptimizerTensor& each) {
      return each.first_block + core::blocks_of(each.count) <= op.block_count;
    });
  }
  return true;
}

// Returns whether numbers of places in other arrays are of some that are there.
template <typename Op>
bool has_places([[maybe_unused]] const Op& op, const Operand& operand, std::span<const std::byte> content,
                std::int64_t vocabulary) {
  std::int64_t below = vocabulary, length = 0;
  if constexpr (requires { op.vocabulary; }) below = op.vocabulary;
  if constexpr (requires { op.kv_heads; }) length = op.sequence_length;
  const bool is_tokens = operand.content == Operand::Content::tokens;
  if (!is_tokens && operand.content != Operand::Content::first_keys) return true;
  const bool has_negative = is_tokens && std::string_view(operand.name) == "targets";  // rows without one
  for (std::size_t i = 0; i < content.size() / sizeof(std::int32_t); ++i) {
    std::int32_t number = 0;
    std::memcpy(&number, content.data() + i * sizeof(number), sizeof(number));
    if (number < 0 ? !has_negative
                   : number >= (is_tokens ? below : static_cast<std::int64_t>(i) % length + 1))
      return false;
  }
  return true;
}

// Gives each operand the address that its place stands for. Returns a clause about what does not fit; empty: nothing.
template <typename Op>
std::string set_places(Op& op, const TracedCall& call, std::int64_t vocabulary, TracedLists& lists) {
  const std::int64_t last = call.places.empty() ? 0 : std::ranges::max(call.places);
  if (last > std::ssize(call.places) || std::ranges::any_of(call.places, [](auto each) { return each < 0; }))
    return "it has memory that no operand has";
  lists.places.resize(static_cast<std::size_t>(last) + 1);
  std::size_t count = 0;
  std::string problem;
  visit_call(op, lists.tensors, vocabulary, [&](auto& pointer, const Operand& operand) {
    const std::size_t index = count++;
    if (!problem.empty()) return;
    if (operand.extent < 0 || operand.extent > most_bytes_of_array / operand.element_bytes) {
      problem = fmt::format("{} would have {} elements", operand.name, operand.extent);
    } else if (index < call.places.size() && call.places[index] > 0) {
      auto* const place = lists.places.data() + call.places[index];
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(place);
    }
    for (const TracedArray& array : call.arrays) {
      if (array.operand != index || !problem.empty()) continue;
      if (array.bytes != bytes_of_operand(operand) || (!array.is_words && array.dtype != operand.dtype) ||
          array.is_words != (operand.content == Operand::Content::words) ||
          !array.name.starts_with(operand.name))
        problem = fmt::format("{} has {} bytes, which is not what its shape needs", array.name, array.bytes);
      else if (!array.is_after && !has_places(op, operand, array.content, vocabulary))
        problem = fmt::format("{} has numbers of what is not there", array.name);
    }
  });
  if (problem.empty() && count != call.places.size())
    problem = fmt::format("it has {} operands, and its op {}", call.places.size(), count);
  if (problem.empty() &&
      std::ranges::any_of(call.arrays, [count](const TracedArray& each) { return each.operand >= count; }))
    problem = "it has an array of no operand";
  return problem;
}

}  // namespace

TracedCall begin_call(OpId id, const void* arguments, std::int64_t vocabulary) {
  TracedCall call{.op = id};
  visit_op(id, arguments, [&]<typename Op>(const Op& launched) {
    Op op = launched;
    std::vector<OptimizerTensor> table = table_of(op);
    call.fields = numbers_of(op);
    if constexpr (requires { op.tensors; }) {
      call.tensors = Json::array();
      for (const OptimizerTensor& each : table) call.tensors.push_back(numbers_of(each));
    }
    if constexpr (requires { op.segments; }) {
      call.segments = Json::array();
      for (const BlockSegment& each : std::span(op.segments, static_cast<std::size_t>(op.segment_count)))
        call.segments.push_back(numbers_of(each));
    }
    std::map<const void*, std::int64_t> memories;
    visit_call(op, table, vocabulary, [&](const auto& pointer, const Operand&) {
      const std::int64_t next = std::ssize(memories) + 1;
      call.places.push_back(pointer == nullptr ? 0 : memories.try_emplace(pointer, next).first->second);
    });
    add_arrays(call, launched, vocabulary, false);
  });
  return call;
}

void end_call(TracedCall& call, OpId id, const void* arguments, std::int64_t vocabulary) {
  visit_op(id, arguments, [&](const auto& op) { add_arrays(call, op, vocabulary, true); });
}

std::uint64_t bytes_of_arrays(OpId id, const void* arguments, std::int64_t vocabulary) {
  std::uint64_t bytes = 0;
  visit_op(id, arguments, [&](auto op) {
    std::vector<OptimizerTensor> table = table_of(op);
    visit_call(op, table, vocabulary, [&](const auto& pointer, const Operand& operand) {
      if (pointer == nullptr && operand.optional) return;
      const int times = (is_kept_before(op, operand) ? 1 : 0) + (is_kept_after(operand) ? 1 : 0);
      bytes += static_cast<std::uint64_t>(times) * bytes_of_operand(operand);
    });
  });
  return bytes;
}

Result<CallShape> shape_of(const TracedCall& call, std::int64_t vocabulary) {
  alignas(16) static constexpr std::byte of_any_op[op_bytes_max] = {};
  return visit_op(call.op, of_any_op, [&]<typename Op>(const Op&) -> Result<CallShape> {
    Op op;
    const auto lists = std::make_shared<TracedLists>();
    if (!set_numbers(op, call.fields) || !set_lists(op, call, *lists) || !is_sound(op, *lists))
      return fail(ExitCode::data, "its numbers are not those of a call of {}", name_of(call.op));
    const std::string problem = set_places(op, call, vocabulary, *lists);
    if (!problem.empty()) return fail(ExitCode::data, "{}", problem);
    return CallShape{.call = OpCall(op), .lists = lists};
  });
}

std::vector<std::span<const std::byte>> given_of(const TracedCall& call) {
  std::vector<std::span<const std::byte>> given(call.places.size());
  for (const TracedArray& array : call.arrays) {
    if (!array.is_after) given[array.operand] = array.content;
  }
  return given;
}

Result<std::string> difference_when_repeated(const TracedCall& call, std::int64_t vocabulary,
                                             const Implementation& kernel, int threads) {
  HF_TRY(const CallShape shape, shape_of(call, vocabulary));
  KernelRunner runner(threads);
  CheckedMemory memory({.contents = {.tokens_below = vocabulary}, .given = given_of(call)});
  return visit_op(
      call.op, shape.call.arguments(), [&]<typename Op>(const Op& unbound) -> Result<std::string> {
        Op op = memory.bind(unbound);
        if (std::string problem = runner.run(kernel, &op, std::byte{0xff}); !problem.empty())
          return fail(ExitCode::data, "{}", problem);
        std::vector<OptimizerTensor> table = table_of(op);
        std::vector<const std::byte*> operands;
        visit_call(op, table, vocabulary, [&](const auto& pointer, const Operand&) {
          operands.push_back(reinterpret_cast<const std::byte*>(pointer));
        });
        for (const TracedArray& array : call.arrays) {
          if (!array.is_after) continue;
          const auto found =
              std::ranges::mismatch(array.content, std::span(operands[array.operand], array.content.size()));
          if (found.in1 == array.content.end()) continue;
          const auto size = static_cast<std::ptrdiff_t>(array.is_words ? 1 : bytes_of(array.dtype));
          return fmt::format("element {} of {}", (found.in1 - array.content.begin()) / size, array.name);
        }
        return std::string();
      });
}

}  // namespace holdfast::bench::kernel_kit
