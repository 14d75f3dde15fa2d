#include "watchdog/flight_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>

#include "runtime/core/json.h"
#include "runtime/core/record.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::watchdog {
namespace {

constexpr int format_version = 1;
constexpr std::size_t kept_of_rank = 8;
constexpr std::int64_t one_moment_us = 60'000'000;

// A reader of what another process writes meanwhile, or was killed writing.
FlightSpan copy_of(const Span& span) {
  return {.kind = span.kind < SpanKind::count ? name_of(span.kind) : "unknown",
          .step = span.step,
          .bytes = span.bytes,
          .begin_ns = plausible_time(span.begin.time_ns),
          .end_ns = plausible_time(span.end.time_ns),
          .chunk = span.chunk,
          .microbatch = span.microbatch,
          .bucket = span.bucket,
          .wave = span.wave,
          .peer = span.peer};
}

Json json_of(const FlightSpan& span) {
  Json line = {{"kind", span.kind}, {"step", span.step}, {"begin_ns", span.begin_ns}};
  if (span.end_ns != 0) line["end_ns"] = span.end_ns;
  const auto add = [&](const char* name, std::int32_t value) {
    if (value >= 0) line[name] = value;
  };
  add("chunk", span.chunk);
  add("microbatch", span.microbatch);
  add("bucket", span.bucket);
  add("wave", span.wave);
  add("peer", span.peer);
  if (span.bytes > 0) line["bytes"] = span.bytes;
  return line;
}

// The fields of a file that anybody may have written: what is missing, of another type or out of range makes
// it not ok.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  template <typename T>
  T integer(const char* name, std::optional<T> otherwise = {}) {
    const Json* found = find(name);
    if (found == nullptr && otherwise.has_value()) return *otherwise;
    if (found != nullptr && found->is_number_unsigned()) {
      const auto value = found->get<std::uint64_t>();
      if (value <= static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return static_cast<T>(value);
    } else if (found != nullptr && found->is_number_integer()) {
      const auto value = found->get<std::int64_t>();
      if (std::numeric_limits<T>::min() < 0 &&
          value >= static_cast<std::int64_t>(std::numeric_limits<T>::min()))
        return static_cast<T>(value);
    }
    ok = false;
    return {};
  }
  std::int64_t time(const char* name, std::optional<std::int64_t> otherwise = {}) {
    return plausible_time(integer<std::int64_t>(name, otherwise));
  }
  std::string text(const char* name) {
    const Json* found = find(name);
    if (found != nullptr && found->is_string()) return found->get<std::string>();
    ok = false;
    return {};
  }
  bool truth(const char* name) {
    const Json* found = find(name);
    if (found != nullptr && found->is_boolean()) return found->get<bool>();
    ok = false;
    return false;
  }
  const Json* find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  bool ok = true;

 private:
  const Json& object_;
};

std::optional<FlightSpan> span_of(const Json& line) {
  Fields fields(line);
  const FlightSpan span = {.kind = fields.text("kind"),
                           .step = fields.integer<std::uint64_t>("step"),
                           .bytes = fields.integer<std::uint64_t>("bytes", 0),
                           .begin_ns = fields.time("begin_ns"),
                           .end_ns = fields.time("end_ns", 0),
                           .chunk = fields.integer<std::int32_t>("chunk", -1),
                           .microbatch = fields.integer<std::int32_t>("microbatch", -1),
                           .bucket = fields.integer<std::int32_t>("bucket", -1),
                           .wave = fields.integer<std::int32_t>("wave", -1),
                           .peer = fields.integer<std::int32_t>("peer", -1)};
  return fields.ok ? std::optional(span) : std::nullopt;
}

Phase phase_of(const std::string& name, bool& ok) {
  for (std::uint8_t number = 0; number < static_cast<std::uint8_t>(Phase::count); ++number) {
    if (name == name_of(static_cast<Phase>(number))) return static_cast<Phase>(number);
  }
  ok = false;
  return Phase::start_up;
}

SlotView slot_of(Fields& fields) {
  SlotView slot;
  slot.launched_rank = fields.integer<int>("rank");
  slot.process = fields.integer<std::int64_t>("process");
  slot.phase = phase_of(fields.text("phase"), fields.ok);
  slot.left = fields.truth("left");
  slot.step = fields.integer<std::uint64_t>("step");
  slot.epoch = fields.integer<std::uint64_t>("epoch");
  slot.members = fields.integer<std::uint32_t>("members");
  slot.begun_ns = fields.time("begun_ns");
  slot.deadline_ns = fields.time("deadline_ns");
  slot.median_ns = fields.time("usual_ns");
  slot.heartbeat_ns = fields.time("beat_ns");
  if (const Json* wait = fields.find("wait"); wait != nullptr) {
    Fields of_wait(*wait);
    slot.wait_begun_ns = of_wait.time("begun_ns");
    slot.wait_operation = of_wait.text("operation");
    slot.wait_peer = of_wait.integer<int>("peer");
    slot.wait_number = of_wait.integer<std::uint32_t>("number");
    fields.ok = fields.ok && of_wait.ok;
  }
  if (const Json* kernel = fields.find("kernel"); kernel != nullptr) {
    std::string problem;
    fields.ok = fields.ok && field_from_json(*kernel, slot.plugin, problem);
  }
  if (const Json* drain = fields.find("drain"); drain != nullptr) {
    Fields of_drain(*drain);
    slot.drain_begun_ns = of_drain.time("begun_ns");
    slot.drain_step = of_drain.integer<std::uint64_t>("step");
    slot.drain_bytes = of_drain.integer<std::uint64_t>("bytes");
    fields.ok = fields.ok && of_drain.ok;
  }
  return slot;
}

std::string utc_of(std::int64_t wall_time_us) {
  using std::chrono::days, std::chrono::milliseconds;
  const std::chrono::sys_time<milliseconds> time{milliseconds(wall_time_us / 1'000)};
  const auto day = std::chrono::floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04d}{:02d}{:02d}T{:02d}{:02d}{:02d}.{:03d}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count(),
                     clock.subseconds().count());
}

// "<UTC time>-rank-0003.json"; the part from "-rank-" on names the rank.
std::string rank_part(const std::string& name) {
  const std::size_t at = name.find("-rank-");
  return at == std::string::npos || !name.ends_with(".json") ? "" : name.substr(at);
}

}  // namespace

