#include "runtime/health/preflight_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/core/check.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/hardware_record.h"

namespace holdfast::health {
namespace {

using Bound = PreflightRule::Bound;

constexpr std::array<PreflightRule, 18> table = {{
    {"answers", "does not answer, or cannot be measured", Bound::none, 0.0, "",
     "mpirun would not start there"},
    {"program", "has another program than the host that asks", Bound::none, 0.0, "", "bits depend on it"},
    {"device", "has a device that does not get through the steps", Bound::none, 0.0, "", ""},
    {"bits-steady", "computes different bits from the same state", Bound::none, 0.0, "", "DESIGN, section 1"},
    {"bits", "computes other bits than devices of its kind", Bound::none, 0.0, "", "DESIGN, section 1"},
    {"memory", "changes what is in its memory", Bound::none, 0.0, "", ""},
    {"slow-fleet", "a step takes so many times the fleet's median", Bound::above, 1.15, "times",
     "operators of fleets"},
    {"slow-usual", "has less than this share of its own usual rate", Bound::below, 0.80, "of it",
     "operators of fleets: 80 % of its own baseline"},
    {"disk", "cannot write and read in the run directory", Bound::none, 0.0, "", ""},
    {"disk-rate", "writes more slowly than this", Bound::below, 5.0, "MB/s", "a checkpoint would take hours"},
    {"disk-read", "reads more slowly than this", Bound::below, 5.0, "MB/s", "a start would take hours"},
    {"disk-sync", "takes longer than this to make a small write durable", Bound::above, 2000.0, "ms",
     "status and manifests are written so"},
    {"clock", "has a clock that differs by more than this", Bound::above, 1000.0, "ms",
     "logs, leases and expiry compare clocks"},
    {"health", "has sensors or logs that ask for it to be left", Bound::none, 0.0, "", "docs/health.md"},
    {"links", "does not exchange messages with the others under mpirun", Bound::none, 0.0, "", ""},
    {"link-fleet", "has no link of this share of what the best links of hosts have in the median",
     Bound::below, 0.50, "of it", "hosts of one rack have fast links to each other, at least"},
    {"link-usual", "has a link with less than this share of its own usual rate", Bound::below, 0.80, "of it",
     "NVSentinel: 80 % of a link's own baseline"},
    {"link-loss", "has a link on which TCP loses this share", Bound::above, 0.01, "of it",
     "the rate of TCP falls with the root of the loss"},
}};

const PreflightRule& rule_of(std::string_view name) {
  const auto* const found = std::ranges::find(table, name, &PreflightRule::name);
  HF_CHECK(found != table.end(), "there is no such rule");
  return *found;
}

bool is_beyond(const PreflightRule& rule, double value) {
  return rule.bound == Bound::below ? value < rule.limit : value > rule.limit;
}

// KindOfTest is what devices must have in common to be compared.
using KindOfTest = std::pair<std::string, std::string>;  // kind of the device, test

bool has_rate(const DeviceTrial& device) {
  return device.trouble.empty() && std::isfinite(device.tokens_per_s) && device.tokens_per_s > 0.0;
}

struct Fleet {
  std::vector<double> rates = {};         // of all devices
  std::map<std::string, int> votes = {};  // by digest
  const BookedBits* recorded = nullptr;   // one vote more; null: there is none
  int voters = 0;                         // devices

  // Returns the median rate, of two the higher one: then the slower device is compared with the faster.
  double median_rate() const { return rates[rates.size() / 2]; }
  // Returns the right digest; empty: nobody knows it.
  std::string right() const {
    std::string best;
    int most = 0;
    bool is_tied = false;
    for (const auto& [digest, count] : votes) {
      is_tied = count == most || (count < most && is_tied);
      if (count > most) best = digest;
      most = std::max(most, count);
    }
    return is_tied ? std::string() : best;
  }
};

std::map<KindOfTest, Fleet> fleets_of(std::span<const TriedHost> hosts, const HostBook& book) {
  std::map<KindOfTest, Fleet> fleets;
  for (const TriedHost& host : hosts) {
    if (!host.trials.has_value()) continue;
    for (const DeviceTrial& device : host.trials->devices) {
      if (!device.trouble.empty()) continue;
      Fleet& fleet = fleets[{device.kind, host.trials->test}];
      if (has_rate(device)) fleet.rates.push_back(device.tokens_per_s);
      if (device.other_rounds > 0 || device.digest.empty()) continue;
      ++fleet.votes[device.digest];
      ++fleet.voters;
    }
  }
  for (auto& [key, fleet] : fleets) {
    std::ranges::sort(fleet.rates);
    fleet.recorded = book.find_bits(key.first, key.second);
    if (fleet.recorded != nullptr) ++fleet.votes[fleet.recorded->digest];
  }
  return fleets;
}

// HostJudge gathers the reasons of one host.
class PreflightJudge {
 public:
  PreflightJudge(const TriedHost& host, const std::map<KindOfTest, Fleet>& fleets, const HostBook& book)
      : host_(host), fleets_(fleets), book_(book), verdict_{.host = host.name} {}

