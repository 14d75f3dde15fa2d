#include "runtime/save/run_state.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

namespace holdfast::save {
namespace {

Error missing(const std::string& place, const char* key) {
  return fail(ExitCode::checkpoint,
              "{}: the manifest has no usable \"{}\"; expected a manifest written by holdfast train. Use "
              "another checkpoint",
              place, key);
}

Result<Digest> digest_value(const Manifest& manifest, const char* key, const std::string& place) {
  Digest digest;
  const auto found = manifest.values.find(key);
  if (found == manifest.values.end() || !from_hex(found->second, digest)) return missing(place, key);
  return digest;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return {};
  return number;
}

// Formats jumps as "STEP:CURSOR:TIMES", separated by commas.
std::string jumps_to_text(std::span<const DataJump> jumps) {
  std::vector<std::string> texts;
  for (const DataJump& jump : jumps)
    texts.push_back(fmt::format("{}:{}:{}", jump.at_step, jump.data_cursor, jump.times));
  return fmt::format("{}", fmt::join(texts, ","));
}

// Parses such a text; nothing if it is another kind of text.
std::optional<std::vector<DataJump>> jumps_from_text(std::string_view text) {
  std::vector<DataJump> jumps;
  while (!text.empty()) {
    std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    std::array<std::uint64_t, 3> numbers{};
    for (std::uint64_t& number : numbers) {
      const std::string_view digits = one.substr(0, one.find(':'));
      one.remove_prefix(std::min(one.size(), digits.size() + 1));
      const std::optional<std::uint64_t> read = number_of(digits);
      if (!read.has_value()) return {};
      number = *read;
    }
    if (!one.empty() || (!jumps.empty() && jumps.back().at_step >= numbers[0])) return {};
    jumps.push_back({.at_step = numbers[0], .data_cursor = numbers[1], .times = numbers[2]});
  }
  return jumps;
}

}  // namespace

bool take_jump(RunState& state) {
  const auto jump = std::ranges::find(state.jumps, state.step, &DataJump::at_step);
  if (jump == state.jumps.end()) return false;
  state.data_cursor = jump->data_cursor;
  return true;
}

std::uint64_t rollbacks_before(const RunState& state, std::uint64_t step) {
  std::uint64_t rollbacks = 0;
  for (const DataJump& jump : state.jumps)
    if (jump.at_step < step) rollbacks += jump.times;
  return rollbacks;
}

void put_state(const RunState& state, Manifest& manifest) {
  manifest.run_id = state.run_id;
  manifest.generation = state.generation;
  manifest.step = state.step;
  manifest.values["data_cursor"] = std::to_string(state.data_cursor);
  manifest.values["data_digest"] = to_hex(state.data_digest);
  manifest.values["loss_digest"] = to_hex(state.loss_digest);
  manifest.values["data_fingerprint"] = to_hex(state.data_fingerprint);
  manifest.values[numbers_key] = state.numbers.text();
  if (!state.jumps.empty()) manifest.values[jumps_key] = jumps_to_text(state.jumps);
  if (state.audited_step > 0) manifest.values[audited_step_key] = std::to_string(state.audited_step);
}

Result<RunState> take_state(const Manifest& manifest, const std::string& place) {
  RunState state{.run_id = manifest.run_id, .generation = manifest.generation, .step = manifest.step};
  const auto cursor = manifest.values.find("data_cursor");
  if (cursor == manifest.values.end()) return missing(place, "data_cursor");
  const std::optional<std::uint64_t> position = number_of(cursor->second);
  if (!position.has_value()) return missing(place, "data_cursor");
  state.data_cursor = *position;
  HF_TRY(state.data_digest, digest_value(manifest, "data_digest", place));
  HF_TRY(state.loss_digest, digest_value(manifest, "loss_digest", place));
  HF_TRY(state.data_fingerprint, digest_value(manifest, "data_fingerprint", place));
  // Manifests of versions that judged no numbers have none: the window fills again.
  const auto numbers = manifest.values.find(numbers_key);
  if (numbers != manifest.values.end()) {
    const std::optional<NumbersHistory> history = NumbersHistory::from_text(numbers->second);
    if (!history.has_value()) return missing(place, numbers_key);
    state.numbers = *history;
  }
  if (const auto text = manifest.values.find(jumps_key); text != manifest.values.end()) {
    std::optional<std::vector<DataJump>> jumps = jumps_from_text(text->second);
    if (!jumps.has_value()) return missing(place, jumps_key);
    state.jumps = std::move(*jumps);
  }
  if (const auto text = manifest.values.find(audited_step_key); text != manifest.values.end()) {
    const std::optional<std::uint64_t> step = number_of(text->second);
    if (!step.has_value()) return missing(place, audited_step_key);
    state.audited_step = *step;
  }
  return state;
}

}  // namespace holdfast::save
