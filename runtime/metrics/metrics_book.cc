#include "runtime/metrics/metrics_book.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/run/event_reading.h"
#include "runtime/run/run_directory.h"

namespace holdfast::metrics {
namespace {

// Things of one kind that a run may name: more than anybody looks at.
constexpr std::size_t series_max = 1000;
constexpr std::string_view prefix = "holdfast_";
constexpr std::uint64_t state_version = 2;  // since then times of ranks and the highest step are in it

// Fields that tell things of one kind from each other.
struct KindLabels {
  std::string_view kind;
  std::array<std::string_view, 4> fields;
};
constexpr std::array kind_labels = std::to_array<KindLabels>({
    {"interval", {"tier"}},
    {"fault", {"what", "cause"}},
    {"recovery", {"reason", "resumed_from"}},
    {"verdict", {"kind", "action"}},
    {"straggler", {"rank", "host", "of", "peer"}},
    {"health", {"host", "rule", "action"}},
    {"exclude", {"host"}},
    {"drain", {"host"}},
    {"kernel_left_out", {"op", "kernel", "how"}},
});

constexpr auto causes_to_come = std::to_array<std::pair<const char*, FaultCause>>({
    {FaultEvent::rank, FaultCause::rank_died},
    {FaultEvent::rank, FaultCause::host_lost},
    {FaultEvent::rank, FaultCause::rank_evicted},
    {FaultEvent::rank, FaultCause::gpu_failed},
    {FaultEvent::rank, FaultCause::rank_hangs},
    {FaultEvent::spare, FaultCause::spare_died},
    {FaultEvent::growth, FaultCause::growth_failed},
    {FaultEvent::save, FaultCause::save_failed},
    {FaultEvent::replica, FaultCause::replica_failed},
    {FaultEvent::upload, FaultCause::upload_failed},
    {"", FaultCause::start_ended},
    {"", FaultCause::host_lost},
    {"", FaultCause::rank_hangs},
});

// Escapes what labels and help texts must not have.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\\' || letter == '"') result += '\\';
    if (letter == '\n') {
      result += "\\n";
    } else {
      result += letter;
    }
  }
  return result;
}

using Labels = std::vector<std::pair<std::string_view, std::string>>;
std::string text_of_labels(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels)
    if (!value.empty()) text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, escaped(value));
  return text.empty() ? text : "{" + text + "}";
}

// Returns the labels with that of the run before them.
std::string with_run(const std::string& run, const std::string& labels) {
  if (run.empty()) return labels;
  const std::string own = fmt::format("run=\"{}\"", escaped(run));
  return labels.empty() ? "{" + own + "}" : "{" + own + "," + labels.substr(1);
}

// Returns the text of a field for a label: numbers are ranks.
std::string label_of(const Json& event, std::string_view field) {
  const auto found = event.find(field);
  if (found == event.end()) return "";
  return found->is_number_unsigned() ? std::to_string(found->get<std::uint64_t>()) : text_of(event, field);
}

