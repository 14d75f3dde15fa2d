#include "tools/simulate/cluster.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <variant>

#include "runtime/config/toml_tree.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::launch::fleet {
namespace {

// Setting is one key of a section that becomes a member of a T.
template <typename T>
struct Setting {
  enum class Kind : std::uint8_t { real, whole, flag, duration, steps, word };
  std::string_view key;
  Kind kind = Kind::real;
  double T::*number = nullptr;
  std::string T::*text = nullptr;
  double low = 0.0, high = 1e12;
  bool is_of_world = false;  // has to have a source
  bool is_required = false;
  std::string_view words = "";  // those that `text` may be; empty: any
  std::string_view help = "";
};
using Kind = Setting<Cluster>::Kind;
using FaultSettingKind = Setting<FaultKind>::Kind;

constexpr double most = 1e12, most_ranks = 1'048'576.0;

std::span<const Setting<Cluster>> cluster_settings() {
  using C = Cluster;
  static constexpr std::array settings = {
      Setting<C>{"name", Kind::word, nullptr, &C::name, 0, 0, false, false, "", "what the pages call it"},
      Setting<C>{"fleet.hosts", Kind::whole, &C::hosts, nullptr, 1, 65'536, false, true, "",
                 "hosts that the launch names"},
      Setting<C>{"fleet.ranks_per_host", Kind::whole, &C::ranks_per_host, nullptr, 1, 1024, false, false, "",
                 "slots of a host"},
      Setting<C>{"fleet.hosts_per_rack", Kind::whole, &C::hosts_per_rack, nullptr, 0, 65'536, true, false, "",
                 "hosts that fail together; 0: unknown"},
      Setting<C>{"fleet.lemon_share", Kind::real, &C::lemon_share, nullptr, 0, 0.5, true, false, "",
                 "share of hosts that fail more often"},
      Setting<C>{"fleet.lemon_factor", Kind::real, &C::lemon_factor, nullptr, 1, 1e4, true, false, "",
                 "how many times as often; the mean rate of all hosts stays"},
      Setting<C>{"fleet.rate_factor", Kind::real, &C::rate_factor, nullptr, 0, 1e6, false, false, "",
                 "all faults come so many times as often"},
      Setting<C>{"fleet.device", Kind::word, nullptr, &C::device, 0, 0, false, false, "",
                 "prior of failures before the first one: h100, cpu, ..."},
      Setting<C>{"parallel.data", Kind::whole, &C::data, nullptr, 1, 65'536, false, true, "",
                 "copies of the model"},
      Setting<C>{"parallel.tensor", Kind::whole, &C::tensor, nullptr, 1, 1024, false, false, "", ""},
      Setting<C>{"parallel.pipeline", Kind::whole, &C::pipeline, nullptr, 1, 1024, false, false, "", ""},
      Setting<C>{"parallel.lanes", Kind::whole, &C::lanes, nullptr, 0, 1e6, false, false, "",
                 "0: as parallel.data"},
      Setting<C>{"training.steps", Kind::whole, &C::steps, nullptr, 0, most, false, false, "",
                 "after which the run ends; 0: with the days"},
      Setting<C>{"elastic.spares", Kind::whole, &C::spares, nullptr, 0, most_ranks, false, false, "",
                 "ranks that wait for a coordinate"},
      Setting<C>{"elastic.min_data_parallel", Kind::whole, &C::min_data_parallel, nullptr, 1, 65'536, false,
                 false, "", "fewest copies"},
      Setting<C>{"elastic.in_place", Kind::flag, &C::in_place, nullptr, 0, 1, false, false, "",
                 "false: each lost rank costs a restart of all"},
      Setting<C>{"elastic.drain", Kind::flag, &C::drain, nullptr, 0, 1, false, false, "",
                 "whether a host with a notice is left before it goes"},
      Setting<C>{"elastic.grow", Kind::word, nullptr, &C::grow, 0, 0, false, false, "auto off",
                 "whether the run starts again for hosts that are back"},
      Setting<C>{"elastic.grow_after", Kind::duration, &C::grow_after_seconds, nullptr, 0, 86'400, false,
                 false, "", ""},
      Setting<C>{"elastic.settle_after", Kind::duration, &C::settle_after_seconds, nullptr, 0, 86'400, false,
                 false, "", ""},
      Setting<C>{"checkpoint.replicas", Kind::word, nullptr, &C::replicas, 0, 0, false, false, "auto on off",
                 "of RAM snapshots, on another host"},
      Setting<C>{"checkpoint.every_steps", Kind::steps, &C::every_steps, nullptr, 0, most, false, false, "",
                 "auto, 0 for none, or steps"},
      Setting<C>{"checkpoint.ram_every_steps", Kind::steps, &C::ram_every_steps, nullptr, 0, most, false,
                 false, "", "auto, 0 for none, or steps"},
      Setting<C>{"health.preset", Kind::word, nullptr, &C::preset, 0, 0, false, false, "off watch guard",
                 "guard: slow hosts are left"},
      Setting<C>{"hazard.mtbf_hours", Kind::real, &C::mtbf_hours, nullptr, 0, 1e9, false, false, "",
                 "of one device, by which the run saves; 0: the prior of fleet.device"},
      Setting<C>{"cost.per_rank_hour", Kind::real, &C::per_rank_hour, nullptr, 0, 1e9, true, false, "", ""},
      Setting<C>{"cost.currency", Kind::word, nullptr, &C::currency, 0, 0, false, false, "", ""},
      Setting<C>{"launch.wait_for_hosts_seconds", Kind::real, &C::wait_for_hosts_seconds, nullptr, 0, 1e9,
                 false, false, "", "--wait-for-hosts of the launch"},
      Setting<C>{"times.step_seconds", Kind::real, &C::step, nullptr, 1e-3, 1e5, true, true, "",
                 "of all ranks, without saves"},
      Setting<C>{"times.snapshot_seconds", Kind::real, &C::snapshot, nullptr, 0, 1e5, true, false, "",
                 "by which a RAM snapshot delays training"},
      Setting<C>{"times.snapshot_confirmed_seconds", Kind::real, &C::snapshot_confirmed, nullptr, 0, 1e5,
                 true, false, "", "from its begin until it counts"},
      Setting<C>{"times.save_seconds", Kind::real, &C::save, nullptr, 0, 1e5, true, false, "",
                 "by which a checkpoint delays training"},
      Setting<C>{"times.save_durable_seconds", Kind::real, &C::save_durable, nullptr, 0, 1e6, true, false, "",
                 "from its begin until it counts"},
      Setting<C>{"times.notice_process_seconds", Kind::real, &C::notice_process, nullptr, 0, 1e5, true, false,
                 "", "from a rank's death until the others know"},
      Setting<C>{"times.notice_host_seconds", Kind::real, &C::notice_host, nullptr, 0, 1e5, true, false, "",
                 "from a host's loss until the others know"},
      Setting<C>{"times.recover_seconds", Kind::real, &C::recover, nullptr, 0, 1e5, true, false, "",
                 "in place, from notice to the next step"},
      Setting<C>{"times.grow_seconds", Kind::real, &C::grow_time, nullptr, 0, 1e5, true, false, "",
                 "growth on one host: for which training stands still"},
      Setting<C>{"times.grow_wait_seconds", Kind::real, &C::grow_wait, nullptr, 0, 1e5, true, false, "",
                 "growth on one host: how long after the recovery"},
      Setting<C>{"times.start_seconds", Kind::real, &C::start, nullptr, 0, 1e6, true, false, "",
                 "the first start, to the first step"},
      Setting<C>{"times.restart_seconds", Kind::real, &C::restart, nullptr, 0, 1e6, true, false, "",
                 "any later one, with its state in RAM"},
      Setting<C>{"times.load_seconds", Kind::real, &C::load, nullptr, 0, 1e6, true, false, "",
                 "more where the state comes from the disk"},
      Setting<C>{"times.ask_seconds", Kind::real, &C::ask, nullptr, 0, 1e5, true, false, "",
                 "the hosts, before a start"},
      Setting<C>{"times.straggler_named_seconds", Kind::real, &C::straggler_named, nullptr, 0, 1e6, true,
                 false, "", "from slow to named"},
      Setting<C>{"times.person_seconds", Kind::real, &C::person, nullptr, 0, 1e7, true, false, "",
                 "until somebody launches again what has ended"},
  };
  return settings;
}

std::span<const Setting<FaultKind>> fault_settings() {
  using F = FaultKind;
  using K = FaultSettingKind;
  static constexpr std::array settings = {
      Setting<F>{"name", K::word, nullptr, &F::name, 0, 0, false, true, "", ""},
      Setting<F>{"unit", K::word, nullptr, &F::unit, 0, 0, false, false, "host rack run", "what fails"},
      Setting<F>{"timing", K::word, nullptr, &F::timing, 0, 0, false, false, "random regular",
                 "a Poisson process of each unit, or a clock"},
      Setting<F>{"events", K::real, &F::events, nullptr, 0, most, true, true, "", "were seen"},
      Setting<F>{"days", K::real, &F::days, nullptr, 1e-6, 1e7, true, true, "", "in so many days"},
      Setting<F>{"of", K::real, &F::of, nullptr, 1e-6, most, true, false, "", "of so many units"},
      Setting<F>{"notice_seconds", K::real, &F::notice_seconds, nullptr, 0, 1e6, true, false, "",
                 "until the run knows"},
      Setting<F>{"away_hours", K::real, &F::away_hours, nullptr, 0, 1e6, true, false, "",
                 "until the host is back or replaced: mean"},
      Setting<F>{"away_fixed", K::flag, &F::away_fixed, nullptr, 0, 1, false, false, "",
                 "true: always exactly so long"},
      Setting<F>{"warning_seconds", K::real, &F::warning_seconds, nullptr, 0, 1e6, true, false, "",
                 "from a notice to the loss"},
      Setting<F>{"factor", K::real, &F::factor, nullptr, 1, 1e3, true, false, "", "of the time of a step"},
      Setting<F>{"lasts_hours", K::real, &F::lasts_hours, nullptr, 0, 1e6, true, false, "",
                 "slow, or no storage: mean"},
      Setting<F>{"found_after_seconds", K::real, &F::found_after_seconds, nullptr, 0, 1e7, true, false, "",
                 "wrong numbers"},
      Setting<F>{"at_most", K::whole, &F::at_most, nullptr, 0, 1e9, false, false, "",
                 "so many of each unit; 0: no limit"},
      Setting<F>{"memory_lost", K::flag, &F::memory_lost, nullptr, 0, 1, false, false, "",
                 "true: RAM snapshots are lost, too, and with all ranks the launcher"},
      Setting<F>{"source", K::word, nullptr, &F::source, 0, 0, false, false, "",
                 "of all numbers of this fault"},
  };
  return settings;
}

constexpr std::array<std::string_view, fault_effects> effect_names = {
    "process", "host", "run", "notice", "slow", "corruption", "storage"};

std::vector<std::string_view> words_of(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    words.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

std::string shown(double value) {
  return std::abs(value) < 1e15 && !(std::abs(std::remainder(value, 1.0)) > 0.0)
             ? fmt::format("{:.0f}", value)
             : fmt::format("{:g}", value);
}

// Reader turns a tree into a Cluster, and keeps all that is wrong.
class Reader {
 public:
  explicit Reader(std::string name) : name_(std::move(name)) {}

  void read(const TomlValue& root);
  void read_override(const Override& given);
  Result<Cluster> finish();

 private:
  void wrong(const std::string& place, std::string message) {
    problems_.push_back({place, std::move(message)});
  }
  std::string place(const TomlPosition& at) const {
    return fmt::format("{}:{}:{}", name_, at.line, at.column);
  }
  void read_section(const TomlMember& section);
  void read_fault(const TomlValue& table);
  template <typename T>
  bool take(T& target, const Setting<T>& setting, const std::string& key, const TomlValue& given,
            const std::string& place, const std::string& section_source);
  template <typename T>
  bool take_number(T& target, const Setting<T>& setting, const std::string& key, const TomlValue& value,
                   const std::string& place);
  template <typename T>
  void unknown(const std::string& key, std::string_view prefix, std::span<const Setting<T>> settings,
               const std::string& place);
  void check();

  std::string name_;
  Cluster cluster_;
  std::set<std::string> set_;
  std::vector<ConfigProblem> problems_;
};

template <typename T>
bool Reader::take_number(T& target, const Setting<T>& setting, const std::string& key, const TomlValue& value,
                         const std::string& place) {
  using K = typename Setting<T>::Kind;
  std::optional<double> number;
  if (value.kind == TomlValue::Kind::integer) number = static_cast<double>(value.integer);
  if (value.kind == TomlValue::Kind::real) number = value.real;
  if (setting.kind == K::flag)
    number = value.kind == TomlValue::Kind::boolean ? std::optional(value.boolean ? 1.0 : 0.0) : std::nullopt;
  if (setting.kind == K::steps && value.kind == TomlValue::Kind::text && value.text == "auto") {
    target.*setting.number = 0.0;
    return true;
  }
  if (setting.kind == K::duration && value.kind == TomlValue::Kind::text) {
    const Result<std::int64_t> ms = parse_duration(value.text);
    if (ms.ok()) number = static_cast<double>(*ms) / 1e3;
  }
  const bool is_whole = setting.kind == K::whole || setting.kind == K::steps;
  const std::string wanted = setting.kind == K::flag    ? "true or false"
                             : setting.kind == K::steps ? "auto, or a whole number of steps"
                             : setting.kind == K::duration
                                 ? "a duration, as \"10s\""
                                 : fmt::format("a {}number from {} to {}", is_whole ? "whole " : "",
                                               shown(setting.low), shown(setting.high));
  if (!number.has_value() || !std::isfinite(*number) || *number < setting.low || *number > setting.high ||
      (is_whole && std::abs(std::remainder(*number, 1.0)) > 0.0)) {
    wrong(place, fmt::format("{} must be {}, got {}", key, wanted, describe(value)));
    return false;
  }
  const bool is_off = setting.kind == K::steps && !(*number > 0.0);
  target.*setting.number = is_off ? -1.0 : *number;
  return true;
}

// Takes `v` or { value = v, source = "..." }.
template <typename T>
bool Reader::take(T& target, const Setting<T>& setting, const std::string& key, const TomlValue& given,
                  const std::string& place, const std::string& section_source) {
  TomlValue value = given;
  std::string source = section_source;
  if (given.kind == TomlValue::Kind::table) {
    const auto is_known = [](const TomlMember& member) {
      return member.key == "value" || member.key == "source";
    };
    const auto found = std::ranges::find(given.members, "value", &TomlMember::key);
    const auto cited = std::ranges::find(given.members, "source", &TomlMember::key);
    const bool is_cited = cited == given.members.end() ||
                          (cited->value.kind == TomlValue::Kind::text && !cited->value.text.empty());
    if (found == given.members.end() || !is_cited || !std::ranges::all_of(given.members, is_known)) {
      wrong(place,
            fmt::format("{} must be a value, or {{ value = ..., source = \"where the number comes from\" }}",
                        key));
      return false;
    }
    value = found->value;
    if (cited != given.members.end()) source = cited->value.text;
  }
  if (setting.text != nullptr) {
    const std::vector<std::string_view> words = words_of(setting.words);
    const bool is_word = words.empty() || std::ranges::find(words, value.text) != words.end();
    if (value.kind != TomlValue::Kind::text || value.text.empty() || !is_word) {
      wrong(place, words.empty() ? fmt::format("{} must be a text, got {}", key, describe(value))
                                 : fmt::format("{} must be one of {}, got {}", key, fmt::join(words, ", "),
                                               describe(value)));
      return false;
    }
    target.*setting.text = value.text;
  } else if (!take_number(target, setting, key, value, place)) {
    return false;
  }
  set_.insert(key);
  cluster_.sources[key] = source;
  return true;
}

template <typename T>
void Reader::unknown(const std::string& key, std::string_view prefix, std::span<const Setting<T>> settings,
                     const std::string& place) {
  std::vector<std::string> names;
  for (const Setting<T>& setting : settings) names.push_back(std::string(prefix) + std::string(setting.key));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string near = closest(key, views);
  wrong(place, fmt::format("there is no key {}{}; holdfast simulate --help lists them", key,
                           near.empty() ? "" : fmt::format(", did you mean {}?", near)));
}

void Reader::read_section(const TomlMember& section) {
  std::string source;
  for (const TomlMember& member : section.value.members) {
    if (member.key == "source" && member.value.kind == TomlValue::Kind::text) source = member.value.text;
  }
  for (const TomlMember& member : section.value.members) {
    if (member.key == "source") continue;
    const std::string key = section.key + "." + member.key;
    const auto settings = cluster_settings();
    const auto found = std::ranges::find(settings, key, &Setting<Cluster>::key);
    if (found == settings.end()) {
      unknown(key, "", settings, place(member.position));
    } else {
      take(cluster_, *found, key, member.value, place(member.value.position), source);
    }
  }
}

void Reader::read_fault(const TomlValue& table) {
  FaultKind fault;
  const std::string at = place(table.position);
  if (table.kind != TomlValue::Kind::table) return wrong(at, "fault must be a list of tables: [[fault]]");
  for (const TomlMember& member : table.members) {
    if (member.key == "name" && member.value.kind == TomlValue::Kind::text) fault.name = member.value.text;
    if (member.key == "source" && member.value.kind == TomlValue::Kind::text)
      fault.source = member.value.text;
  }
  const std::string prefix = "fault." + fault.name + ".";
  for (const TomlMember& member : table.members) {
    if (member.key == "effect") {
      const auto effect = std::ranges::find(effect_names, std::string_view(member.value.text));
      if (effect == effect_names.end()) {
        wrong(place(member.value.position),
              fmt::format("{}effect must be one of {}, got {}", prefix, fmt::join(effect_names, ", "),
                          describe(member.value)));
      } else {
        fault.effect = static_cast<FaultEffect>(effect - effect_names.begin());
      }
      continue;
    }
    const auto settings = fault_settings();
    const auto found = std::ranges::find(settings, member.key, &Setting<FaultKind>::key);
    if (found == settings.end()) {
      unknown(prefix + member.key, prefix, settings, place(member.position));
    } else {
      take(fault, *found, prefix + member.key, member.value, place(member.value.position), fault.source);
    }
  }
  for (const Setting<FaultKind>& setting : fault_settings()) {
    if (setting.is_required && !set_.contains(prefix + std::string(setting.key)))
      wrong(at, fmt::format("{}{} is missing: a fault has a name, and so many events in so many days", prefix,
                            setting.key));
  }
  if (std::ranges::find(cluster_.faults, fault.name, &FaultKind::name) != cluster_.faults.end())
    wrong(at, fmt::format("there are two faults of the name {}", fault.name));
  cluster_.faults.push_back(std::move(fault));
}

void Reader::read(const TomlValue& root) {
  for (const TomlMember& member : root.members) {
    if (member.key == "name") {
      take(cluster_, cluster_settings().front(), "name", member.value, place(member.value.position), "");
    } else if (member.key == "fault" && member.value.kind == TomlValue::Kind::list) {
      for (const TomlValue& fault : member.value.elements) read_fault(fault);
    } else if (member.value.kind == TomlValue::Kind::table) {
      read_section(member);
    } else {
      unknown(member.key, "", cluster_settings(), place(member.position));
    }
  }
}

void Reader::read_override(const Override& given) {
  const std::string place = "--" + given.key;
  std::variant<TomlValue, TomlError> parsed = parse_toml("x = " + given.value);
  TomlValue value;
  value.kind = TomlValue::Kind::text;
  value.text = given.value;
  if (const TomlValue* root = std::get_if<TomlValue>(&parsed); root != nullptr && root->members.size() == 1)
    value = root->members[0].value;
  const auto settings = cluster_settings();
  if (const auto found = std::ranges::find(settings, given.key, &Setting<Cluster>::key);
      found != settings.end()) {
    take(cluster_, *found, given.key, value, place, "command line");
    return;
  }
  for (FaultKind& fault : cluster_.faults) {
    const std::string prefix = "fault." + fault.name + ".";
    if (!given.key.starts_with(prefix)) continue;
    const auto of_fault = fault_settings();
    const auto found = std::ranges::find(of_fault, given.key.substr(prefix.size()), &Setting<FaultKind>::key);
    if (found == of_fault.end() || found->key == "name") return unknown(given.key, prefix, of_fault, place);
    take(fault, *found, given.key, value, place, "command line");
    return;
  }
  unknown(given.key, "", settings, place);
}

// Checks what holds between keys.
void Reader::check() {
  for (const Setting<Cluster>& setting : cluster_settings()) {
    const std::string key(setting.key);
    if (setting.is_required && !set_.contains(key))
      wrong(name_,
            fmt::format("{} is missing: {}", key, setting.help.empty() ? "it has no default" : setting.help));
  }
  if (!problems_.empty()) return;
  const Cluster& c = cluster_;
  const double room = c.hosts * c.ranks_per_host;
  if (c.ranks_wanted() > room)
    wrong(name_, fmt::format("parallel.data x pipeline x tensor + elastic.spares = {} x {} x {} + {} = {} "
                             "ranks, and fleet.hosts x ranks_per_host = {} "
                             "x {} hosts hold {}: name more hosts, or fewer copies or spares",
                             c.data, c.pipeline, c.tensor, c.spares, c.ranks_wanted(), c.hosts,
                             c.ranks_per_host, room));
  if (std::fmod(c.ranks_per_host, c.tensor) > 0.0)
    wrong(
        name_,
        fmt::format(
            "parallel.tensor = {} does not divide fleet.ranks_per_host = {}: a tensor group is inside a host",
            c.tensor, c.ranks_per_host));
  if (c.min_data_parallel > c.data)
    wrong(name_, fmt::format("elastic.min_data_parallel = {} is above parallel.data = {}",
                             c.min_data_parallel, c.data));
  if (c.lanes > 0.0 && c.lanes < c.data)
    wrong(name_, fmt::format("parallel.lanes = {} is below parallel.data = {}", c.lanes, c.data));
  double rates = 0.0;
  for (const FaultKind& fault : c.faults) {
    rates += fault.rate_per_second();
    if (fault.unit == "rack" && c.hosts_per_rack < 1.0)
      wrong(name_, fmt::format("fault.{}.unit is rack, and fleet.hosts_per_rack is not given", fault.name));
    if ((fault.effect == FaultEffect::slow || fault.effect == FaultEffect::storage) &&
        fault.lasts_hours <= 0.0)
      wrong(name_, fmt::format("fault.{}.lasts_hours must be above 0: how long it is {}", fault.name,
                               fault.effect == FaultEffect::slow ? "slow" : "away"));
  }
  if (!c.faults.empty() && !(rates > 0.0))
    wrong(name_,
          "the rates of all faults sum to nothing: fault.*.events are 0. Give one that happens, or leave "
          "[[fault]] out for a fleet that never fails");
}

Result<Cluster> Reader::finish() {
  if (problems_.empty()) check();
  if (!problems_.empty()) return Error{ExitCode::config, format_problems(problems_)};
  for (const std::string& key : model_keys(cluster_)) {
    if (set_.contains(key) && cluster_.sources[key].empty()) cluster_.assumed.push_back(key);
  }
  if (cluster_.name.empty()) cluster_.name = name_;
  return std::move(cluster_);
}

template <typename T>
const Setting<T>& setting_of(std::span<const Setting<T>> settings, std::string_view key) {
  const auto found = std::ranges::find(settings, key, &Setting<T>::key);
  HF_CHECK(found != settings.end());
  return *found;
}

// Returns the member that a key names, in `cluster`.
double& number_at(Cluster& cluster, const std::string& key) {
  for (FaultKind& fault : cluster.faults) {
    const std::string prefix = "fault." + fault.name + ".";
    if (key.starts_with(prefix)) return fault.*setting_of(fault_settings(), key.substr(prefix.size())).number;
  }
  return cluster.*setting_of(cluster_settings(), key).number;
}

}  // namespace

std::string_view name_of(FaultEffect effect) {
  return effect_names[static_cast<std::size_t>(effect)];
}

std::int64_t us_of(double seconds) {
  return std::llround(seconds * 1e6);
}

std::vector<std::string> model_keys(const Cluster& cluster) {
  std::vector<std::string> keys;
  for (const Setting<Cluster>& setting : cluster_settings()) {
    if (setting.is_of_world) keys.emplace_back(setting.key);
  }
  for (const FaultKind& fault : cluster.faults) {
    for (const Setting<FaultKind>& setting : fault_settings()) {
      if (setting.is_of_world) keys.push_back(fmt::format("fault.{}.{}", fault.name, setting.key));
    }
  }
  return keys;
}

double number_of(const Cluster& cluster, const std::string& key) {
  Cluster copy = cluster;
  return number_at(copy, key);
}

void set_number(Cluster& cluster, const std::string& key, double value) {
  number_at(cluster, key) = value;
}

Result<Cluster> read_cluster(const std::string& text, const std::string& name,
                             const std::vector<Override>& overrides) {
  const std::variant<TomlValue, TomlError> parsed = parse_toml(text);
  if (const TomlError* error = std::get_if<TomlError>(&parsed); error != nullptr)
    return fail(ExitCode::config, "{}:{}:{}: {}", name, error->position.line, error->position.column,
                error->message);
  Reader reader(name);
  reader.read(std::get<TomlValue>(parsed));
  for (const Override& given : overrides) reader.read_override(given);
  return reader.finish();
}

Result<Cluster> load_cluster(Env& env, const std::string& path, const std::vector<Override>& overrides) {
  constexpr std::uint64_t most_bytes = 1 << 20;
  const Result<std::string> text = env.read_text_within(path, most_bytes);
  if (!text.ok())
    return fail_because(text.error(), ExitCode::config, "simulate: the cluster file cannot be read");
  return read_cluster(*text, path, overrides);
}

std::string cluster_keys_text() {
  std::string text;
  const auto line = [&](std::string_view key, std::string_view help) {
    text += fmt::format("  {:<34} {}\n", key, help);
  };
  for (const Setting<Cluster>& setting : cluster_settings())
    line(setting.key, setting.help.empty() ? "as in a run's config" : setting.help);
  line("[[fault]] effect", "process, host, run, notice, slow, corruption, storage");
  for (const Setting<FaultKind>& setting : fault_settings())
    line(fmt::format("[[fault]] {}", setting.key), setting.help);
  return text;
}

}  // namespace holdfast::launch::fleet
