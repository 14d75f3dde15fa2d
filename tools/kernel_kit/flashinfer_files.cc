// Writes what FlashInfer-Bench reads of a trace: after flashinfer_bench/data/{definition,workload,trace,trace_set}.py (fields, types and folders;
// Apache 2.0, version of April 2026), whose shapes are made of named axes. An array is flat here, as in the struct of the op: its
// one axis is its size, and the sizes of the struct are axes beside it, so that a program knows them.
#include <fmt/format.h>

#include <string_view>

#include "tools/kernel_kit/call_trace.h"
#include "tools/kernel_kit/kernel_folder.h"

namespace holdfast::bench::kernel_kit {
namespace {

// Numbers of a place or a moment, which calls of one shape do not share, are inputs, as all fractions are.
bool is_placed(std::string_view name) {
  return name.starts_with("first_") || name.starts_with("rounding_");
}

// The schema has no 64-bit fraction: sums that an op writes in fp64 have the type of their size.
std::string_view type_of(const TracedArray& array) {
  if (array.is_words) return "int8";
  switch (array.dtype) {
    case DType::fp32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::int32:
      return "int32";
    case DType::fp64:
      return "int64";
  }
  return "int8";
}

std::string axis_of(const TracedArray& array) {
  return array.name + "_size";
}

Json const_axis(const Json& value) {
  return {{"type", "const"}, {"value", value}};
}

Json spec_of(const TracedArray& array) {
  Json spec = Json::object();
  spec["shape"] = Json::array({Json(axis_of(array))});
  spec["dtype"] = Json(type_of(array));
  if (array.dtype == DType::fp64) spec["description"] = "fp64, for which the schema has no name";
  return spec;
}

bool is_scalar_input(const JsonMember& field) {
  return field.value.is_number_float() || (field.value.is_number_integer() && is_placed(field.key));
}

// Flags and types are part of what a definition says, and no inputs.
Json tags_of(const CallsOfShape& shape, const TraceFacts& facts) {
  Json tags = Json::array({Json("framework:holdfast"), Json("stage:training")});
  if (!facts.precision.empty()) tags.push_back(Json("precision:" + facts.precision));
  for (const JsonMember& each : shape.kept.front().call.fields.items()) {
    if (each.value.is_boolean() && each.value.get<bool>()) tags.push_back(Json(each.key + ":true"));
    if (each.value.is_string()) tags.push_back(Json(each.key + ":" + each.value.text()));
  }
  return tags;
}

constexpr const char* no_reference =
    "def run(*values):\n"
    "    raise NotImplementedError('the reference of this op is in Holdfast, in double: holdfast kernel "
    "check FILE.so --trace DIR '\n"
    "                              'compares with it; what a run computed is in the safetensors files, "
    "beside the inputs')\n";

// Returns a program in Python: the sizes and flags of the shape, then what templates/OP.py.in computes with them, in double.
std::string reference_of(const CallsOfShape& shape) {
  const std::string_view compute = text_of_file(fmt::format("{}.py.in", name_of(shape.op)));
  if (compute.empty()) return no_reference;
  const TracedCall& call = shape.kept.front().call;
  std::string text = "import torch\n\n", inputs, types;
  for (const JsonMember& each : call.fields.items()) {
    if (each.value.is_boolean())
      text += fmt::format("{} = {}\n", each.key, each.value.get<bool>() ? "True" : "False");
    if (is_scalar_input(each))
      inputs += fmt::format("\"{}\", ", each.key);
    else if (each.value.is_number_integer())
      text += fmt::format("{} = {}\n", each.key, each.value.dump());
  }
  std::string arrays;
  for (const TracedArray& each : call.arrays) {
    if (each.is_after)
      types += fmt::format("\"{}\": \"{}\", ", each.name, type_of(each));
    else
      arrays += fmt::format("\"{}\", ", each.name);
  }
  return text + fmt::format("inputs = [{}{}]\ntypes = {{{}}}\n\n\n{}\n\n{}", arrays, inputs, types, compute,
                            text_of_file("run.py.in"));
}

}  // namespace

Json definition_of(const CallsOfShape& shape, const TraceFacts& facts) {
  const TracedCall& call = shape.kept.front().call;
  Json axes = Json::object(), inputs = Json::object(), outputs = Json::object();
  for (const TracedArray& each : call.arrays) {
    axes[axis_of(each)] = const_axis(Json(each.elements()));
    (each.is_after ? outputs : inputs)[each.name] = spec_of(each);
  }
  for (const JsonMember& each : call.fields.items()) {
    if (is_scalar_input(each)) {
      inputs[each.key] =
          Json{{"shape", nullptr}, {"dtype", each.value.is_number_float() ? "float32" : "int64"}};
    } else if (each.value.is_number_integer()) {
      axes[each.key] = const_axis(each.value);
    }
  }
  return {{"name", shape.definition},
          {"op_type", name_of(shape.op)},
          {"tags", tags_of(shape, facts)},
          {"description", contract_of(shape.op)},
          {"axes", axes},
          {"inputs", inputs},
          {"outputs", outputs},
          {"reference", reference_of(shape)}};
}

Json workload_of(const CallsOfShape& shape, const KeptCall& kept) {
  Json inputs = Json::object();
  for (const TracedArray& each : kept.call.arrays) {
    if (each.is_after) continue;
    inputs[each.name] =
        Json{{"type", "safetensors"}, {"path", blob_path(shape, kept)}, {"tensor_key", each.name}};
  }
  for (const JsonMember& each : kept.call.fields.items()) {
    if (is_scalar_input(each)) inputs[each.key] = Json{{"type", "scalar"}, {"value", each.value}};
  }
  return {{"definition", shape.definition},
          {"workload", {{"axes", Json::object()}, {"inputs", inputs}, {"uuid", kept.uuid}}},
          {"solution", nullptr},
          {"evaluation", nullptr}};
}

}  // namespace holdfast::bench::kernel_kit
