// Entry points that libFuzzer calls (preset fuzz). Its own options follow `-target=NAME`.
#include <cstdint>
#include <string_view>

#include "tests/fuzz/fuzz.h"

namespace {

const holdfast::fuzz::Target* fuzzed = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

int LLVMFuzzerInitialize(int* count, char*** arguments) {
  constexpr std::string_view option = "-target=";
  for (int i = 1; i < *count; ++i) {
    const std::string_view argument = (*arguments)[i];
    if (argument.starts_with(option)) fuzzed = holdfast::fuzz::find_target(argument.substr(option.size()));
  }
  holdfast::fuzz::require(fuzzed != nullptr, "-target=NAME is missing, or there is no such target");
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static_cast<void>(holdfast::fuzz::run_within_limits(*fuzzed, std::as_bytes(std::span(data, bytes))));
  return 0;
}
