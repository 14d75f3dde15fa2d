// Text from a trained model: one token after another from the softmax of its logits.
//
// A model of vocabulary 256 is taken as a byte-level one: prompt and output are text. Any other vocabulary
// means token ids, separated by spaces or commas, in and out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/inference/inference.h"

namespace holdfast::inline inference {

struct SampleOptions {
  std::string prompt = {};    // empty = a line end, for text
  std::int64_t tokens = 400;  // to be made, the prompt not counted
  double temperature = 0.8;   // 0 = always the likeliest token
  std::int64_t top_k = 40;    // choose among this many likeliest tokens; 0 = all
  std::uint64_t seed = 1;     // same seed, same model, same device: same text
};

// ExitCode::config with what is accepted.
Result<std::vector<std::int32_t>> parse_prompt(const std::string& prompt, std::int64_t vocabulary);
// One token as it is shown: its byte, or " <id>".
std::string token_text(std::int32_t token, std::int64_t vocabulary);

// The token that `uniform` in [0, 1) chooses. Equal logits are ordered by token. ExitCode::numerics when the
// logits are not finite.
Result<std::int32_t> choose_token(std::span<const float> logits, const SampleOptions& options,
                                  double uniform);

// Calls `show` with the prompt and then with every token made, as soon as it is. The model sees the last
// sequence_length tokens.
Result<void> sample(InferenceModel& model, const SampleOptions& options,
                    const std::function<void(std::string_view)>& show);

}  // namespace holdfast::inline inference
