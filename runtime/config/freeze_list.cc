#include "runtime/config/freeze_list.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "runtime/core/text.h"

namespace holdfast::config {
namespace {

constexpr std::string_view embedding_entry = "embedding", head_entry = "head",
                           matrices_entry = "all but biases and norms";

std::optional<std::int64_t> number_of(std::string_view digits) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = !digits.empty() && error == std::errc() && rest == digits.data() + digits.size();
  return is_number && number >= 0 ? std::optional(number) : std::nullopt;
}

// "layer 3", "layers 0-5"
std::optional<FreezeList::Layers> layers_of(std::string_view entry) {
  for (const std::string_view word : {"layers ", "layer "}) {
    if (!entry.starts_with(word)) continue;
    const std::string_view range = entry.substr(word.size());
    const std::size_t dash = range.find('-');
    const std::optional<std::int64_t> first = number_of(range.substr(0, dash));
    const std::optional<std::int64_t> last =
        dash == std::string_view::npos ? first : number_of(range.substr(dash + 1));
    if (!first || !last || *first > *last) return std::nullopt;
    return FreezeList::Layers{.first = *first, .last = *last};
  }
  return std::nullopt;
}

}  // namespace

bool FreezeList::has_layer(std::int64_t layer) const {
  return std::ranges::any_of(
      layers, [layer](const Layers& range) { return range.first <= layer && layer <= range.last; });
}

Result<FreezeList> parse_freeze_list(std::span<const std::string> entries) {
  FreezeList list;
  for (const std::string& entry : entries) {
    if (entry == embedding_entry) {
      list.embedding = true;
    } else if (entry == head_entry) {
      list.head = true;
    } else if (entry == matrices_entry) {
      list.matrices = true;
    } else if (const std::optional<FreezeList::Layers> layers = layers_of(entry)) {
      list.layers.push_back(*layers);
    } else {
      const std::array<std::string_view, 3> known = {embedding_entry, head_entry, matrices_entry};
      const std::string near = closest(entry, known);
      return fail(
          ExitCode::config,
          "model.freeze has the entry \"{}\"{} entry is \"embedding\", \"head\", \"layers 0-5\" (the first "
          "and the last, counted from 0) or \"all but biases and norms\"",
          entry, near.empty() ? ": an" : fmt::format(", did you mean \"{}\"? An", near));
    }
  }
  return list;
}

}  // namespace holdfast::config
