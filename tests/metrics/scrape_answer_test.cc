#include "runtime/metrics/scrape_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace holdfast::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const ScrapePage page{.text = "holdfast_step 7\n# EOF\n"};
const ScrapePage locked{.text = page.text, .token = "abc123"};

std::string answered(std::string_view received, const ScrapePage& to = page) {
  return answer_to(received, to).value_or("(more)");
}

TEST(ScrapeAnswer, TheMetricsInTheFormatThatIsAskedFor) {
  const std::string plain = answered("GET /metrics HTTP/1.1\r\nHost: n0\r\n\r\n");
  EXPECT_THAT(plain, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; "
                                "charset=utf-8\r\nContent-Length: 22\r\n"));
  EXPECT_THAT(plain, EndsWith("\r\n\r\nholdfast_step 7\n# EOF\n"));
  EXPECT_THAT(answered("GET /metrics?x=1 "
                       "HTTP/1.0\nACCEPT:application/openmetrics-text;version=1.0.0,text/plain;q=0.5\n\n"),
              HasSubstr("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
  EXPECT_THAT(answered("HEAD /metrics HTTP/1.1\r\n\r\n"),
              EndsWith("Content-Length: 22\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"));
}

TEST(ScrapeAnswer, WaitsForTheWholeHead) {
  const std::string question = "GET /metrics HTTP/1.1\r\nHost: n0\r\n\r\n";
  for (std::size_t bytes = 0; bytes < question.size(); ++bytes)
    EXPECT_FALSE(answer_to(std::string_view(question).substr(0, bytes), page).has_value()) << bytes;
  EXPECT_THAT(answered(question + "what comes after it"), StartsWith("HTTP/1.1 200"));
}

TEST(ScrapeAnswer, RefusesAllElse) {
  EXPECT_THAT(answered("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(answered("GET /metricsx HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(answered("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  for (const char* bad :
       {"\n\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics FTP/1\r\n\r\n", "\x16\x03\x01\r\n\r\n"})
    EXPECT_THAT(answered(bad), StartsWith("HTTP/1.1 400")) << bad;
  EXPECT_THAT(answered(std::string(head_bytes_max + 1, 'x')), StartsWith("HTTP/1.1 431"));
  EXPECT_FALSE(answer_to(std::string(head_bytes_max, 'x'), page).has_value());
  EXPECT_THAT(answered("GET /metrics HTTP/1.1\r\nX: " + std::string(head_bytes_max, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
}

TEST(ScrapeAnswer, OnlyTheTokenOpens) {
  const auto with = [](const std::string& header) {
    return answered("GET /metrics HTTP/1.1\r\n" + header + "\r\n\r\n", locked);
  };
  EXPECT_THAT(with("Authorization: Bearer abc123"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(with("authorization:   bearer   abc123  "), StartsWith("HTTP/1.1 200"));
  for (const char* wrong :
       {"Host: n0", "Authorization: abc123", "Authorization: Bearer", "Authorization: Bearer ",
        "Authorization: Bearer abc12", "Authorization: Bearer abc1234", "Authorization: Bearer ABC123",
        "Authorization: Basic abc123"}) {
    EXPECT_THAT(with(wrong), StartsWith("HTTP/1.1 401")) << wrong;
    EXPECT_THAT(with(wrong), HasSubstr("WWW-Authenticate: Bearer\r\n")) << wrong;
    EXPECT_THAT(with(wrong), Not(HasSubstr("holdfast_step"))) << wrong;
  }
}

}  // namespace
}  // namespace holdfast::test
