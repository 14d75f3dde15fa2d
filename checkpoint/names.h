// The names of files and directories below a run directory. FORMAT.md lists them.
#pragma once

#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace holdfast::checkpoint::checkpoint_names {

inline constexpr const char* manifest = "manifest.json";
// Prefix of a whole checkpoint that another one of the same step replaces. It counts until that one is there.
inline constexpr std::string_view replaced_prefix = "replaced-";

inline std::string checkpoints(const std::string& run_directory) {
  return run_directory + "/checkpoints";
}
inline std::string pending(const std::string& run_directory) {
  return run_directory + "/.pending";
}
inline std::string lineage(const std::string& run_directory) {
  return run_directory + "/lineage.json";
}
inline std::string step_name(std::uint64_t step) {
  return fmt::format("step-{:08}", step);
}

// Returns the name of the link in a checkpoint directory that uses chunks of `file`, a shard file of `step`;
// the name says which file it is. A file that is a link already keeps its name.
inline constexpr std::string_view base_prefix = "base-";
inline std::string base_name(std::string_view file, std::uint64_t step, std::uint32_t index_crc32c) {
  if (file.starts_with(base_prefix)) return std::string(file);
  return fmt::format("{}{:08}-{:08x}-{}", base_prefix, step, index_crc32c, file);
}

// Returns the step of "step-%08d"; std::nullopt for any other text.
inline std::optional<std::uint64_t> step_of(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  std::uint64_t step = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = name.substr(prefix.size());
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || rest != digits.data() + digits.size() || step_name(step) != name)
    return std::nullopt;
  return step;
}

// Returns whether a name, which may come from anywhere, is that of a file beside the manifest and nothing
// else.
inline bool is_file_name(std::string_view name) {
  return !name.empty() && name.find('/') == std::string_view::npos && !name.starts_with('.') &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace holdfast::checkpoint::checkpoint_names
