// TextStream passes text on while it is made: whole characters of UTF-8, and nothing of a text that ends it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast::inference {

class TextStream {
 public:
  // The text ends before the first of these, none of which is empty.
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds bytes, and returns what of the text can be shown by now: all but the beginning of a character, or of
  // a text that ends it. Bytes that belong to no character of UTF-8 pass as they are.
  std::string add(std::string_view bytes);
  // Returns what is left where nothing follows, without the beginning of a character.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string take(std::size_t bytes);

  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace holdfast::inference
