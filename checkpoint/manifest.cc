#include "checkpoint/manifest.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/names.h"
#include "runtime/core/crc32c.h"
#include "runtime/core/json.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::string_view manifest_key = "holdfast_manifest";
constexpr std::string_view checksum_word = "crc32c ";
constexpr std::uint32_t slices_max = 1u << 16;  // what a shard file can tell
constexpr DType all_dtypes[] = {DType::fp32, DType::bf16, DType::int32, DType::fp64};
constexpr std::size_t checksum_line_bytes = 7 + 8 + 1;  // "crc32c xxxxxxxx\n"

std::string checksum_line(std::string_view body) {
  return fmt::format("{}{:08x}\n", checksum_word, crc32c(std::as_bytes(std::span(body.data(), body.size()))));
}

// Reads members one after another and remembers the first one that is missing or of another type.
class MemberReader {
 public:
  explicit MemberReader(const Json& object) : object_(object) {}

  void read(const char* key, std::string& target) {
    const Json* value = find(key, &Json::is_string);
    if (value != nullptr) target = value->text();
  }
  template <typename Integer>
  void read(const char* key, Integer& target) {
    const Json* value = find(key, &Json::is_number_unsigned);
    if (value == nullptr) return;
    const auto number = value->get<std::uint64_t>();
    target = static_cast<Integer>(number);
    if (target != number) note(key);
  }
  const Json* find(const char* key, bool (Json::*is_type)() const noexcept) {
    const auto found = object_.find(key);
    if (found != object_.end() && ((*found).*is_type)()) return &*found;
    note(key);
    return nullptr;
  }
  const std::string& problem() const { return problem_; }

 private:
  void note(const char* key) {
    if (problem_.empty()) problem_ = key;
  }
  const Json& object_;
  std::string problem_;
};

Error bad_member(const std::string& place, const std::string& key) {
  return fail(ExitCode::checkpoint,
              "{}: '{}' is missing or has another type than expected; use another checkpoint", place, key);
}

// Returns whether a name is free of control characters and line breaks, which a terminal would obey.
bool is_plain_name(const std::string& name) {
  return printable(name) == name && name.find_first_of("\n\t") == std::string::npos;
}

Result<ShardFile> decode_shard(const Json& object, const std::string& place) {
  if (!object.is_object()) return bad_member(place, "shards");
  ShardFile shard;
  MemberReader members(object);
  members.read("name", shard.name);
  members.read("bytes", shard.bytes);
  members.read("index_crc32c", shard.index_crc32c);
  members.read("piece_count", shard.piece_count);
  if (!members.problem().empty()) return bad_member(place, "shards: " + members.problem());
  if (!checkpoint_names::is_file_name(shard.name) || !is_plain_name(shard.name)) {
    return fail(ExitCode::checkpoint, "{}: '{}' is no name for a shard file; use another checkpoint", place,
                shard.name);
  }
  const auto hosts = object.find("hosts");
  if (hosts == object.end()) return shard;
  if (!hosts->is_array()) return bad_member(place, "shards: hosts");
  for (const Json& host : *hosts) {
    if (!host.is_string()) return bad_member(place, "shards: hosts");
    shard.hosts.push_back(host.text());
  }
  return shard;
}

Json encode_tensor(const ShardSpec& tensor) {
  return Json{{"tensor", tensor.tensor},
              {"kind", tensor.kind},
              {"type", name_of(tensor.dtype)},
              {"shape", tensor.global_shape},
              {"slices", tensor.slices}};
}

Result<ShardSpec> decode_tensor(const Json& object, const std::string& place) {
  if (!object.is_object()) return bad_member(place, "tensors");
  ShardSpec tensor;
  std::string type;
  MemberReader members(object);
  members.read("tensor", tensor.tensor);
  members.read("kind", tensor.kind);
  members.read("type", type);
  members.read("slices", tensor.slices);
  const Json* const shape = members.find("shape", &Json::is_array);
  if (!members.problem().empty()) return bad_member(place, "tensors: " + members.problem());
  if (!is_plain_name(tensor.tensor) || !is_plain_name(tensor.kind))
    return bad_member(place, "tensors: tensor");
  for (const Json& extent : *shape) {
    if (!extent.is_number_unsigned()) return bad_member(place, "tensors: shape");
    tensor.global_shape.push_back(extent.get<std::uint64_t>());
  }
  const auto dtype = std::ranges::find(all_dtypes, type, [](DType each) { return name_of(each); });
  if (dtype == std::end(all_dtypes)) return bad_member(place, "tensors: type");
  tensor.dtype = *dtype;
  if (tensor.slices < 1 || tensor.slices > slices_max || tensor.tensor_elements() % tensor.slices != 0)
    return bad_member(place, "tensors: slices");
  tensor.block_count = tensor.slice_blocks();
  return tensor;
}

