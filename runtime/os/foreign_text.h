// Checks of texts that somebody else may have written: files of a run directory, checkpoints, answers of
// peers, lists of hosts. They are validated before they are used, and made harmless for a terminal before
// they are shown. docs/security.md says which text comes from where.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::os {

// Returns whether the text is 32 digits of 0 to 9 and a to f, as every id of a run is.
bool is_run_id(std::string_view text);

// Returns whether the text may be the name of a host: letters, digits and - . _ : [ ] %, and no leading -,
// which would make it an option of the command that reaches the host.
bool may_be_host_name(std::string_view text);

// Returns the text in a form that is safe on a terminal: control characters other than tab and newline, and
// bytes that are not UTF-8, become \x1b and the like.
std::string printable(std::string_view text);

// Maximum length of a text of each kind; a longer one is not read.
namespace text_limits {
inline constexpr std::uint64_t config = std::uint64_t{16} << 20;
inline constexpr std::uint64_t hostfile = std::uint64_t{16} << 20;
inline constexpr std::uint64_t manifest = std::uint64_t{256} << 20;
inline constexpr std::uint64_t lineage = std::uint64_t{16} << 20;
inline constexpr std::uint64_t identity = std::uint64_t{64} << 10;  // run_id, run_place, token
inline constexpr std::uint64_t status = std::uint64_t{1} << 20;     // status.json
inline constexpr std::uint64_t request = std::uint64_t{64} << 10;   // a file of RUN/requests
inline constexpr std::uint64_t hardware_record = std::uint64_t{16} << 20;
inline constexpr std::uint64_t launch_record = std::uint64_t{16} << 20;
inline constexpr std::uint64_t event_line = std::uint64_t{16} << 20;
inline constexpr std::uint64_t flight_record = std::uint64_t{256} << 20;
inline constexpr std::uint64_t trace = std::uint64_t{4} << 30;
inline constexpr std::uint64_t product_plan = std::uint64_t{16} << 20;  // the file of kernels.plan
inline constexpr std::uint64_t shard_index = std::uint64_t{1} << 30;
}  // namespace text_limits

// Returns the file whole, or ExitCode::data where it has more than `max_bytes`.
Result<std::string> read_text_within(Env& env, const std::string& path, std::uint64_t max_bytes);
// Returns the file whole, or nothing where it cannot be read or has more than `max_bytes`.
std::string text_within_or_empty(Env& env, const std::string& path, std::uint64_t max_bytes);

}  // namespace holdfast::os
