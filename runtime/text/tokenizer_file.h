// Files of tokenizers: tokenizer.json of Hugging Face (read and written), and the rank files of tiktoken (read).
#pragma once

#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/text/tokenizer.h"

namespace holdfast::text {

// Returns the regular expression of a well-known tokenizer, gpt2, llama3 or qwen2, or else `name`, which is one itself.
std::string pattern_of(const std::string& name);

// Reads either kind of file. A rank file does not say how text is cut into pieces: `pattern` does, as pattern_of() has it; for
// a tokenizer.json it is empty; `option` is how people give it. Errors: ExitCode::data with the file, what was found, what was expected and what to do.
Result<Tokenizer> read_tokenizer(Env& env, const std::string& path, const std::string& pattern,
                                 const std::string& option = "--pattern ");

// Fails with ExitCode::data where a path is no file and reads like the name of a published tokenizer, as "gpt2": nothing is
// downloaded by a name.
Result<void> expect_no_name(Env& env, const std::string& path);

// Parse the content of a file. Pure; for tests and for read_tokenizer, which puts the path in front of the messages.
Result<TokenizerParts> parse_tokenizer_json(std::string_view text);
Result<TokenizerParts> parse_tiktoken(std::string_view text, const std::string& pattern);

// Returns the tokenizer.json of the parts, as Python's tokenizers write it. The vocabulary has no holes, and the tokens of
// `added` are among the tokens.
std::string tokenizer_json(const TokenizerParts& parts);

// Returns the text that stands for bytes in a tokenizer.json: one character for each, none of them blank.
std::string byte_level(std::string_view bytes);
// Returns the bytes that a text of such characters stands for; nothing where it has others.
std::optional<std::string> from_byte_level(std::string_view text);
// Returns the bytes in the order of their characters, which is that of their tokens in a tokenizer that is trained.
std::array<std::uint8_t, 256> bytes_by_character();

}  // namespace holdfast::text