Result<void> decode_parent_and_tensors(const Json& body, const std::string& place, Manifest& manifest) {
  MemberReader members(body);
  const Json* const tensors = members.find("tensors", &Json::is_array);
  if (!members.problem().empty()) return bad_member(place, members.problem());
  for (const Json& object : *tensors) {
    HF_TRY(ShardSpec tensor, decode_tensor(object, place));
    manifest.tensors.push_back(std::move(tensor));
  }
  const auto parent = body.find("parent");
  if (parent == body.end()) return {};
  if (!parent->is_object()) return bad_member(place, "parent");
  MemberReader of_parent(*parent);
  manifest.parent.emplace();
  of_parent.read("generation", manifest.parent->generation);
  of_parent.read("step", manifest.parent->step);
  if (!of_parent.problem().empty()) return bad_member(place, "parent: " + of_parent.problem());
  return {};
}

// The body without its checksum line, or why it cannot be used.
Result<std::string_view> checked_body(std::string_view text, const std::string& place) {
  const std::string opening = fmt::format("{{\n \"{}\":", manifest_key);
  if (!text.starts_with(opening)) {
    return fail(
        ExitCode::checkpoint,
        "{} is not a Holdfast manifest (it does not start with the key \"{}\"); name a checkpoint directory "
        "or a run directory",
        place, manifest_key);
  }
  if (text.size() > checksum_line_bytes) {
    const std::string_view body = text.substr(0, text.size() - checksum_line_bytes);
    if (text.substr(body.size()) == checksum_line(body)) return body;
  }
  return fail(ExitCode::checkpoint,
              "{} is damaged: its checksum does not fit its {} bytes; use another checkpoint", place,
              text.size());
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  Json body;
  body[std::string(manifest_key)] = Manifest::format_version;
  body["run_id"] = manifest.run_id;
  body["generation"] = manifest.generation;
  body["step"] = manifest.step;
  if (manifest.epoch > 0) body["epoch"] = manifest.epoch;
  if (manifest.parent.has_value())
    body["parent"] = Json{{"generation", manifest.parent->generation}, {"step", manifest.parent->step}};
  body["identity"] = manifest.identity;
  body["config"] = manifest.config;
  body["values"] = Json::object();
  for (const auto& [key, value] : manifest.values) body["values"][key] = value;
  body["tensors"] = Json::array();
  for (const ShardSpec& tensor : manifest.tensors) body["tensors"].push_back(encode_tensor(tensor));
  body["shards"] = Json::array();
  for (const ShardFile& shard : manifest.shards) {
    Json entry{{"name", shard.name},
               {"bytes", shard.bytes},
               {"index_crc32c", shard.index_crc32c},
               {"piece_count", shard.piece_count}};
    if (!shard.hosts.empty()) entry["hosts"] = shard.hosts;
    body["shards"].push_back(std::move(entry));
  }
  // Bytes that are not UTF-8 become U+FFFD: the alternative of this library is to throw.
  const std::string text = body.dump_any(1) + "\n";
  return text + checksum_line(text);
}

Result<Manifest> decode_manifest(std::string_view text, const std::string& place) {
  HF_TRY(const std::string_view body_text, checked_body(text, place));
  const Json body = Json::parse_any(body_text);
  if (!body.is_object()) {
    return fail(ExitCode::checkpoint, "{} is damaged: it is not a JSON object; use another checkpoint",
                place);
  }
  MemberReader members(body);
  std::uint32_t version = 0;
  members.read(manifest_key.data(), version);
  if (!members.problem().empty()) return bad_member(place, members.problem());
  if (version != Manifest::format_version) {
    return fail(ExitCode::checkpoint,
                "{} has manifest format version {}, this program reads version {}; use the program that "
                "wrote it",
                place, version, Manifest::format_version);
  }
  Manifest manifest;
  members.read("run_id", manifest.run_id);
  if (members.problem().empty() && !is_run_id(manifest.run_id)) {
    return fail(ExitCode::checkpoint,
                "{} names the run \"{}\", expected 32 digits of 0 to 9 and a to f; use another checkpoint",
                place, manifest.run_id);
  }
  members.read("generation", manifest.generation);
  members.read("step", manifest.step);
  members.read("identity", manifest.identity);
  members.read("config", manifest.config);
  if (body.contains("epoch")) members.read("epoch", manifest.epoch);
  const Json* values = members.find("values", &Json::is_object);
  const Json* shards = members.find("shards", &Json::is_array);
  if (!members.problem().empty()) return bad_member(place, members.problem());
  for (const auto& [key, value] : values->items()) {
    if (!value.is_string()) return bad_member(place, "values: " + key);
    manifest.values[key] = value.text();
  }
  for (const Json& object : *shards) {
    HF_TRY(ShardFile shard, decode_shard(object, place));
    manifest.shards.push_back(std::move(shard));
  }
  HF_TRY_VOID(decode_parent_and_tensors(body, place, manifest));
  return manifest;
}

}  // namespace holdfast::checkpoint
