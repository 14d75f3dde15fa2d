#include "checkpoint/lineage.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/names.h"
#include "runtime/core/json.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::checkpoint {
namespace {

constexpr const char* lineage_key = "holdfast_lineage";
constexpr std::uint64_t format_version = 1;

Error damaged_lineage(const std::string& place, std::string_view what) {
  return fail(
      ExitCode::checkpoint,
      "{} is damaged ({}): it says which checkpoints belong to the run and which to a future that was "
      "left. Restore it from a copy, or remove it: then the greatest (generation, step) is the newest",
      place, what);
}

Json to_json(const ParentCheckpoint& state) {
  return {{"generation", state.generation}, {"step", state.step}};
}

bool read_number(const Json& json, const char* key, std::uint64_t& value) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned()) return false;
  value = found->get<std::uint64_t>();
  return true;
}

bool read_state(const Json& json, ParentCheckpoint& state) {
  return json.is_object() && read_number(json, "generation", state.generation) &&
         read_number(json, "step", state.step);
}

bool read_text(const Json& json, const char* key, std::string& text) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return false;
  text = found->get<std::string>();
  return true;
}

// Reads what a roll-back says; records of other generations say nothing.
bool read_rollback(const Json& json, Generation& generation) {
  const auto rollback = json.find("rollback");
  if (rollback == json.end()) return true;
  if (!rollback->is_object()) return false;
  generation.is_rollback = true;
  if (!rollback->contains("data_cursor")) return true;
  generation.jump = {.at_step = generation.parent.step};
  return read_number(*rollback, "data_cursor", generation.jump->data_cursor) &&
         read_number(*rollback, "times", generation.jump->times);
}

Json rollback_to_json(const Generation& generation) {
  if (!generation.jump.has_value()) return Json::object();
  return {{"data_cursor", generation.jump->data_cursor}, {"times", generation.jump->times}};
}

bool read_generation(const Json& json, Generation& generation) {
  const auto number = json.find("generation"), parent = json.find("parent");
  if (number == json.end() || !number->is_number_unsigned() || parent == json.end()) return false;
  generation.number = number->get<std::uint64_t>();
  return read_state(*parent, generation.parent) && read_text(json, "settings", generation.settings) &&
         read_text(json, "reason", generation.reason) && read_rollback(json, generation);
}

// Returns whether the directory has no checkpoint, whatever its run, but the one of this step.
bool has_no_other(Env& env, const std::string& run_directory, std::optional<std::uint64_t> step = {}) {
  const std::string visible = checkpoint_names::checkpoints(run_directory);
  const Result<FileStatus> status = env.status(visible);
  if (!status.ok() || !status->exists) return status.ok();
  const Result<std::vector<std::string>> list = env.list(visible);
  return list.ok() && std::ranges::all_of(*list, [&](const std::string& name) {
           const std::optional<std::uint64_t> found = checkpoint_names::step_of(name);
           return !found.has_value() || found == step;
         });
}

// Notes in a record that a checkpoint is published: the first one, if no other is there.
void note_published(Env& env, const std::string& run_directory, std::uint64_t step, Lineage& lineage) {
  if (!lineage.first_step.has_value()) return;
  const bool is_first = *lineage.first_step == Lineage::none_published;
  if (is_first && !has_no_other(env, run_directory, step)) lineage.first_step.reset();
  if (lineage.first_step.has_value()) lineage.first_step = std::min(*lineage.first_step, step);
}

}  // namespace

void add_jump(std::vector<DataJump>& jumps, DataJump jump) {
  std::erase_if(jumps, [&jump](const DataJump& earlier) {
    const bool is_left = earlier.at_step >= jump.at_step;
    if (is_left) jump.times += earlier.times;
    return is_left;
  });
  jumps.push_back(jump);
}

const Generation* Lineage::find(std::uint64_t number) const {
  const auto found = std::ranges::find(generations, number, &Generation::number);
  return found == generations.end() ? nullptr : &*found;
}

std::vector<const Generation*> Lineage::ancestry() const {
  std::vector<const Generation*> line;
  // A parent has a lower number, whatever the file says, so this ends.
  for (const Generation* at = find(current()); at != nullptr;) {
    line.push_back(at);
    at = at->parent.generation < at->number ? find(at->parent.generation) : nullptr;
  }
  return line;
}

bool Lineage::discards(const ParentCheckpoint& state) const {
  if (state.generation >= current()) return false;
  std::uint64_t last_step = std::numeric_limits<std::uint64_t>::max();
  for (const Generation* each : ancestry()) {
    if (each->number == state.generation) return state.step > last_step;
    if (state.generation > each->parent.generation) return true;  // a branch that was left
    last_step = std::min(last_step, each->parent.step);
  }
  return state.step > last_step;
}

void Lineage::add_jumps_after(const ParentCheckpoint& state, std::vector<DataJump>& jumps) const {
  const std::vector<const Generation*> line = ancestry();
  for (auto each = line.rbegin(); each != line.rend(); ++each) {
    if ((*each)->number <= state.generation) continue;
    if ((*each)->jump.has_value()) {
      add_jump(jumps, *(*each)->jump);
    } else {
      std::erase_if(jumps, [&](const DataJump& jump) { return jump.at_step > (*each)->parent.step; });
    }
  }
}