FlightRecord take_flight_record(Env& env, Board& board, std::uint32_t slot, char state,
                                const std::string& reason) {
  FlightRecord record = {.host = env.host_name(),
                         .reason = reason,
                         .wall_time_us = env.wall_time_us(),
                         .now_ns = env.monotonic_ns(),
                         .slot = read_slot(board.slot(slot)),
                         .state = state,
                         .lost_spans = 0,
                         .spans = {}};
  const std::span<const Span> ring = board.ring(slot);
  const std::uint64_t size = std::min<std::uint64_t>(board.slot(slot).ring_spans, ring.size());
  const std::uint64_t opened = board.slot(slot).spans_opened;
  const std::uint64_t kept = std::min(opened, size);
  record.lost_spans = opened - kept;
  for (std::uint64_t number = opened - kept; number < opened; ++number) {
    record.spans.push_back(copy_of(ring[number % size]));
  }
  return record;
}

std::string flight_json(const FlightRecord& record) {
  const SlotView& slot = record.slot;
  Json json = {{"format", format_version},
               {"rank", slot.launched_rank},
               {"host", record.host},
               {"process", slot.process},
               {"state", std::string(1, record.state)},
               {"reason", record.reason},
               {"wall_time_us", record.wall_time_us},
               {"now_ns", record.now_ns},
               {"phase", name_of(slot.phase)},
               {"step", slot.step},
               {"epoch", slot.epoch},
               {"members", slot.members},
               {"left", slot.left},
               {"begun_ns", slot.begun_ns},
               {"deadline_ns", slot.deadline_ns},
               {"usual_ns", slot.median_ns},
               {"beat_ns", slot.heartbeat_ns}};
  if (slot.wait_begun_ns > 0) {
    json["wait"] = {{"operation", slot.wait_operation},
                    {"peer", slot.wait_peer},
                    {"number", slot.wait_number},
                    {"begun_ns", slot.wait_begun_ns}};
  }
  if (slot.drain_begun_ns > 0) {
    json["drain"] = {
        {"step", slot.drain_step}, {"bytes", slot.drain_bytes}, {"begun_ns", slot.drain_begun_ns}};
  }
  if (!slot.plugin.empty()) json["kernel"] = field_to_json(slot.plugin);
  json["lost_spans"] = record.lost_spans;
  const auto text_of = [](const Json& value) {  // a damaged board may hold any bytes
    return value.dump_any();
  };
  std::string text = text_of(json);
  text.back() = ',';
  text += "\n\"spans\":[";
  for (std::size_t each = 0; each < record.spans.size(); ++each) {
    text += (each > 0 ? ",\n" : "\n") + text_of(json_of(record.spans[each]));
  }
  return text + "]}\n";
}

