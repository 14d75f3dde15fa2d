#include "runtime/inference/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/core/digest.h"
#include "runtime/core/random.h"
#include "runtime/inference/text_stream.h"

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

// Returns the tokens of all prompts.
Result<std::vector<std::vector<std::int32_t>>> tokens_of_prompts(const SampleOptions& options,
                                                                 std::int64_t vocabulary) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const std::string& prompt : options.prompts) {
    Result<std::vector<std::int32_t>> of_prompt =
        options.encode ? options.encode(prompt) : parse_prompt(prompt, vocabulary);
    if (!of_prompt.ok() && options.prompts.size() > 1)
      return fail(of_prompt.error().code, "prompt {}: {}", tokens.size() + 1, of_prompt.error().message);
    HF_TRY(std::vector<std::int32_t> ids, std::move(of_prompt));
    tokens.push_back(std::move(ids));
  }
  return tokens;
}

// TextMaker continues some prompts at a time, one in each sequence of the model; the next one takes the place of a
// text that ends.
class TextMaker {
 public:
  TextMaker(InferenceModel& model, const SampleOptions& options, const ShowText& show)
      : model_(model), options_(options), show_(show) {}

  Result<std::int64_t> make(std::vector<std::vector<std::int32_t>> prompts) {
    for (std::vector<std::int32_t>& tokens : prompts) {
      const std::uint64_t stream = digest_of("sample").low + texts_.size();
      texts_.push_back({.tokens = std::move(tokens),
                        .random = {options_.seed, stream},
                        .stream = TextStream(options_.stops)});
    }
    texts_of_sequences_.assign(static_cast<std::size_t>(model_.sequences_at_once()), none);
    show_(0, options_.prompts.front());
    while (shown_ < texts_.size()) {
      HF_TRY_VOID(begin_texts());
      HF_TRY_VOID(continue_texts());
    }
    return made_;
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  struct Text {
    std::vector<std::int32_t> tokens;  // the prompt's, and those that were made
    RandomStream random;
    TextStream stream;
    std::int64_t made = 0;
    std::string waiting = {};  // for the prompts before it
    bool ended = false;
  };

  // Fills sequences that are free.
  Result<void> begin_texts() {
    for (std::size_t sequence = 0; sequence < texts_of_sequences_.size(); ++sequence) {
      if (texts_of_sequences_[sequence] != none || begun_ == texts_.size()) continue;
      texts_of_sequences_[sequence] = begun_++;
      HF_TRY_VOID(read_last(sequence, model_.shape().sequence_length));
    }
    return {};
  }

  // Makes a token of each text that has one to come.
  Result<void> continue_texts() {
    std::vector<InferenceModel::NextToken> next;
    const std::int64_t longest = model_.shape().sequence_length;
    const std::int64_t kept = std::max<std::int64_t>(1, longest - std::max<std::int64_t>(1, longest / 4));
    for (std::size_t sequence = 0; sequence < texts_of_sequences_.size(); ++sequence) {
      const std::size_t index = texts_of_sequences_[sequence];
      if (index == none) continue;
      if (model_.room(static_cast<int>(sequence)) == 0) {
        HF_TRY_VOID(read_last(sequence, kept));
      } else {
        next.push_back({.sequence = static_cast<int>(sequence), .token = texts_[index].tokens.back()});
      }
    }
    if (next.empty()) return {};
    HF_TRY(const std::span<const float> logits, model_.append(next));
    const std::size_t vocabulary = logits.size() / next.size();
    for (std::size_t i = 0; i < next.size(); ++i)
      HF_TRY_VOID(
          take_token(static_cast<std::size_t>(next[i].sequence), logits.subspan(i * vocabulary, vocabulary)));
    return {};
  }

  // Begins the sequence anew with the last tokens of its text, at most `count`.
  Result<void> read_last(std::size_t sequence, std::int64_t count) {
    const std::vector<std::int32_t>& tokens = texts_[texts_of_sequences_[sequence]].tokens;
    const auto last = std::min(tokens.size(), static_cast<std::size_t>(count));
    model_.clear(static_cast<int>(sequence));
    HF_TRY(const std::span<const float> logits,
           model_.append(static_cast<int>(sequence), std::span(tokens).last(last)));
    return take_token(sequence, logits);
  }

  Result<void> take_token(std::size_t sequence, std::span<const float> logits) {
    std::size_t& index = texts_of_sequences_[sequence];
    Text& text = texts_[index];
    HF_TRY(const std::int32_t token,
           choose_token(logits, options_, text.random.uniform(static_cast<std::uint64_t>(text.made))));
    text.tokens.push_back(token);
    ++text.made;
    ++made_;
    text.waiting += text.stream.add(options_.decode ? options_.decode(token)
                                                    : token_text(token, model_.spec().vocabulary));
    text.ended = text.stream.stopped() || text.made == options_.tokens;
    if (text.ended) {
      text.waiting += text.stream.finish();
      index = none;
    }
    show_texts();
    return {};
  }

  // Shows what waits for nothing.
  void show_texts() {
    while (shown_ < texts_.size()) {
      Text& text = texts_[shown_];
      if (!text.waiting.empty()) show_(shown_, std::exchange(text.waiting, {}));
      if (!text.ended) return;
      if (++shown_ < texts_.size()) show_(shown_, options_.prompts[shown_]);
    }
  }

  InferenceModel& model_;
  const SampleOptions& options_;
  const ShowText& show_;
  std::vector<Text> texts_;
  std::vector<std::size_t> texts_of_sequences_;
  std::size_t begun_ = 0;
  std::size_t shown_ = 0;  // texts before it are shown whole
  std::int64_t made_ = 0;
};

}  // namespace

Result<void> check_sample_options(const SampleOptions& options) {
  if (options.tokens < 1) {
    return fail(ExitCode::config, "tokens = {} makes no text. Give 1 or more", options.tokens);
  }
  if (options.top_k < 0) {
    return fail(ExitCode::config, "top-k = {} is negative. Give 0 (all tokens) or more", options.top_k);
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    return fail(ExitCode::config,
                "top-p = {} is out of range. Give more than 0 and at most 1 (all tokens); 0.95 is usual",
                options.top_p);
  }
  if (std::ranges::find(options.stops, "") != options.stops.end()) {
    return fail(ExitCode::config,
                "a text to stop at is empty, and so is the beginning of every text. Give "
                "one that has characters, or leave --stop out");
  }
  if (std::isfinite(options.temperature) && options.temperature >= 0.0) return {};
  return fail(ExitCode::config,
              "temperature = {} is out of range. Give 0 (always the likeliest token) or more; 0.8 is usual",
              options.temperature);
}

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
  if (options.top_p < 1.0) {
    cumulative.erase(std::ranges::lower_bound(cumulative, options.top_p * total) + 1, cumulative.end());
    total = cumulative.back();
  }
  const auto chosen = std::ranges::upper_bound(cumulative, uniform * total);
  const auto index = std::min<std::ptrdiff_t>(chosen - cumulative.begin(), std::ssize(cumulative) - 1);
  return tokens[static_cast<std::size_t>(index)];
}

Result<std::int64_t> sample(InferenceModel& model, const SampleOptions& options, const ShowText& show) {
  HF_TRY_VOID(check_sample_options(options));
  HF_TRY(std::vector<std::vector<std::int32_t>> prompts, tokens_of_prompts(options, model.spec().vocabulary));
  return TextMaker(model, options, show).make(std::move(prompts));
}

}  // namespace holdfast::inference
