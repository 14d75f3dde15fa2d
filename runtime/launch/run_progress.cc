#include "runtime/launch/run_progress.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace holdfast {

std::uint64_t newest_step(Env& env, const RunPaths& paths) {
  constexpr std::uint64_t tail_bytes = 65'536;  // more than what is logged between two steps
  const Result<std::unique_ptr<File>> file = env.open(paths.events(), OpenMode::read);
  if (!file.ok()) return 0;
  const Result<std::uint64_t> bytes = (*file)->size();
  if (!bytes.ok()) return 0;
  std::string tail(std::min(*bytes, tail_bytes), '\0');
  if (!(*file)->read_at(*bytes - tail.size(), std::as_writable_bytes(std::span(tail))).ok()) return 0;
  // Backwards, line by line; a torn last line is no object.
  for (std::size_t end = tail.size(); end > 0;) {
    const std::size_t newline = tail.rfind('\n', end - 1);
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const nlohmann::json line =
        nlohmann::json::parse(tail.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    const bool is_step = line.is_object() && line.contains("event") && line["event"] == "step";
    if (is_step && line.contains("step") && line["step"].is_number_unsigned()) return line["step"];
    if (newline == std::string::npos) break;
    end = newline;
  }
  return 0;
}

}  // namespace holdfast
