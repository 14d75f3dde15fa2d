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

// Parses groups of so many numbers with colons in them and commas between them; nothing if it is another kind of text.
template <std::size_t count>
std::optional<std::vector<std::array<std::uint64_t, count>>> groups_from_text(std::string_view text) {
  std::vector<std::array<std::uint64_t, count>> groups;
  while (!text.empty()) {
    std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    for (std::uint64_t& number : groups.emplace_back()) {
      const std::string_view digits = one.substr(0, one.find(':'));
      one.remove_prefix(std::min(one.size(), digits.size() + 1));
      const std::optional<std::uint64_t> read = number_of(digits);
      if (!read.has_value()) return {};
      number = *read;
    }
    if (!one.empty()) return {};
  }
  return groups;
}

std::optional<std::vector<DataJump>> jumps_from_text(std::string_view text) {
  const auto groups = groups_from_text<3>(text);
  if (!groups.has_value()) return {};
  std::vector<DataJump> jumps;
  for (const auto& [at_step, data_cursor, times] : *groups) {
    if (!jumps.empty() && jumps.back().at_step >= at_step) return {};
    jumps.push_back({.at_step = at_step, .data_cursor = data_cursor, .times = times});
  }
  return jumps;
}

// Formats ranges as "BEGIN:END", separated by commas.
std::string ranges_to_text(std::span<const PositionRange> ranges) {
  std::vector<std::string> texts;
  for (const PositionRange& range : ranges) texts.push_back(fmt::format("{}:{}", range.begin, range.end));
  return fmt::format("{}", fmt::join(texts, ","));
}

// Parses such a text, of ranges below `cursor`.
std::optional<std::vector<PositionRange>> ranges_from_text(std::string_view text, std::uint64_t cursor) {
  const auto groups = groups_from_text<2>(text);
  if (!groups.has_value()) return {};
  std::vector<PositionRange> ranges;
  for (const auto& [begin, end] : *groups) {
    if (begin >= end || end > cursor || (!ranges.empty() && begin <= ranges.back().end)) return {};
    ranges.push_back({.begin = begin, .end = end});
  }
  return ranges;
}

// Notes that the samples from the state's cursor to `end` are not used. A state that was saved after an earlier jump at
// its step has the first of them behind it.
void leave_out(RunState& state, std::uint64_t end) {
  if (end <= state.data_cursor) return;
  if (!state.left_out.empty() && state.left_out.back().end == state.data_cursor) {
    state.left_out.back().end = end;
  } else {
    state.left_out.push_back({.begin = state.data_cursor, .end = end});
  }
}

}  // namespace

bool take_jump(RunState& state) {
  const auto jump = std::ranges::find(state.jumps, state.step, &DataJump::at_step);
  if (jump == state.jumps.end()) return false;
  leave_out(state, jump->data_cursor);
  state.data_cursor = jump->data_cursor;
  return true;
}

std::uint64_t used_samples(const RunState& state) {
  std::uint64_t left_out = 0;
  for (const PositionRange& range : state.left_out) left_out += range.end - range.begin;
  return state.data_cursor - left_out;
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
  if (!state.left_out.empty()) manifest.values[left_out_key] = ranges_to_text(state.left_out);
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
  if (const auto text = manifest.values.find(left_out_key); text != manifest.values.end()) {
    std::optional<std::vector<PositionRange>> ranges = ranges_from_text(text->second, state.data_cursor);
    if (!ranges.has_value()) return missing(place, left_out_key);
    state.left_out = std::move(*ranges);
  }
  if (const auto text = manifest.values.find(audited_step_key); text != manifest.values.end()) {
    const std::optional<std::uint64_t> step = number_of(text->second);
    if (!step.has_value()) return missing(place, audited_step_key);
    state.audited_step = *step;
  }
  return state;
}

}  // namespace holdfast::save
