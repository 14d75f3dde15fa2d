// Samples text from a trained model: one token after another from the softmax of its logits.
//
// A model of vocabulary 256 is treated as a byte-level one: prompt and output are text. With any other
// vocabulary, input and output are token ids, separated by spaces or commas, unless the caller translates them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/inference/inference.h"

namespace holdfast::inference {

struct SampleOptions {
  std::string prompt = {};    // empty = a line end, for a byte-level model
  std::int64_t tokens = 400;  // number to sample, without the prompt
  double temperature = 0.8;   // 0 = always the most likely token
  std::int64_t top_k = 40;    // choose among this many most likely tokens; 0 = all
  std::uint64_t seed = 1;     // same seed, same model, same device: same text
  // Translate a prompt into tokens, one or more, and a token into what is shown. Both or none are there.
  std::function<Result<std::vector<std::int32_t>>(const std::string&)> encode = {};
  std::function<std::string(std::int32_t)> decode = {};
};

// Parses a prompt. Fails with ExitCode::config and says what is accepted.
Result<std::vector<std::int32_t>> parse_prompt(const std::string& prompt, std::int64_t vocabulary);
// Returns one token as it is shown: its byte, or " <id>".
std::string token_text(std::int32_t token, std::int64_t vocabulary);

// Returns the token that `uniform` in [0, 1) chooses. Equal logits are ordered by token. Fails with
// ExitCode::numerics when the logits are not finite.
Result<std::int32_t> choose_token(std::span<const float> logits, const SampleOptions& options,
                                  double uniform);

// Calls `show` with the prompt and then with every sampled token, as soon as it is there. The model sees the
// last sequence_length tokens.
Result<void> sample(InferenceModel& model, const SampleOptions& options,
                    const std::function<void(std::string_view)>& show);

}  // namespace holdfast::inference
