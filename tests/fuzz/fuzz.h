// Fuzz targets: each reads bytes from outside as the program would and checks what came of them. Whatever the
// bytes are, the outcome is an error with a sentence, or a value that is written back to the same bytes (or,
// where a format has several spellings, to bytes that read as the same value): never an abort, undefined
// behaviour, a hang, or more memory than the target states.
//
// One file in targets/ per target, named as the target; main.cc runs them (docs/testing.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::fuzz {

using Input = std::span<const std::byte>;

// A file of the committed corpus, as the program itself writes it.
struct Seed {
  std::string name;  // the corpus file is good-NAME
  std::vector<std::byte> bytes;
};

struct Target {
  const char* name;
  // Returns whether the program accepts the input as it is. Ends the process by fail_run() when a promise
  // does not hold.
  bool (*run)(Input input);
  // Makes the inputs of the corpus that are accepted.
  std::vector<Seed> (*seeds)();
  // Limit of the memory that one run may hold at a time: so many bytes for each byte of the input, and
  // `memory_beside` whatever its length.
  std::uint64_t memory_per_byte;
  std::uint64_t memory_beside;
  // Words of the format, which mutations insert.
  std::span<const std::string_view> words = {};
};

// All targets, by name.
std::span<const Target* const> all_targets();
const Target* find_target(std::string_view name);  // or nullptr

// Says what is wrong and aborts: the input is a finding.
[[noreturn]] void fail_run(std::string_view what);
inline void require(bool holds, std::string_view what) {
  if (!holds) fail_run(what);
}
// Requires a message of some words and one of the exit codes.
void require_sentence(const Error& error, std::initializer_list<ExitCode> codes);

inline std::string text_of(Input input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}
inline std::vector<std::byte> bytes_of_text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Read and write a number in the processor's order, which lies inside.
template <typename T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}
template <typename T>
void store(std::span<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

// Runs the target once under its limits of memory and time. Returns what run() returned.
bool run_within_limits(const Target& target, Input input);
// Largest number of bytes that a run held beyond memory_beside, per byte of its input, since the start.
double peak_bytes_per_byte();
// Largest number of bytes that a run held, since the start.
std::uint64_t peak_bytes();

}  // namespace holdfast::fuzz
