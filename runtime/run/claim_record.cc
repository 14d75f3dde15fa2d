#include "runtime/run/claim_record.h"

#include <fmt/core.h>

#include <charconv>

namespace holdfast::run {
namespace {

constexpr std::string_view host_id_word = "host_id ", epoch_word = "epoch ", id_word = "claim ",
                           renewals_word = "renewals ";

std::uint64_t number_of(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Takes the value of a line that begins with `word`; the first one counts, as an older text may stand behind
// it for a moment.
bool take_value(std::string_view line, std::string_view word, std::string_view& value) {
  if (!line.starts_with(word) || !value.empty()) return false;
  value = line.substr(word.size());
  return true;
}

}  // namespace

std::string to_text(const ClaimRecord& record) {
  return fmt::format("{}\n{}{}\n{}{}\n{}{}\n{}{:020}\n", record.holder, host_id_word, record.host_id,
                     epoch_word, record.epoch, id_word, record.id, renewals_word, record.renewals);
}

ClaimRecord claim_record_of(std::string_view text) {
  std::string_view holder, host_id, epoch, id, renewals;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (holder.empty()) {
      holder = line;
      continue;
    }
    static_cast<void>(take_value(line, host_id_word, host_id) || take_value(line, epoch_word, epoch) ||
                      take_value(line, id_word, id) || take_value(line, renewals_word, renewals));
  }
  return {.holder = std::string(holder),
          .host_id = std::string(host_id),
          .epoch = number_of(epoch),
          .id = std::string(id),
          .renewals = number_of(renewals)};
}

bool is_of_another_host(const ClaimRecord& record, const std::string& own_host_id) {
  return !record.host_id.empty() && record.host_id != own_host_id;
}

HolderWatch::Answer HolderWatch::look(const ClaimRecord& record, std::int64_t now_ns) {
  if (!has_seen_ || record != seen_) {
    renewed_ = has_seen_ && record.id == seen_.id;
    has_seen_ = true;
    seen_ = record;
    changed_ns_ = now_ns;
  }
  const bool patience_is_over = now_ns - begin_ns_ >= ns(terms_.patience_ms);
  if (!is_of_another_host(record, own_host_id_)) return patience_is_over ? Answer::refuse : Answer::wait;
  const std::int64_t quiet_ns = now_ns - changed_ns_;
  if (quiet_ns >= ns(terms_.lease_ms)) return Answer::take_over;
  const bool lives = renewed_ && quiet_ns < ns(terms_.alive_ms);
  return patience_is_over && lives ? Answer::refuse : Answer::wait;
}

}  // namespace holdfast::run
