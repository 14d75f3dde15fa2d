#include "runtime/core/suggest.h"

#include <algorithm>
#include <vector>

namespace holdfast::core {
namespace {

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string closest(std::string_view word, std::span<const std::string_view> candidates) {
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::size_t best_distance = limit + 1;
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    const std::size_t length_difference =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (length_difference >= best_distance) continue;
    const std::size_t found = distance(word, candidate);
    if (found < best_distance) {
      best_distance = found;
      best = candidate;
    }
  }
  return std::string(best);
}

}  // namespace holdfast::core