Result<FlightRecord> parse_flight(const std::string& text, const std::string& path) {
  const Json json = Json::parse_any(text);
  Fields fields(json);
  const auto format = fields.integer<int>("format");
  if (fields.ok && format != format_version) {
    return fail(ExitCode::data,
                "{} is a flight record of format {}, and this program reads {}: use the "
                "program that wrote it",
                path, format, format_version);
  }
  FlightRecord record;
  record.slot = slot_of(fields);
  record.host = fields.text("host");
  record.reason = fields.text("reason");
  const std::string state = fields.text("state");
  record.state = state.size() == 1 ? state.front() : '?';
  record.wall_time_us = fields.time("wall_time_us");
  record.now_ns = fields.time("now_ns");
  record.lost_spans = fields.integer<std::uint64_t>("lost_spans");
  const Json* spans = fields.find("spans");
  if (spans == nullptr || !spans->is_array()) fields.ok = false;
  for (std::size_t each = 0; fields.ok && each < spans->size(); ++each) {
    const std::optional<FlightSpan> span = span_of((*spans)[each]);
    fields.ok = span.has_value();
    if (fields.ok) record.spans.push_back(*span);
  }
  if (fields.ok) return record;
  return fail(ExitCode::data, "{} is no flight record, or not whole: remove it, and read the others", path);
}

std::string flight_file_name(const FlightRecord& record) {
  return fmt::format("{}-rank-{:04d}.json", utc_of(record.wall_time_us), record.slot.launched_rank);
}

Result<void> write_flight_record(Env& env, const std::string& directory, const FlightRecord& record) {
  HF_TRY_VOID(env.make_directories(directory));
  const std::string name = flight_file_name(record);
  HF_TRY_VOID(env.replace_text(fmt::format("{}/{}", directory, name), flight_json(record)));
  HF_TRY(std::vector<std::string> names, env.list(directory));
  std::erase_if(names, [&](const std::string& each) { return rank_part(each) != rank_part(name); });
  for (std::size_t old = 0; old + kept_of_rank < names.size(); ++old) {
    HF_TRY_VOID(env.remove(fmt::format("{}/{}", directory, names[old])));
  }
  return {};
}

Result<std::vector<FlightRecord>> read_flight_records(Env& env, const std::string& directory) {
  const std::string inside = directory + "/flight";
  HF_TRY(const FileStatus status, env.status(inside));
  const std::string& place = status.exists ? inside : directory;
  HF_TRY(const std::vector<std::string> names, env.list(place));
  std::map<std::string, std::string> newest;  // of each rank; the names are in the order of their times
  for (const std::string& name : names) {
    if (const std::string rank = rank_part(name); !rank.empty()) newest[rank] = name;
  }
  std::vector<FlightRecord> records;
  std::int64_t last_us = 0;
  for (const auto& [rank, name] : newest) {
    const std::string path = fmt::format("{}/{}", place, name);
    HF_TRY(const std::string text, read_text_within(env, path, text_limits::flight_record));
    HF_TRY(FlightRecord record, parse_flight(text, path));
    last_us = std::max(last_us, record.wall_time_us);
    records.push_back(std::move(record));
  }
  if (records.empty()) {
    return fail(ExitCode::data,
                "{} holds no flight records: they are written when a rank hangs or dies, and "
                "when the guard gets SIGUSR1",
                place);
  }
  std::erase_if(records,
                [&](const FlightRecord& each) { return last_us - each.wall_time_us > one_moment_us; });
  return records;
}

std::vector<FlightRecord> flight_records_near(Env& env, const std::string& directory, std::int64_t time_us) {
  constexpr std::int64_t farthest_us = 10'000'000;
  const std::string place = directory + "/flight";
  std::map<std::string, FlightRecord> nearest;  // by rank
  const auto distance_us = [time_us](const FlightRecord& each) {
    return std::abs(each.wall_time_us - time_us);
  };
  const Result<std::vector<std::string>> names = env.list(place);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const std::string rank = rank_part(name), path = fmt::format("{}/{}", place, name);
    if (rank.empty()) continue;
    Result<FlightRecord> record =
        parse_flight(text_within_or_empty(env, path, text_limits::flight_record), path);
    if (!record.ok() || distance_us(*record) > farthest_us) continue;
    const auto found = nearest.find(rank);
    if (found == nearest.end() || distance_us(*record) < distance_us(found->second))
      nearest.insert_or_assign(rank, *std::move(record));
  }
  std::vector<FlightRecord> records;
  for (auto& [rank, record] : nearest) records.push_back(std::move(record));
  return records;
}

}  // namespace holdfast::watchdog
