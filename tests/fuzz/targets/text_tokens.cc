// A text, whose bytes are its tokens.
#include "tests/fuzz/targets/token_input.h"

namespace holdfast::fuzz {
namespace {

bool run_text_tokens(Input input) {
  FuzzEnv env;
  env.put("/corpus.txt", input);
  return read_tokens(env, "/corpus.txt", "text");
}

std::vector<Seed> text_tokens_seeds() {
  return {{"words", bytes_of_text(std::string_view("once upon a time\n\0\xff there", 24))}};
}

}  // namespace

extern const Target text_tokens_target;
const Target text_tokens_target{.name = "text_tokens",
                                .run = run_text_tokens,
                                .seeds = text_tokens_seeds,
                                .memory_per_byte = token_memory_per_byte,
                                .memory_beside = token_memory_beside};

}  // namespace holdfast::fuzz
