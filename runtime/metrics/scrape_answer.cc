#include "runtime/metrics/scrape_answer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

namespace holdfast::metrics {
namespace {

std::string answer(std::string_view status, std::string_view type, std::string_view body,
                   std::string_view more = "", bool has_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: "
      "close\r\n{}\r\n{}",
      status, type, body.size(), more, has_body ? body : "");
}

std::string refusal(std::string_view status, std::string_view sentence, std::string_view more = "") {
  return answer(status, "text/plain; charset=utf-8", fmt::format("{}\n", sentence), more);
}

bool is_same_word(std::string_view one, std::string_view other) {
  return std::ranges::equal(
      one, other, [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

// Takes as long whatever the first difference is.
bool is_same_secret(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    difference |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
  return difference == 0;
}

// Returns the value of a header of a head; empty: there is none.
std::string_view header_of(std::string_view head, std::string_view name) {
  while (!head.empty()) {
    const std::size_t end = std::min(head.find('\n'), head.size());
    const std::string_view line = head.substr(0, end);
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && is_same_word(line.substr(0, colon), name))
      return trimmed(line.substr(colon + 1));
    head.remove_prefix(std::min(end + 1, head.size()));
  }
  return {};
}

bool is_allowed(std::string_view head, std::string_view token) {
  if (token.empty()) return true;
  constexpr std::string_view scheme = "bearer ";
  const std::string_view given = header_of(head, "authorization");
  return given.size() > scheme.size() && is_same_word(given.substr(0, scheme.size()), scheme) &&
         is_same_secret(trimmed(given.substr(scheme.size())), token);
}

std::size_t end_of_head(std::string_view received) {
  return std::min(received.find("\r\n\r\n"), received.find("\n\n"));
}

}  // namespace

std::optional<std::string> answer_to(std::string_view received, const ScrapePage& page) {
  const std::size_t end = end_of_head(received);
  if (std::min(end, received.size()) > head_bytes_max)
    return refusal("431 Request Header Fields Too Large", "The request is too long.");
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view head = received.substr(0, end);
  const std::string_view line = trimmed(head.substr(0, head.find('\n')));
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !line.substr(last + 1).starts_with("HTTP/1."))
    return refusal("400 Bad Request", "This is no request of HTTP/1.");
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.substr(0, target.find('?')) != "/metrics")
    return refusal("404 Not Found", "The metrics are at /metrics.");
  if (method != "GET" && method != "HEAD")
    return refusal("405 Method Not Allowed", "The metrics can be read alone.", "Allow: GET, HEAD\r\n");
  if (!is_allowed(head, page.token))
    return refusal("401 Unauthorized",
                   "`holdfast metrics RUN --token` prints what is needed here as a bearer token.",
                   "WWW-Authenticate: Bearer\r\n");
  const bool is_open =
      header_of(head, "accept").find("application/openmetrics-text") != std::string_view::npos;
  return answer("200 OK",
                is_open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                        : "text/plain; version=0.0.4; charset=utf-8",
                page.text, "", method == "GET");
}

}  // namespace holdfast::metrics
