#include "runtime/metrics/notify_mind.h"

#include <algorithm>
#include <utility>

#include "runtime/os/foreign_text.h"
#include "runtime/run/event_reading.h"

namespace holdfast::metrics {
namespace {

// Returns the text as one line of bounded length.
std::string line_of(std::string_view text) {
  constexpr std::size_t bytes_max = 2000;
  std::string line = printable(text);
  for (char& each : line) {
    if (each == '\n' || each == '\t') each = ' ';
  }
  std::size_t bytes = std::min(line.size(), bytes_max);
  const auto is_inside_character = [&] { return (static_cast<unsigned char>(line[bytes]) & 0xC0U) == 0x80U; };
  while (bytes < line.size() && bytes > 0 && is_inside_character()) --bytes;
  line.resize(bytes);
  return line;
}

}  // namespace

// Returns whether the hour has room for one more. What was not used comes back evenly.
bool NotifyMind::may_tell(std::int64_t now_ns) {
  constexpr double hour_ns = 3600e9;
  const auto most = static_cast<double>(settings_.at_most);
  const double back = most * static_cast<double>(now_ns - filled_ns_) / hour_ns;
  tokens_ = tokens_ < 0.0 ? most : std::min(most, tokens_ + std::max(back, 0.0));
  filled_ns_ = now_ns;
  if (tokens_ < 1.0) return false;
  tokens_ -= 1.0;
  return true;
}

std::optional<Notification> NotifyMind::take(const Json& event, std::int64_t now_ns) {
  const std::string_view kind = event_kind(event);
  if (kind == StartEvent::kind) run_ = text_of(event, "run");
  if (kind == StartEvent::kind || kind == StepEvent::kind)
    has_ended_ = false;  // what ended before was another start
  if (kind == StepEvent::kind) {
    newest_step_ = event_step(event).value_or(newest_step_);
    made_steps_ = true;
    return std::nullopt;
  }
  std::optional<News> news = news_of(event);
  if (!news.has_value()) return std::nullopt;
  if (kind == FinishEvent::kind)
    return settings_.ends_with_start ? std::optional(tell_end(*std::move(news))) : std::nullopt;
  if (!news->episode.empty()) {
    const bool is_told = episodes_.contains(news->episode);
    if (is_told && !news->is_over) return std::nullopt;
    constexpr std::size_t episodes_max = 1000;
    if (episodes_.size() >= episodes_max) episodes_.clear();
    if (news->is_over) {
      episodes_.erase(news->episode);
    } else {
      episodes_.insert(news->episode);
    }
  }
  if (!may_tell(now_ns)) {
    ++left_out_;
    return std::nullopt;
  }
  return Notification{.news = *std::move(news), .left_out = std::exchange(left_out_, 0)};
}

std::optional<Notification> NotifyMind::beat(std::int64_t now_ns, std::int64_t now_us) {
  if (settings_.heartbeat_ms == 0 || !made_steps_ || has_ended_) return std::nullopt;
  if (beat_ns_.has_value() && now_ns - *beat_ns_ < settings_.heartbeat_ms * 1'000'000) return std::nullopt;
  beat_ns_ = now_ns;
  made_steps_ = false;
  return Notification{.news = {.kind = heartbeat_kind,
                               .sentence = "the run makes steps",
                               .step = newest_step_,
                               .time_us = now_us},
                      .left_out = std::exchange(left_out_, 0)};
}

Notification NotifyMind::tell_end(News news) {
  has_ended_ = true;
  if (news.step == 0) news.step = newest_step_;
  return {.news = std::move(news), .left_out = std::exchange(left_out_, 0)};
}

void NotifyMind::leave_out(const Notification& notice) {
  left_out_ += notice.left_out + (notice.news.kind == heartbeat_kind ? 0 : 1);
}

std::map<std::string, std::string> variables_of(const Notification& notice, const std::string& run,
                                                const std::string& directory) {
  const News& news = notice.news;
  const bool is_end = !news.state.empty();
  return {{"HOLDFAST_EVENT", news.kind},
          {"HOLDFAST_SENTENCE", line_of(news.sentence)},
          {"HOLDFAST_RUN", run},
          {"HOLDFAST_DIRECTORY", directory},
          {"HOLDFAST_STEP", std::to_string(news.step)},
          {"HOLDFAST_TIME", std::to_string(news.time_us / 1'000'000)},
          {"HOLDFAST_HOST", printable(news.host)},
          {"HOLDFAST_RANK", news.rank},
          {"HOLDFAST_CAUSE", news.cause},
          {"HOLDFAST_STATE", news.state},
          {"HOLDFAST_EXIT_CODE", is_end ? std::to_string(news.exit_code) : ""},
          {"HOLDFAST_LEFT_OUT", std::to_string(notice.left_out)}};
}

}  // namespace holdfast::metrics