  HostVerdict judge(const std::string& version, const std::string& program) {
    if (!host_.trials.has_value()) {
      add("answers", "{}", host_.silence);
      return std::move(verdict_);
    }
    const HostTrials& trials = *host_.trials;
    if (trials.program != program)
      add("program", "it has another program: {} ({}), and the host that asks has {} ({}); install the same",
          printable(trials.version), printable(trials.program.substr(0, 8)), version, program.substr(0, 8));
    for (const DeviceTrial& device : trials.devices) judge_numbers(device);
    for (const DeviceTrial& device : trials.devices) judge_rate(device);
    judge_disk(trials.disk);
    judge_clock(trials);
    for (const std::string& finding : trials.findings) add("health", "{}", printable(finding));
    return std::move(verdict_);
  }

 private:
  template <typename... Values>
  void add(std::string_view rule, fmt::format_string<Values...> format, Values&&... values) {
    verdict_.reasons.push_back(
        {.rule = rule_of(rule).name, .sentence = fmt::format(format, std::forward<Values>(values)...)});
  }

  static std::string name_of(const DeviceTrial& device) {
    return device.device == "cpu" ? std::string("its processors") : printable(device.device);
  }
  const Fleet& fleet_of(const DeviceTrial& device) const {
    return fleets_.at({device.kind, host_.trials->test});
  }

  void judge_numbers(const DeviceTrial& device) {
    if (!device.trouble.empty()) return add("device", "{}: {}", name_of(device), printable(device.trouble));
    if (device.wrong_bytes > 0)
      add("memory", "{}: {} of {} bytes of memory did not hold what was written", name_of(device),
          device.wrong_bytes, device.memory_bytes);
    if (device.other_rounds > 0)
      return add("bits-steady",
                 "{} computed wrong numbers: {} of {} rounds from the same state ended with other bits",
                 name_of(device), device.other_rounds, device.rounds);
    const Fleet& fleet = fleet_of(device);
    const std::string right = fleet.right();
    if (device.digest == right) return;
    if (right.empty() && fleet.voters == 1 && fleet.recorded != nullptr)
      return add("bits", "{} computed other bits than were recorded on {}: {}, and then {}", name_of(device),
                 time_text(fleet.recorded->time_us), printable(device.digest.substr(0, 8)),
                 printable(fleet.recorded->digest.substr(0, 8)));
    if (right.empty())
      return add("bits",
                 "{} computed {}, and as many devices of its kind computed other bits: nobody knows who is "
                 "right; preflight a third host with them",
                 name_of(device), printable(device.digest.substr(0, 8)));
    add("bits", "{} computed wrong numbers: {}, where {} of {} {} {}", name_of(device),
        printable(device.digest.substr(0, 8)), fleet.votes.at(right) - (is_recorded(fleet, right) ? 1 : 0),
        fleet.voters, is_recorded(fleet, right) ? "and the record of earlier preflights have" : "have",
        printable(right.substr(0, 8)));
  }
  static bool is_recorded(const Fleet& fleet, const std::string& digest) {
    return fleet.recorded != nullptr && fleet.recorded->digest == digest;
  }

