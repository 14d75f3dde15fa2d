#include "runtime/run/host_book.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "runtime/core/record.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/run/hardware_record.h"

namespace holdfast::run {
namespace {

constexpr std::int64_t book_lock_ms = 10'000;

bool is_known_host(const BookedHost& host) {
  return may_be_host_name(host.host) && std::ranges::all_of(host.trials, [](const HostTrial& trial) {
           return std::isfinite(trial.tokens_per_s) && trial.tokens_per_s > 0.0;
         });
}

bool is_known_link(const BookedLink& link) {
  return std::ranges::all_of(link.MB_per_s, [](double rate) { return std::isfinite(rate) && rate > 0.0; });
}

auto find_link(auto& links, const std::string& host, const std::string& other) {
  return std::ranges::find_if(links, [&](const BookedLink& link) {
    return (link.from == host && link.to == other) || (link.from == other && link.to == host);
  });
}

// Returns the median.
std::optional<double> usual_of(std::vector<double> rates) {
  if (rates.empty()) return std::nullopt;
  std::ranges::sort(rates);
  return rates[rates.size() / 2];
}

}  // namespace

const BookedHost* HostBook::find(std::string_view host) const {
  const auto found = std::ranges::find(hosts, host, &BookedHost::host);
  return found == hosts.end() ? nullptr : &*found;
}

BookedHost& HostBook::entry(const std::string& host) {
  const auto at = std::ranges::lower_bound(hosts, host, {}, &BookedHost::host);
  if (at != hosts.end() && at->host == host) return *at;
  return *hosts.insert(at, {.host = host});
}

const BookedBits* HostBook::find_bits(std::string_view kind, std::string_view test) const {
  const auto found = std::ranges::find_if(
      bits, [&](const BookedBits& each) { return each.kind == kind && each.test == test; });
  return found == bits.end() ? nullptr : &*found;
}

void HostBook::set_bits(const BookedBits& known) {
  std::erase_if(bits,
                [&](const BookedBits& each) { return each.kind == known.kind && each.test == known.test; });
  bits.push_back(known);
  if (bits.size() > bits_max) bits.erase(bits.begin());
}

void HostBook::add_trial(const std::string& host, const HostTrial& trial) {
  std::vector<HostTrial>& trials = entry(host).trials;
  trials.push_back(trial);
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> counts;
  std::vector<HostTrial> kept;
  for (auto each = trials.rbegin(); each != trials.rend(); ++each) {
    const auto key = std::make_tuple(each->device, each->kind, each->test);
    if (!counts.contains(key) && counts.size() == devices_max) continue;
    if (++counts[key] <= trials_max) kept.push_back(*each);
  }
  trials.assign(kept.rbegin(), kept.rend());
}

std::optional<double> HostBook::usual_rate(std::string_view host, std::string_view device,
                                           std::string_view kind, std::string_view test) const {
  const BookedHost* known = find(host);
  if (known == nullptr) return std::nullopt;
  std::vector<double> rates;
  for (const HostTrial& trial : known->trials) {
    if (trial.device == device && trial.kind == kind && trial.test == test)
      rates.push_back(trial.tokens_per_s);
  }
  return usual_of(std::move(rates));
}

void HostBook::add_link(const std::string& host, const std::string& other, double MB_per_s) {
  const auto& [from, to] = std::minmax(host, other);
  BookedLink link{.from = from, .to = to};
  const auto known = find_link(links, host, other);
  if (known != links.end()) {
    link = *known;
    links.erase(known);
  }
  link.MB_per_s.push_back(MB_per_s);
  if (link.MB_per_s.size() > trials_max) link.MB_per_s.erase(link.MB_per_s.begin());
  links.push_back(std::move(link));
  if (links.size() > links_max) links.erase(links.begin());
}

std::optional<double> HostBook::usual_link_rate(const std::string& host, const std::string& other) const {
  const auto known = find_link(links, host, other);
  return known == links.end() ? std::nullopt : usual_of(known->MB_per_s);
}

void HostBook::forget_expired(std::int64_t now_us) {
  for (BookedHost& host : hosts) {
    if (host.taint.has_value() && host.taint->until_us != 0 && host.taint->until_us <= now_us)
      host.taint.reset();
  }
  std::erase_if(hosts, [](const BookedHost& host) {
    return !host.taint.has_value() && host.checked_us == 0 && host.trials.empty();
  });
}

std::map<std::string, std::string> HostBook::tainted(std::int64_t now_us) const {
  HostBook current = *this;
  current.forget_expired(now_us);
  std::map<std::string, std::string> sentences;
  for (const BookedHost& host : current.hosts) {
    if (!host.taint.has_value()) continue;
    const std::string until =
        host.taint->until_us == 0 ? "" : fmt::format(" until {}", time_text(host.taint->until_us));
    const std::string reason = host.taint->reason.empty() ? "" : ": " + printable(host.taint->reason);
    sentences.emplace(host.host, fmt::format("host {} is tainted{}{}; holdfast untaint {} ends that",
                                             host.host, until, reason, host.host));
  }
  return sentences;
}

std::string HostBook::text() const {
  return record_to_text(*this) + "\n";
}

Result<HostBook> HostBook::from_text(std::string_view text) {
  Result<HostBook> book = record_from_text<HostBook>(text);
  if (!book.ok()) return fail(ExitCode::config, "it is damaged ({})", book.error().message);
  if (book->version != newest_version)
    return fail(ExitCode::config, "it has version {} of the format, and this program knows version {} alone",
                book->version, newest_version);
  if (!std::ranges::all_of(book->hosts, is_known_host) || !std::ranges::all_of(book->links, is_known_link))
    return fail(ExitCode::config, "it is damaged (it has a host, or a rate, that is none)");
  std::ranges::sort(book->hosts, {}, &BookedHost::host);
  return book;
}

Result<std::string> host_book_path(Env& env) {
  const std::string state = env.variable("XDG_STATE_HOME");
  if (state.starts_with('/')) return state + "/holdfast/hosts.json";
  const std::string home = home_of_user();
  if (home.empty()) {
    return fail(ExitCode::config,
                "this user has no home directory for what is known about hosts; name a directory for it with "
                "XDG_STATE_HOME");
  }
  return home + "/.local/state/holdfast/hosts.json";
}

Result<HostBook> read_host_book(Env& env) {
  HF_TRY(const std::string path, host_book_path(env));
  HF_TRY(const FileStatus status, env.status(path));
  if (!status.exists) return HostBook{};
  HF_TRY(const std::string text, read_text_within(env, path, text_limits::hardware_record));
  Result<HostBook> book = HostBook::from_text(text);
  if (book.ok()) return book;
  return fail(ExitCode::config,
              "{}, what is known about hosts, cannot be used: {}; use the program that wrote it, or move the "
              "file away, which ends all taints",
              path, book.error().message);
}

Result<void> change_host_book(Env& env, const std::function<Result<void>(HostBook& book)>& change) {
  HF_TRY(const std::string path, host_book_path(env));
  HF_TRY_VOID(env.make_directories(path.substr(0, path.rfind('/'))));
  HF_TRY(const std::unique_ptr<FileLock> lock, env.lock(path + ".lock", "", book_lock_ms));
  HF_TRY(HostBook book, read_host_book(env));
  HF_TRY_VOID(change(book));
  book.forget_expired(env.wall_time_us());
  return env.replace_text(path, book.text());
}

}  // namespace holdfast::run
