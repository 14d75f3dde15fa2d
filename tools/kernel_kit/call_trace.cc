#include "tools/kernel_kit/call_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "kernels/plugin_loader.h"
#include "runtime/core/digest.h"
#include "runtime/interop/safetensors.h"
#include "tools/kernel_kit/kernel_folder.h"

namespace holdfast::bench::kernel_kit {
namespace {

constexpr const char* index_name = "/trace.json";
constexpr const char* format_name = "holdfast kernel trace";
constexpr std::int64_t format_version = 1;
constexpr std::uint64_t most_index_bytes = std::uint64_t{1} << 30;

std::string safetensors_type(const TracedArray& array) {
  if (array.is_words) return "I8";
  switch (array.dtype) {
    case DType::fp32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::int32:
      return "I32";
    case DType::fp64:
      return "F64";
  }
  return "";
}

Json json_of(const TracedArray& array) {
  return {{"name", array.name},      {"operand", array.operand},
          {"after", array.is_after}, {"type", array.is_words ? "words" : core::name_of(array.dtype)},
          {"bytes", array.bytes},    {"digest", array.digest}};
}

Json json_of(const KeptCall& kept) {
  Json arrays = Json::array();
  for (const TracedArray& each : kept.call.arrays) arrays.push_back(json_of(each));
  return {{"uuid", kept.uuid},
          {"step", kept.step},
          {"place", kept.place},
          {"kernel", kept.kernel},
          {"fields", kept.call.fields},
          {"tensors", kept.call.tensors},
          {"segments", kept.call.segments},
          {"places", kept.call.places},
          {"arrays", arrays}};
}

Json json_of(const CallsOfShape& shape) {
  Json kept = Json::array();
  for (const KeptCall& each : shape.kept) kept.push_back(json_of(each));
  return {{"op", name_of(shape.op)}, {"schema", fmt::format("{:016x}", plugin_schema(shape.op))},
          {"text", shape.text},      {"definition", shape.definition},
          {"calls", shape.calls},    {"kept", kept}};
}

// Reads a member of JSON that may be anything, with numbers that are not negative. Returns whether it is there, and of this type.
template <typename Value>
bool read(const Json& json, const char* name, Value& value) {
  const auto found = json.find(name);
  if (!json.is_object() || found == json.end()) return false;
  [[maybe_unused]] const auto is_count = [](const Json& each) {
    return each.is_number_unsigned() && each <= std::numeric_limits<std::int64_t>::max();
  };
  if constexpr (std::is_same_v<Value, Json>) {
    value = *found;
  } else {
    const bool is_right = std::is_same_v<Value, std::string> ? found->is_string()
                          : std::is_same_v<Value, bool>      ? found->is_boolean()
                          : std::is_integral_v<Value>
                              ? is_count(*found)
                              : found->is_array() && std::ranges::all_of(*found, is_count);
    if (!is_right) return false;
    value = found->template get<Value>();
  }
  return true;
}

// Reads a list of objects with read_each(json, element).
template <typename Element>
bool read_list(const Json& json, const char* name, std::vector<Element>& list, const auto& read_each) {
  Json elements;
  if (!read(json, name, elements) || !elements.is_array()) return false;
  return std::ranges::all_of(elements,
                             [&](const Json& each) { return read_each(each, list.emplace_back()); });
}

// Names become parts of paths, which stay in the folder.
bool read_name(const Json& json, const char* key, std::string& name) {
  return read(json, key, name) && !name.empty() && std::ranges::all_of(name, [](unsigned char each) {
           return std::isalnum(each) != 0 || each == '_' || each == '-';
         });
}

// The rest reads what json_of() wrote. Returns false where it is not that: a digest says that nothing was changed by accident alone.
bool read_array(const Json& json, TracedArray& array) {
  std::string type;
  if (!read(json, "name", array.name) || !read(json, "operand", array.operand) ||
      !read(json, "after", array.is_after) || !read(json, "bytes", array.bytes) ||
      !read(json, "digest", array.digest) || !read(json, "type", type))
    return false;
  array.is_words = type == "words";
  for (const DType each : {DType::fp32, DType::bf16, DType::int32, DType::fp64}) {
    if (core::name_of(each) == type) array.dtype = each;
  }
  return array.is_words || core::name_of(array.dtype) == type;
}

bool read_kept(OpId op, const Json& json, KeptCall& kept) {
  kept.call.op = op;
  return read_name(json, "uuid", kept.uuid) && read(json, "step", kept.step) &&
         read(json, "place", kept.place) && read(json, "kernel", kept.kernel) &&
         read(json, "fields", kept.call.fields) && read(json, "tensors", kept.call.tensors) &&
         read(json, "segments", kept.call.segments) && read(json, "places", kept.call.places) &&
         read_list(json, "arrays", kept.call.arrays, read_array);
}

bool read_shape(const Json& json, CallsOfShape& shape) {
  std::string name;
  if (!read(json, "op", name)) return false;
  const Result<OpId> op = op_of_name(name);
  if (!op.ok()) return false;
  shape.op = *op;
  return read(json, "text", shape.text) && read_name(json, "definition", shape.definition) &&
         read(json, "calls", shape.calls) &&
         read_list(json, "kept", shape.kept,
                   [&shape](const Json& each, KeptCall& kept) { return read_kept(shape.op, each, kept); });
}

bool read_facts(const Json& json, TraceFacts& facts) {
  constexpr int most_threads = 4096;
  std::int64_t threads = 0;
  const bool is_whole = read(json, "run", facts.run) && read(json, "device", facts.device) &&
                        read(json, "precision", facts.precision) && read(json, "threads", threads) &&
                        read(json, "vocabulary", facts.vocabulary) && read(json, "steps", facts.steps);
  facts.threads = static_cast<int>(std::clamp<std::int64_t>(threads, 0, most_threads));
  return is_whole && facts.threads == threads && threads > 0 && facts.vocabulary > 0 &&
         facts.vocabulary <= std::numeric_limits<std::int32_t>::max();
}

// Before anything else of a trace is read, because what it says then is what to do.
Result<void> check_schemas(const std::string& path, const Json& shapes) {
  for (const Json& each : shapes) {
    if (!each.is_object()) return {};
    const Json name = each.value("op", Json()), schema = each.value("schema", Json());
    if (!name.is_string() || !schema.is_string()) return {};
    const Result<OpId> op = op_of_name(name.text());
    if (!op.ok())
      return fail(ExitCode::config,
                  "{} has calls of {}, and there is no such op here; capture it again with this program",
                  path, name.text());
    if (const std::string here = fmt::format("{:016x}", plugin_schema(*op)); here != schema.text())
      return fail(ExitCode::config,
                  "{} has calls of {} with another struct of the op (schema {}, and this program has {}); "
                  "capture it again with this program",
                  path, name.text(), schema.text(), here);
  }
  return {};
}

Result<void> write_arrays(Env& env, const std::string& path, const std::vector<TracedArray>& arrays) {
  std::vector<interop::SafetensorsTensor> tensors;
  for (const TracedArray& each : arrays)
    tensors.push_back({.name = each.name, .type = safetensors_type(each), .shape = {each.elements()}});
  const std::string header = interop::safetensors_header(tensors, {{"format", "pt"}});
  HF_TRY(const std::unique_ptr<File> file, env.open(path, OpenMode::create));
  HF_TRY_VOID(file->write_at(0, std::as_bytes(std::span(header.data(), header.size()))));
  std::uint64_t offset = header.size();
  for (const TracedArray& each : arrays) {
    HF_TRY_VOID(file->write_at(offset, each.content));
    offset += each.content.size();
  }
  return {};  // what a power cut takes of it is found by its digest
}

Result<void> read_arrays(Env& env, const std::string& path, std::vector<TracedArray>& arrays) {
  HF_TRY(const std::unique_ptr<File> file, env.open(path, OpenMode::read));
  HF_TRY(const std::vector<interop::SafetensorsTensor> tensors, interop::read_safetensors_header(*file));
  for (TracedArray& each : arrays) {
    const auto found = std::ranges::find(tensors, each.name, &interop::SafetensorsTensor::name);
    const bool is_there = found != tensors.end() && found->bytes == each.bytes;
    if (is_there) {
      each.content.resize(each.bytes);
      HF_TRY_VOID(file->read_at(found->offset_bytes, each.content));
    }
    if (!is_there || to_hex(digest_of(each.content)) != each.digest)
      return fail(ExitCode::data, "{}: {} is not what the trace was made with; capture it again", path,
                  each.name);
  }
  return {};
}

std::string parent_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

}  // namespace

std::int64_t CallsOfShape::calls_of_step() const {
  const auto steps = std::max<std::int64_t>(std::ssize(calls), 1);
  return std::max<std::int64_t>(
      (std::accumulate(calls.begin(), calls.end(), std::int64_t{0}) + steps / 2) / steps, 1);
}

std::vector<std::string> CallTrace::ops() const {
  std::vector<std::string> names;
  for (const CallsOfShape& each : shapes) {
    if (std::ranges::find(names, name_of(each.op)) == names.end()) names.emplace_back(name_of(each.op));
  }
  return names;
}

std::string blob_path(const CallsOfShape& shape, const KeptCall& kept) {
  return fmt::format("blob/workloads/{}/{}/{}.safetensors", name_of(shape.op), shape.definition, kept.uuid);
}

Result<std::unique_ptr<TraceWriter>> TraceWriter::make(Env& env, const std::string& folder) {
  HF_TRY(const FileStatus status, env.status(folder));
  if (status.exists || status.link)
    return fail(ExitCode::config, "{} is there already; give another folder with --out, or remove it",
                folder);
  // Another capture that writes there at the same time has another number.
  const std::string partial = fmt::format("{}.partial-{}", folder, env.process_id());
  HF_TRY_VOID(env.remove_tree(partial));
  HF_TRY_VOID(env.make_directories(partial));
  return std::unique_ptr<TraceWriter>(new TraceWriter(env, folder, partial));
}

TraceWriter::~TraceWriter() {
  if (!is_finished_) static_cast<void>(env_.remove_tree(partial_).ok());  // the first error is reported
}

Result<void> TraceWriter::add(CallsOfShape& shape, KeptCall kept) {
  const std::string path = partial_ + "/" + blob_path(shape, kept);
  HF_TRY_VOID(env_.make_directories(parent_of(path)));
  HF_TRY_VOID(write_arrays(env_, path, kept.call.arrays));
  for (TracedArray& each : kept.call.arrays) {
    bytes_ += each.bytes;
    each.digest = to_hex(digest_of(each.content));
    each.content = {};
  }
  shape.kept.push_back(std::move(kept));
  return {};
}

Result<void> TraceWriter::load(const CallsOfShape& shape, KeptCall& kept) const {
  return read_arrays(env_, partial_ + "/" + blob_path(shape, kept), kept.call.arrays);
}

Result<void> TraceWriter::finish(const CallTrace& trace) {
  Json shapes = Json::array();
  for (const CallsOfShape& shape : trace.shapes) {
    const std::string name = fmt::format("{}/{}", name_of(shape.op), shape.definition);
    std::string lines;
    for (const KeptCall& kept : shape.kept) lines += workload_of(shape, kept).dump_any() + "\n";
    for (const auto& [path, text] :
         {std::pair(fmt::format("{}/definitions/{}.json", partial_, name),
                    definition_of(shape, trace.facts).dump_any(1) + "\n"),
          std::pair(fmt::format("{}/workloads/{}.jsonl", partial_, name), lines)}) {
      HF_TRY_VOID(env_.make_directories(parent_of(path)));
      HF_TRY_VOID(env_.replace_text(path, text));
    }
    shapes.push_back(json_of(shape));
  }
  const TraceFacts& facts = trace.facts;
  const Json content{{"run", facts.run},         {"steps", facts.steps},
                     {"device", facts.device},   {"precision", facts.precision},
                     {"threads", facts.threads}, {"vocabulary", facts.vocabulary},
                     {"shapes", shapes}};
  const Json index{{"format", format_name},
                   {"version", format_version},
                   {"digest", to_hex(digest_of(content.dump_any()))},
                   {"trace", content}};
  HF_TRY_VOID(env_.replace_text(partial_ + index_name, index.dump_any(1) + "\n"));
  HF_TRY_VOID(env_.rename(partial_, folder_));
  is_finished_ = true;
  return env_.sync_directory(folder_.find('/') == std::string::npos ? "." : parent_of(folder_) + "/");
}

Result<CallTrace> open_trace(Env& env, const std::string& folder) {
  const std::string path = folder + index_name;
  const Result<std::string> text = env.read_text_within(path, most_index_bytes);
  if (!text.ok())
    return fail_because(text.error(), ExitCode::config,
                        "{} is no trace of calls: {}; holdfast kernel trace makes one", folder,
                        text.error().message);
  const Json index = Json::parse_any(*text);
  if (!index.is_object() || index.value("format", Json()) != Json(format_name))
    return fail(ExitCode::config, "{} is no trace of calls; holdfast kernel trace makes one", path);
  if (index.value("version", Json()) != format_version)
    return fail(ExitCode::config,
                "{} is a trace of version {}, and this program reads {}; capture it again with this program",
                path, index.value("version", Json()).dump_any(), format_version);
  const Json content = index.value("trace", Json());
  if (content.is_object() && content.value("shapes", Json()).is_array())
    HF_TRY_VOID(check_schemas(path, content.at("shapes")));
  CallTrace trace{.folder = folder};
  const bool is_whole = index.value("digest", Json()) == Json(to_hex(digest_of(content.dump_any())));
  if (!is_whole || !read_facts(content, trace.facts) ||
      !read_list(content, "shapes", trace.shapes, read_shape))
    return fail(ExitCode::data,
                "{} is not what was written ({}): it was damaged or changed; capture it again", path,
                is_whole ? "what it says is no trace" : "another digest");
  return trace;
}

Result<TracedCalls> load_calls(Env& env, const CallTrace& trace, OpId op) {
  TracedCalls calls;
  const auto all = std::make_shared<std::vector<KeptCall>>();
  std::vector<const CallsOfShape*> shapes;  // of each call
  for (const CallsOfShape& shape : trace.shapes) {
    if (shape.op != op) continue;
    for (KeptCall kept : shape.kept) {
      HF_TRY_VOID(read_arrays(env, trace.folder + "/" + blob_path(shape, kept), kept.call.arrays));
      all->push_back(std::move(kept));
      shapes.push_back(&shape);
    }
  }
  calls.kept = all;
  for (std::size_t i = 0; i < all->size(); ++i) {
    const KeptCall& kept = (*all)[i];
    const Result<CallShape> made = shape_of(kept.call, trace.facts.vocabulary);
    if (!made.ok())
      return fail(ExitCode::data, "{}: call {}: {}; capture it again", trace.folder, kept.uuid,
                  made.error().message);
    CheckShape checked{.use = fmt::format("step {}, {}", kept.step, kept.place),
                       .call = made->call,
                       .contents = {.tokens_below = trace.facts.vocabulary},
                       .lists = made->lists,
                       .given = given_of(kept.call)};
    double share = 1.0;
    for (const TracedArray& each : kept.call.arrays) {
      if (each.name != "first_key") continue;
      checked.contents.first_keys.resize(each.bytes / sizeof(std::int32_t));
      std::memcpy(checked.contents.first_keys.data(), each.content.data(), each.bytes);
      share = share_of_pairs(checked.contents.first_keys,
                             kept.call.fields.value("sequence_length", std::int64_t{1}));
    }
    if (i == 0 || shapes[i] != shapes[i - 1]) {
      calls.measured.push_back({.sample = {.use = checked.use,
                                           .shape = checked.call,
                                           .contents = checked.contents,
                                           .flops_share = share,
                                           .lists = checked.lists},
                                .calls = shapes[i]->calls_of_step()});
      calls.given.push_back(checked.given);
      calls.first.push_back(i);
      calls.workloads.push_back(workload_of(*shapes[i], kept));
    }
    calls.checked.push_back(std::move(checked));
  }
  return calls;
}

}  // namespace holdfast::bench::kernel_kit