void Lineage::roll_back(Generation generation) {
  generation.number = std::max(current(), generation.parent.generation) + 1;
  generation.is_rollback = true;
  generations.push_back(std::move(generation));
  if (newest_checkpoint.has_value() && discards(*newest_checkpoint)) newest_checkpoint.reset();
}

std::string encode_lineage(const Lineage& lineage) {
  Json json{{lineage_key, format_version}, {"run_id", lineage.run_id}, {"generations", Json::array()}};
  for (const Generation& each : lineage.generations) {
    Json generation{{"generation", each.number},
                    {"parent", to_json(each.parent)},
                    {"settings", each.settings},
                    {"reason", each.reason}};
    if (each.is_rollback) generation["rollback"] = rollback_to_json(each);
    json["generations"].push_back(std::move(generation));
  }
  if (lineage.newest_checkpoint.has_value()) json["newest_checkpoint"] = to_json(*lineage.newest_checkpoint);
  if (lineage.first_step.has_value()) json["first_step"] = *lineage.first_step;
  return json.dump_any(1) + "\n";
}

Result<Lineage> decode_lineage(std::string_view text, const std::string& place) {
  const Json json = Json::parse_any(text);
  if (!json.is_object()) return damaged_lineage(place, "it is no JSON object");
  const auto version = json.find(lineage_key);
  if (version == json.end() || !version->is_number_unsigned()) return damaged_lineage(place, lineage_key);
  if (version->get<std::uint64_t>() != format_version)
    return damaged_lineage(place, "this program reads version 1 of it");
  Lineage lineage;
  if (!read_text(json, "run_id", lineage.run_id)) return damaged_lineage(place, "run_id");
  if (!lineage.run_id.empty() && !is_run_id(lineage.run_id)) return damaged_lineage(place, "run_id");
  const auto generations = json.find("generations");
  if (generations == json.end() || !generations->is_array()) return damaged_lineage(place, "generations");
  for (const Json& each : *generations) {
    Generation generation;
    if (!each.is_object() || !read_generation(each, generation) || generation.number <= lineage.current())
      return damaged_lineage(place, "generations");
    lineage.generations.push_back(std::move(generation));
  }
  if (const auto newest = json.find("newest_checkpoint"); newest != json.end()) {
    lineage.newest_checkpoint.emplace();
    if (!read_state(*newest, *lineage.newest_checkpoint)) return damaged_lineage(place, "newest_checkpoint");
  }
  if (json.contains("first_step") && !read_number(json, "first_step", lineage.first_step.emplace()))
    return damaged_lineage(place, "first_step");
  return lineage;
}

Result<Lineage> read_lineage(Env& env, const std::string& run_directory) {
  const std::string path = checkpoint_names::lineage(run_directory);
  const Result<FileStatus> status = env.status(path);
  if (!status.ok()) return with_code(ExitCode::checkpoint, status.error());
  if (!status->exists) return Lineage{};
  const Result<std::string> text = read_text_within(env, path, text_limits::lineage);
  if (!text.ok()) return with_code(ExitCode::checkpoint, text.error());
  return decode_lineage(*text, path);
}

Result<void> write_lineage(Env& env, const std::string& run_directory, const Lineage& lineage,
                           const WriterCheck& check) {
  const std::string path = checkpoint_names::lineage(run_directory);
  // Named as Env::replace_text names what it writes first: whoever claims the directory removes both.
  const std::string beside = fmt::format("{}.tmp.{}.{:016x}", path, env.process_id(), env.random_u64());
  Result<void> written = env.replace_text(beside, encode_lineage(lineage));
  if (written.ok() && check) written = check();
  if (written.ok()) written = env.rename(beside, path);
  if (!written.ok()) {
    static_cast<void>(env.remove(beside).ok());
    return written;
  }
  return env.sync_directory(run_directory);
}

Result<void> record_rollback(Env& env, const std::string& run_directory, const std::string& run_id,
                             const Generation& generation, const WriterCheck& check) {
  HF_TRY(Lineage lineage, read_lineage(env, run_directory));
  if (lineage.run_id != run_id) {
    lineage = {.run_id = run_id};
    if (has_no_other(env, run_directory)) lineage.first_step = Lineage::none_published;
  }
  lineage.roll_back(generation);
  return write_lineage(env, run_directory, lineage, check);
}

Result<void> record_newest_checkpoint(Env& env, const std::string& run_directory, const Manifest& manifest,
                                      const WriterCheck& check) {
  HF_TRY(Lineage lineage, read_lineage(env, run_directory));
  if (lineage.run_id != manifest.run_id)
    lineage = {.run_id = manifest.run_id, .first_step = Lineage::none_published};
  const ParentCheckpoint published = state_of(manifest);
  if (lineage.discards(published)) return {};  // a save that ended after the run went back
  lineage.newest_checkpoint = published;
  note_published(env, run_directory, manifest.step, lineage);
  return write_lineage(env, run_directory, lineage, check);
}

}  // namespace holdfast::checkpoint