std::string events_of(std::string_view kind) {
  return fmt::format("Events of the kind {}", kind);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

MetricsBook::MetricsBook() {
  for (const EventKind& schema : event_schema()) {
    Kind& kind = kinds_[std::string(schema.name)];
    const bool is_step = schema.name == StepEvent::kind;
    for (const EventField& field : schema.fields) {
      if (field.type != "integer" && field.type != "number" && field.type != "boolean") continue;
      const bool is_time = field.unit == "ms" && field.name.ends_with("_ms");
      const std::string name = is_time
                                   ? fmt::format("{}_seconds", field.name.substr(0, field.name.size() - 3))
                                   : std::string(field.name);
      kind.numbers.push_back(
          {.field = std::string(field.name),
           .metric = is_step ? fmt::format("{}{}", prefix, name)
                             : fmt::format("{}last_{}_{}", prefix, schema.name, name),
           .sum = is_time && !is_step ? fmt::format("{}{}_{}", prefix, schema.name, name) : "",
           .help = fmt::format("{} ({}: {})", field.meaning, schema.name, schema.meaning),
           .scale = is_time ? 1e-3 : 1.0,
           .may_be_null = field.type == "number"});
    }
    const auto labels = std::ranges::find(kind_labels, schema.name, &KindLabels::kind);
    if (labels == kind_labels.end()) continue;
    for (const std::string_view label : labels->fields) {
      if (label.empty()) continue;
      kind.labels.emplace_back(label);
      std::erase_if(kind.numbers, [&](const Number& number) { return number.field == label; });
    }
  }
  begin_anew();
}

void MetricsBook::begin_anew() {
  incidents_ = std::make_unique<IncidentReader>(/*keeps_spans=*/false);
  families_.clear();
  // Faults that have not come are 0, so that the first one is an increase.
  for (const auto& [what, cause] : causes_to_come)
    put(families_, "holdfast_fault_events", Type::counter, events_of(FaultEvent::kind),
        text_of_labels({{"what", what}, {"cause", std::string(name_of(cause))}}), 0);
}

Json MetricsBook::state() const {
  Json families = Json::object();
  for (const auto& [name, family] : families_) {
    Json values = Json::object();
    for (const auto& [labels, value] : family.values)
      values[labels] = std::isfinite(value) ? Json(value) : Json();
    families[name] = {
        {"counts", family.type == Type::counter}, {"help", family.help}, {"values", std::move(values)}};
  }
  Json sources = Json::array();
  for (const EventSource& source : sources_)
    sources.push_back({{"path", source.path}, {"samples", source.samples}, {"weight", source.weight}});
  return {{"version", state_version},
          {"run", run_},
          {"families", std::move(families)},
          {"sources", std::move(sources)},
          {"incidents", incidents_->state()}};
}

bool MetricsBook::knows(const Json& state) {
  return count_of(state, "version") == state_version;
}

void MetricsBook::begin_from(const Json& state) {
  begin_anew();
  run_ = text_of(state, "run");
  sources_.clear();
  if (const auto sources = state.find("sources"); sources != state.end())
    read_event_field(*sources, sources_);
  const auto families = state.find("families");
  if (families == state.end() || !families->is_object()) return;
  for (const JsonMember& each : families->items()) {
    bool counts = false;
    if (const auto found = each.value.find("counts"); found != each.value.end())
      read_event_field(*found, counts);
    Family& family =
        family_of(families_, each.key, counts ? Type::counter : Type::gauge, text_of(each.value, "help"));
    const auto values = each.value.find("values");
    if (values == each.value.end() || !values->is_object()) continue;
    for (const JsonMember& value : values->items())
      family.values[value.key] =
          value.value.is_number() ? value.value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  const auto incidents = state.find("incidents");
  if (incidents != state.end() && incidents->is_object())
    incidents_ = std::make_unique<IncidentReader>(*incidents);
}

MetricsBook::Family& MetricsBook::family_of(Families& families, const std::string& name, Type type,
                                            std::string_view help) {
  const auto [found, is_new] = families.try_emplace(name);
  if (is_new) {
    found->second.type = type;
    found->second.help = help;
  }
  return found->second;
}

// Sets a gauge, and adds to a counter.
void MetricsBook::put(Families& families, const std::string& name, Type type, std::string_view help,
                      const std::string& labels, double value) {
  Family& family = family_of(families, name, type, help);
  if (family.values.size() >= series_max && !family.values.contains(labels)) return;
  double& stored = family.values[labels];
  stored = type == Type::counter ? stored + value : value;
}

void MetricsBook::take(const Json& event) {
  const std::string name(event_kind(event));
  if (name.empty()) return;
  incidents_->read(event);
  const std::string of_kind = text_of_labels({{"kind", name}});
  put(families_, "holdfast_events", Type::counter, "Events in the log", of_kind, 1);
  put(families_, "holdfast_event_timestamp_seconds", Type::gauge,
      "When the newest event of a kind was logged, since 1970", of_kind,
      static_cast<double>(event_time(event)) / 1e6);
  const auto kind = kinds_.find(name);
  if (kind == kinds_.end()) return;
  Labels labels;
  for (const std::string& field : kind->second.labels) {
    const bool is_cause = name == FaultEvent::kind && field == field_name(&FaultEvent::cause);
    labels.emplace_back(field, is_cause ? std::string(name_of(fault_cause_named(text_of(event, field))))
                                        : label_of(event, field));
  }
  const std::string labelled = text_of_labels(labels);
  for (const Number& number : kind->second.numbers) {
    const auto found = event.find(number.field);
    if (found == event.end()) {  // what an earlier event had is not of this one
      if (const auto family = families_.find(number.metric); family != families_.end())
        family->second.values.erase(labelled);
      continue;
    }
    double value = std::numeric_limits<double>::quiet_NaN();
    if (found->is_boolean()) {
      value = found->get<bool>() ? 1 : 0;
    } else if (found->is_number()) {
      value = found->get<double>() * number.scale;
    } else if (!number.may_be_null) {
      continue;
    }
    put(families_, number.metric, Type::gauge, number.help, labelled, value);
    if (!number.sum.empty() && std::isfinite(value))
      put(families_, number.sum, Type::counter, number.help, labelled, std::max(value, 0.0));
  }
  if (!kind->second.labels.empty()) {
    put(families_, fmt::format("{}{}_events", prefix, name), Type::counter, events_of(name), labelled, 1);
    put(families_, fmt::format("{}last_{}_timestamp_seconds", prefix, name), Type::gauge,
        "When the newest of them was logged, since 1970", labelled,
        static_cast<double>(event_time(event)) / 1e6);
  }
  put_derived(name, event);
}

void MetricsBook::put_derived(const std::string& name, const Json& event) {
  if (name == StepEvent::kind) {
    const auto again = event.find(field_name(&StepEvent::recomputed));
    put(families_, "holdfast_steps", Type::counter,
        "Steps computed, those that were computed again counted again", "", 1);
    put(families_, "holdfast_steps_again", Type::counter, "Of them, steps that an earlier event has, too", "",
        again != event.end() && again->is_boolean() && again->get<bool>() ? 1 : 0);
  }
  if (const auto step = event_as<StepEvent>(event)) take_sources(*step);
  const auto finish = event_as<FinishEvent>(event);
  const bool is_over =
      finish.has_value() && finish->state != FinishEvent::failed && finish->reason != another_start_reason;
  if (name == StartEvent::kind || is_over)
    put(families_, "holdfast_under_way", Type::gauge,
        "1 from the first start of the run until it has finished, or was saved because it was asked to stop",
        "", is_over ? 0 : 1);
  if (name == StartEvent::kind) take_start(event);
  if (name == StartEvent::kind || name == RecoveryEvent::kind) {
    take_hosts(event);
    take_armed(event);
  }
}

void MetricsBook::take_start(const Json& event) {
  run_ = text_of(event, "run");
  sources_.clear();
  if (const auto sources = event.find(field_name(&StartEvent::sources)); sources != event.end())
    read_event_field(*sources, sources_);
  Family& info = family_of(families_, "holdfast_run_info", Type::gauge,
                           "What the newest start of the run is; the value is 1");
  info.values = {
      {text_of_labels({{"device", text_of(event, "device")}, {"exchange", text_of(event, "exchange")}}), 1}};
}

// Puts what the run has used of its sources. Paths may change with a start, which leaves no series behind.
void MetricsBook::take_sources(const StepEvent& step) {
  if (sources_.empty()) return;  // of an earlier program
  Family& samples = family_of(families_, "holdfast_source_samples", Type::gauge,
                              "Samples of a source of the data that the run has used");
  Family& tokens = family_of(families_, "holdfast_source_tokens", Type::gauge, "Tokens of these samples");
  Family& epochs = family_of(families_, "holdfast_source_epochs", Type::gauge,
                             "How often the run has used the samples of a source, on average");
  for (Family* family : {&samples, &tokens, &epochs}) family->values.clear();
  const std::vector<std::uint64_t> used = step.source_samples.value_or(std::vector<std::uint64_t>());
  const std::vector<SourceUse> uses = uses_of(sources_, used, step.tokens);
  for (std::size_t i = 0; i < std::min(uses.size(), series_max); ++i) {
    const std::string labels = text_of_labels({{"source", std::to_string(i)}, {"path", uses[i].path}});
    samples.values[labels] = static_cast<double>(uses[i].samples);
    tokens.values[labels] = static_cast<double>(uses[i].tokens);
    epochs.values[labels] = uses[i].epochs;
  }
}

// A recovery by the launcher is followed by a start, which has them.
void MetricsBook::take_armed(const Json& event) {
  if (!event.contains(field_name(&StartEvent::armed)) && event_kind(event) != StartEvent::kind) return;
  Family& armed = family_of(families_, "holdfast_armed", Type::gauge,
                            "Whether a protection is on (start, recovery: armed, unarmed)");
  armed.values.clear();
  for (const auto& [field, is_on] :
       {std::pair(&StartEvent::armed, 1.0), std::pair(&StartEvent::unarmed, 0.0)}) {
    const auto found = event.find(field_name(field));
    std::map<std::string, std::string> words;
    if (found == event.end() || !read_event_field(*found, words)) continue;
    for (const auto& [protection, each] : words)
      armed.values[text_of_labels({{"protection", protection}})] = is_on;
  }
}

void MetricsBook::take_hosts(const Json& event) {
  const auto hosts = event.find("hosts");
  std::map<std::string, int> ranks;
  if (hosts == event.end() || !read_event_field(*hosts, ranks)) return;
  Family& family = family_of(families_, "holdfast_ranks_on_host", Type::gauge, "Ranks of the run on a host");
  family.values.clear();
  for (const auto& [host, count] : ranks) family.values[text_of_labels({{"host", host}})] = count;
}

// Adds what each class of time cost, which moves to another class with its time, as when steps are computed again.
void MetricsBook::put_money(Families& all) const {
  const RankPrice price = incidents_->price();
  if (!price.is_known()) return;
  const std::array<double, span_uses> money = money_of(incidents_->rank_times_us(), price);
  double whole = 0.0;
  for (std::size_t use = 0; use < money.size(); ++use) {
    put(all, "holdfast_time_cost", Type::gauge,
        "What that time has cost, by cost.per_rank_hour and the ranks that there were",
        text_of_labels(
            {{"use", std::string(name_of(static_cast<SpanUse>(use)))}, {"currency", price.currency}}),
        money[use]);
    whole += money[use];
  }
  put(all, "holdfast_cost", Type::gauge, "What the run has cost so far, at the price of its newest start",
      text_of_labels({{"currency", price.currency}}), whole);
}

std::string MetricsBook::text() const {
  Families all = families_;
  const SpanTimes times_us = incidents_->times_us();
  for (std::size_t use = 0; use < times_us.size(); ++use) {
    put(all, "holdfast_time_seconds", Type::gauge,
        "Where the time since the first start went, until the newest event: steps that count, and what else "
        "there was",
        text_of_labels({{"use", std::string(name_of(static_cast<SpanUse>(use)))}}),
        static_cast<double>(times_us[use]) / 1e6);
  }
  put_money(all);
  put(all, "holdfast_goodput_ratio", Type::gauge,
      "Time of the steps that count by all time since the first start, but for pauses (ETTR)", "",
      goodput_of(times_us));
  std::string text;
  for (const auto& [name, family] : all) {
    const bool counts = family.type == Type::counter;
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(family.help), name,
                        counts ? "counter" : "gauge");
    for (const auto& [labels, value] : family.values)
      text += fmt::format("{}{}{} {}\n", name, counts ? "_total" : "", with_run(run_, labels),
                          number_text(value));
  }
  return text + "# EOF\n";
}

}  // namespace holdfast::metrics
