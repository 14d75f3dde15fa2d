// Samples texts from a trained model: one token after another from the softmax of its logits. Several prompts are
// continued side by side.
//
// A model of vocabulary 256 is treated as a byte-level one: prompt and output are text. With any other
// vocabulary, input and output are token ids, separated by spaces or commas, unless the caller translates them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/inference/inference.h"

namespace holdfast::inference {

struct SampleOptions {
  std::vector<std::string> prompts = {""};  // one or more; empty = a line end, for a byte-level model
  std::int64_t tokens = 400;                // number to sample for each prompt, at most
  double temperature = 0.8;                 // 0 = always the most likely token
  std::int64_t top_k = 40;                  // choose among this many most likely tokens; 0 = all
  // Choose among the most likely of these tokens that are together at least as likely, at the temperature; 1 = all.
  double top_p = 1.0;
  std::vector<std::string> stops = {};  // a text ends before the first of these that the model makes
  // Same seed, same model, same device: same text. Each prompt has random numbers of its own, whatever prompts
  // are beside it.
  std::uint64_t seed = 1;
  // Translate a prompt into tokens, one or more, and a token into what is shown. Both or none are there.
  std::function<Result<std::vector<std::int32_t>>(const std::string&)> encode = {};
  std::function<std::string(std::int32_t)> decode = {};
};

// Fails with ExitCode::config where a value makes no sense; sample() does, too.
Result<void> check_sample_options(const SampleOptions& options);
// Parses a prompt. Fails with ExitCode::config and says what is accepted.
Result<std::vector<std::int32_t>> parse_prompt(const std::string& prompt, std::int64_t vocabulary);
// Returns one token as it is shown: its byte, or " <id>".
std::string token_text(std::int32_t token, std::int64_t vocabulary);

// Returns the token that `uniform` in [0, 1) chooses. Equal logits are ordered by token. Fails with
// ExitCode::numerics when the logits are not finite.
Result<std::int32_t> choose_token(std::span<const float> logits, const SampleOptions& options,
                                  double uniform);

// Calls `show` with a prompt's number and with a part of its text: first the prompt, then what is made, as soon as
// TextStream passes it on. Prompts come one after another; what is made for a later one waits. The model, which has
// a cache of one sequence or more, sees sequence_length tokens of a text at most; where it has seen so many, it
// goes on from the last three quarters of them. Returns how many tokens were made.
using ShowText = std::function<void(std::size_t prompt, std::string_view text)>;
Result<std::int64_t> sample(InferenceModel& model, const SampleOptions& options, const ShowText& show);

}  // namespace holdfast::inference