  void judge_rate(const DeviceTrial& device) {
    double of_fleet = 0.0, of_usual = 0.0;
    if (has_rate(device)) {
      const Fleet& fleet = fleet_of(device);
      if (fleet.rates.size() > 1) of_fleet = device.tokens_per_s / fleet.median_rate();
      const std::optional<double> usual =
          book_.usual_rate(host_.name, device.device, device.kind, host_.trials->test);
      if (usual.has_value()) of_usual = device.tokens_per_s / *usual;
      const PreflightRule &slow_fleet = rule_of("slow-fleet"), &slow_usual = rule_of("slow-usual");
      if (of_fleet > 0.0 && is_beyond(slow_fleet, 1.0 / of_fleet))
        add(slow_fleet.name,
            "{}: a step takes {:.2f} times the fleet's median ({:.0f} tokens/s, and {:.0f}); the bound is "
            "{:.2f}",
            name_of(device), 1.0 / of_fleet, device.tokens_per_s, fleet.median_rate(), slow_fleet.limit);
      if (of_usual > 0.0 && is_beyond(slow_usual, of_usual))
        add(slow_usual.name,
            "{}: {:.0f} tokens/s are {:.0f} % of its own usual {:.0f}; the bound is {:.0f} %",
            name_of(device), device.tokens_per_s, 100.0 * of_usual, *usual, 100.0 * slow_usual.limit);
    }
    verdict_.of_fleet.push_back(of_fleet);
    verdict_.of_usual.push_back(of_usual);
  }

  void judge_disk(const DiskTrial& disk) {
    if (!disk.trouble.empty())
      return add("disk", "{} cannot be written and read: {}", printable(disk.directory),
                 printable(disk.trouble));
    const std::array<std::pair<std::string_view, double>, 3> values = {
        {{"disk-rate", disk.write_MB_per_s}, {"disk-read", disk.read_MB_per_s}, {"disk-sync", disk.sync_ms}}};
    for (const auto& [name, value] : values) {
      const PreflightRule& rule = rule_of(name);
      if (is_beyond(rule, value))
        add(name, "{} {}: {:.3g} {}; the bound is {:.3g} {}", printable(disk.directory), rule.says, value,
            rule.unit, rule.limit, rule.unit);
    }
  }

  void judge_clock(const HostTrials& trials) {
    const std::int64_t skew_us =
        proven_clock_skew_us(host_.asked_us, trials.begun_us, trials.ended_us, host_.answered_us);
    const double skew_ms = static_cast<double>(skew_us) / 1000.0;
    verdict_.clock_ms = skew_ms;
    const PreflightRule& rule = rule_of("clock");
    if (is_beyond(rule, std::abs(skew_ms)))
      add(rule.name, "its clock is {} by at least {}; the bound is {:.0f} ms. Have NTP set it",
          skew_ms > 0 ? "ahead" : "behind", format_seconds(std::abs(skew_ms) / 1000.0), rule.limit);
  }

