// Answers a scraper that asks for the metrics by HTTP/1.1. Pure: metrics_server.h moves the bytes.
//
// The head of a request is all that is read of it, and each answer ends its connection. Source: RFC 9112; the content types
// are those of Prometheus' exposition formats.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace holdfast::metrics {

inline constexpr std::size_t head_bytes_max = 8192;

struct ScrapePage {
  std::string_view text = {};   // of OpenMetrics
  std::string_view token = {};  // that a scraper must know; empty: none
};

// Returns the answer to what has been received so far, or nothing while its head is not whole.
std::optional<std::string> answer_to(std::string_view received, const ScrapePage& page);

}  // namespace holdfast::metrics
