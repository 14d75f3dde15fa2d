#include "runtime/inference/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "runtime/core/digest.h"
#include "runtime/core/random.h"

namespace holdfast::inference {
namespace {

constexpr std::int64_t byte_vocabulary = 256;
constexpr std::string_view separators = " ,\t\n";

Result<std::int32_t> parse_token(std::string_view word, std::int64_t vocabulary) {
  std::int32_t token = 0;
  const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), token);
  if (error == std::errc() && rest == word.data() + word.size() && token >= 0 && token < vocabulary)
    return token;
  return fail(ExitCode::config,
              "the prompt holds '{}': this model has no bytes but {} tokens, so a prompt is a list of "
              "numbers from 0 to "
              "{}, as in --prompt \"1, 22, 333\", or text with --tokenizer FILE",
              word, vocabulary, vocabulary - 1);
}

Result<void> check_options(const SampleOptions& options) {
  if (options.tokens < 0 || options.top_k < 0) {
    return fail(ExitCode::config, "{} = {} is negative. Give 0 or more",
                options.tokens < 0 ? "tokens" : "top-k", options.tokens < 0 ? options.tokens : options.top_k);
  }
  if (std::isfinite(options.temperature) && options.temperature >= 0.0) return {};
  return fail(ExitCode::config,
              "temperature = {} is out of range. Give 0 (always the likeliest token) or more; 0.8 is usual",
              options.temperature);
}

// Returns the tokens to choose from, the most likely first.
std::vector<std::int32_t> candidates_of(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float logit_a = logits[static_cast<std::size_t>(a)];
    const float logit_b = logits[static_cast<std::size_t>(b)];
    return logit_a > logit_b || (!(logit_b > logit_a) && a < b);
  };
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count), tokens.end(),
                    likelier);
  tokens.resize(count);
  return tokens;
}

}  // namespace

Result<std::vector<std::int32_t>> parse_prompt(const std::string& prompt, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  if (vocabulary == byte_vocabulary) {
    for (const char c : prompt.empty() ? std::string("\n") : prompt)
      tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string_view rest = prompt;
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(separators), rest.size()));
    if (rest.empty()) break;
    const std::string_view word = rest.substr(0, rest.find_first_of(separators));
    HF_TRY(const std::int32_t token, parse_token(word, vocabulary));
    tokens.push_back(token);
    rest.remove_prefix(word.size());
  }
  if (!tokens.empty()) return tokens;
  return fail(ExitCode::config,
              "the prompt is empty: this model has {} tokens, and none of them is known to start a text. "
              "Give at least one "
              "number from 0 to {}, as in --prompt \"1, 22, 333\"",
              vocabulary, vocabulary - 1);
}

std::string token_text(std::int32_t token, std::int64_t vocabulary) {
  if (vocabulary == byte_vocabulary) return std::string(1, static_cast<char>(token));
  return fmt::format(" {}", token);
}

Result<std::int32_t> choose_token(std::span<const float> logits, const SampleOptions& options,
                                  double uniform) {
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) {
    return fail(ExitCode::numerics,
                "the model's logits are not finite: its weights are damaged by a run that diverged. Use an "
                "earlier checkpoint");
  }
  const bool greedy = options.temperature <= 0.0;
  const std::size_t limit = options.top_k > 0 ? static_cast<std::size_t>(options.top_k) : logits.size();
  const std::vector<std::int32_t> tokens = candidates_of(logits, greedy ? 1 : std::min(limit, logits.size()));
  if (greedy) return tokens.front();
  const double largest = static_cast<double>(logits[static_cast<std::size_t>(tokens.front())]);
  std::vector<double> cumulative;
  double total = 0.0;
  for (const std::int32_t token : tokens) {
    total += std::exp((static_cast<double>(logits[static_cast<std::size_t>(token)]) - largest) /
                      options.temperature);
    cumulative.push_back(total);
  }
  const auto chosen = std::ranges::upper_bound(cumulative, uniform * total);
  const auto index = std::min<std::ptrdiff_t>(chosen - cumulative.begin(), std::ssize(tokens) - 1);
  return tokens[static_cast<std::size_t>(index)];
}

Result<void> sample(InferenceModel& model, const SampleOptions& options,
                    const std::function<void(std::string_view)>& show) {
  HF_TRY_VOID(check_options(options));
  const std::int64_t vocabulary = model.spec().vocabulary;
  HF_TRY(std::vector<std::int32_t> tokens,
         options.encode ? options.encode(options.prompt) : parse_prompt(options.prompt, vocabulary));
  const auto window = static_cast<std::size_t>(model.shape().sequence_length);
  if (!options.prompt.empty()) show(options.prompt);
  const RandomStream stream(options.seed, digest_of("sample").low);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    HF_TRY(const std::span<const float> logits,
           model.next_logits(std::span(tokens).last(std::min(tokens.size(), window))));
    HF_TRY(const std::int32_t token,
           choose_token(logits, options, stream.uniform(static_cast<std::uint64_t>(i))));
    tokens.push_back(token);
    show(options.decode ? options.decode(token) : token_text(token, vocabulary));
  }
  return {};
}

}  // namespace holdfast::inference