  const TriedHost& host_;
  const std::map<KindOfTest, Fleet>& fleets_;
  const HostBook& book_;
  HostVerdict verdict_;
};

}  // namespace

std::span<const PreflightRule> preflight_rules() {
  return table;
}

std::int64_t proven_clock_skew_us(std::int64_t asked_us, std::int64_t begun_us, std::int64_t ended_us,
                                  std::int64_t answered_us) {
  const std::int64_t most = begun_us - asked_us, least = ended_us - answered_us;  // it is between them
  if (most < 0) return most;
  return std::max<std::int64_t>(least, 0);
}

std::vector<HostVerdict> judge_hosts(std::span<const TriedHost> hosts, const HostBook& book,
                                     const std::string& version, const std::string& program) {
  const std::map<KindOfTest, Fleet> fleets = fleets_of(hosts, book);
  std::vector<HostVerdict> verdicts;
  for (const TriedHost& host : hosts)
    verdicts.push_back(PreflightJudge(host, fleets, book).judge(version, program));
  return verdicts;
}

namespace {

// Compares the best link of each host with the best ones of the others: a host has few fast links where it shares a rack with few,
// and a host with a bad card has none.
void judge_best_links(std::span<const LinkTrial> links, std::span<HostVerdict> verdicts) {
  constexpr std::size_t min_fleet = 3;
  std::map<std::size_t, double> best;  // by host
  for (const LinkTrial& link : links) {
    for (const std::size_t host : {link.from, link.to}) best[host] = std::max(best[host], link.MB_per_s);
  }
  if (best.size() < min_fleet) return;
  std::vector<double> rates;
  for (const auto& [host, rate] : best) rates.push_back(rate);
  std::ranges::sort(rates);
  const double median = rates[rates.size() / 2];
  const PreflightRule& rule = rule_of("link-fleet");
  for (const auto& [host, rate] : best) {
    if (!is_beyond(rule, rate / median)) continue;
    verdicts[host].reasons.push_back(
        {.rule = rule.name,
         .sentence =
             fmt::format("its best link has {:.0f} MB/s, {:.0f} % of the {:.0f} that the best links of hosts "
                         "have in the median; the bound is {:.0f} %",
                         rate, 100.0 * rate / median, median, 100.0 * rule.limit)});
  }
}

// Adds a reason for each link of which `trouble` says something. Most links of a host are bad: it is to blame; else both ends are.
template <typename Trouble>
void judge_each_link(std::span<const LinkTrial> links, std::span<HostVerdict> verdicts, std::string_view rule,
                     const Trouble& trouble) {
  std::vector<std::size_t> all(verdicts.size()), bad(verdicts.size());
  for (const LinkTrial& link : links) {
    for (const std::size_t host : {link.from, link.to}) {
      ++all[host];
      bad[host] += trouble(link).empty() ? 0 : 1;
    }
  }
  const auto is_to_blame = [&](std::size_t host) { return 2 * bad[host] > all[host]; };
  for (const LinkTrial& link : links) {
    const std::string what = trouble(link);
    const bool nobody = !is_to_blame(link.from) && !is_to_blame(link.to);
    for (const std::size_t host : {link.from, link.to}) {
      if (what.empty() || (!nobody && !is_to_blame(host))) continue;
      verdicts[host].reasons.push_back(
          {.rule = rule,
           .sentence = fmt::format("the link between {} and {} {}", verdicts[link.from].host,
                                   verdicts[link.to].host, what)});
    }
  }
}

}  // namespace

void judge_links(std::span<const LinkTrial> links, const HostBook& book, std::span<HostVerdict> verdicts) {
  judge_best_links(links, verdicts);
  const PreflightRule &usual_rule = rule_of("link-usual"), &loss_rule = rule_of("link-loss");
  judge_each_link(links, verdicts, usual_rule.name, [&](const LinkTrial& link) {
    const double usual = book.usual_link_rate(verdicts[link.from].host, verdicts[link.to].host).value_or(0.0);
    if (usual <= 0.0 || !is_beyond(usual_rule, link.MB_per_s / usual)) return std::string();
    return fmt::format("has {:.0f} MB/s, {:.0f} % of its own usual {:.0f}; the bound is {:.0f} %",
                       link.MB_per_s, 100.0 * link.MB_per_s / usual, usual, 100.0 * usual_rule.limit);
  });
  judge_each_link(links, verdicts, loss_rule.name, [&](const LinkTrial& link) {
    const double lost = link.lost_share.value_or(0.0);
    if (!is_beyond(loss_rule, lost)) return std::string();
    return fmt::format("lost {:.1f} % of what TCP sent; the bound is {:.0f} %", 100.0 * lost,
                       100.0 * loss_rule.limit);
  });
}

void note_verdicts(HostBook& book, std::span<const TriedHost> hosts, std::span<const HostVerdict> verdicts,
                   std::span<const LinkTrial> links, std::int64_t now_us) {
  for (const LinkTrial& link : links) {
    if (verdicts[link.from].is_fit() && verdicts[link.to].is_fit())
      book.add_link(hosts[link.from].name, hosts[link.to].name, link.MB_per_s);
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    BookedHost& entry = book.entry(hosts[i].name);
    entry.checked_us = now_us;
    entry.is_fit = verdicts[i].is_fit();
    entry.reasons.clear();
    for (const PreflightReason& reason : verdicts[i].reasons) entry.reasons.push_back(reason.sentence);
    if (!entry.is_fit) continue;
    for (const DeviceTrial& device : hosts[i].trials->devices) {
      if (has_rate(device))
        book.add_trial(hosts[i].name, {.time_us = now_us,
                                       .device = device.device,
                                       .kind = device.kind,
                                       .test = hosts[i].trials->test,
                                       .tokens_per_s = device.tokens_per_s});
      book.set_bits(
          {.kind = device.kind, .test = hosts[i].trials->test, .digest = device.digest, .time_us = now_us});
    }
  }
}

}  // namespace holdfast::health
