#include "runtime/save/run_state.h"

#include <charconv>

namespace holdfast::inline save {
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

}  // namespace

void put_state(const RunState& state, Manifest& manifest) {
  manifest.run_id = state.run_id;
  manifest.generation = state.generation;
  manifest.step = state.step;
  manifest.values["data_cursor"] = std::to_string(state.data_cursor);
  manifest.values["data_digest"] = to_hex(state.data_digest);
  manifest.values["loss_digest"] = to_hex(state.loss_digest);
  manifest.values["data_fingerprint"] = to_hex(state.data_fingerprint);
  manifest.values[recent_steps_key] = state.recent_steps.text();
  manifest.values[numbers_key] = state.numbers.text();
}

Result<RunState> take_state(const Manifest& manifest, const std::string& place) {
  RunState state{.run_id = manifest.run_id, .generation = manifest.generation, .step = manifest.step};
  const auto cursor = manifest.values.find("data_cursor");
  if (cursor == manifest.values.end()) return missing(place, "data_cursor");
  const std::string& text = cursor->second;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), state.data_cursor);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size())
    return missing(place, "data_cursor");
  HF_TRY(state.data_digest, digest_value(manifest, "data_digest", place));
  HF_TRY(state.loss_digest, digest_value(manifest, "loss_digest", place));
  HF_TRY(state.data_fingerprint, digest_value(manifest, "data_fingerprint", place));
  // Manifests of older versions have no recent steps, and training does without.
  const auto recent = manifest.values.find(recent_steps_key);
  if (recent != manifest.values.end()) state.recent_steps = RecentSteps::from_text(recent->second);
  // Manifests of versions that judged no numbers have none: the window fills again.
  const auto numbers = manifest.values.find(numbers_key);
  if (numbers != manifest.values.end()) {
    const std::optional<NumbersHistory> history = NumbersHistory::from_text(numbers->second);
    if (!history.has_value()) return missing(place, numbers_key);
    state.numbers = *history;
  }
  return state;
}

}  // namespace holdfast::inline save
