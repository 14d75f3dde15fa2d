#include "runtime/run/trace_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>

#include "runtime/core/json.h"

namespace holdfast::run {
namespace {

constexpr int format_version = 1;

Json to_json(const TraceHeader& header) {
  const ScheduleShape& schedule = header.schedule;
  return {{"event", "trace"},
          {"format", format_version},
          {"recording", header.recording},
          {"rank", header.rank},
          {"ranks", header.ranks},
          {"host", header.host},
          {"device", header.device},
          {"threads", header.threads},
          {"mesh", {header.mesh.data, header.mesh.pipeline, header.mesh.tensor}},
          {"seat", {header.coordinate.data, header.coordinate.pipeline, header.coordinate.tensor}},
          {"schedule", name_of(schedule.kind)},
          {"chunks", schedule.chunks},
          {"microbatches_per_lane", schedule.microbatches_per_lane},
          {"waves", schedule.waves},
          {"lanes", schedule.lanes},
          {"runs", header.runs},
          {"clock_offset_ns", header.clock.offset_ns},
          {"clock_error_ns", header.clock.error_ns},
          {"lost", header.lost}};
}

void append(std::string& text, const Span& span) {
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{{\"kind\":\"{}\",\"step\":{},\"begin_ns\":{},\"end_ns\":{}", name_of(span.kind),
                 span.step, span.begin.time_ns, span.end.time_ns);
  if (span.end.worked_ns > span.begin.worked_ns)
    fmt::format_to(out, ",\"worked_ns\":{}", span.end.worked_ns - span.begin.worked_ns);
  const auto add = [&](const char* name, std::int32_t value) {
    if (value >= 0) fmt::format_to(out, ",\"{}\":{}", name, value);
  };
  add("chunk", span.chunk);
  add("microbatch", span.microbatch);
  add("bucket", span.bucket);
  add("wave", span.wave);
  add("peer", span.peer);
  if (span.bytes > 0) fmt::format_to(out, ",\"bytes\":{}", span.bytes);
  text += "}\n";
}

// Reads the fields of one line; whatever is missing, of another type or out of range makes it not ok.
class Fields {
 public:
  explicit Fields(const Json& line) : line_(line) {}

  std::string text(const char* name) {
    const auto found = line_.find(name);
    if (found != line_.end() && found->is_string()) return found->get<std::string>();
    ok = false;
    return {};
  }
  std::int64_t integer(const char* name, std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
    const auto found = line_.find(name);
    if (found != line_.end() && found->is_number_integer()) {
      const auto value = found->get<std::int64_t>();
      if (low <= value && value <= high) return value;
    }
    ok = false;
    return low;
  }
  int count(const char* name) { return static_cast<int>(integer(name, 1, 1 << 20)); }
  // Reads the index of something that need not be there.
  std::int32_t index(const char* name, std::int32_t high = std::numeric_limits<std::int32_t>::max()) {
    return line_.contains(name) ? static_cast<std::int32_t>(integer(name, 0, high)) : -1;
  }
  std::array<int, 3> axes(const char* name, std::int64_t low) {
    std::array<int, 3> values{1, 1, 1};
    const auto found = line_.find(name);
    if (found == line_.end() || !found->is_array() || found->size() != values.size()) {
      ok = false;
      return values;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Json& value = (*found)[i];
      if (value.is_number_integer() && value.get<std::int64_t>() >= low &&
          value.get<std::int64_t>() < 1 << 20) {
        values[i] = value.get<int>();
      } else {
        ok = false;
      }
    }
    return values;
  }

  bool ok = true;

 private:
  const Json& line_;
};

std::optional<TraceHeader> header_of(const Json& line) {
  Fields fields(line);
  TraceHeader header{.recording = fields.text("recording"),
                     .rank = static_cast<int>(fields.integer("rank", 0, 1 << 20)),
                     .ranks = fields.count("ranks"),
                     .host = fields.text("host"),
                     .device = fields.text("device"),
                     .threads = fields.count("threads")};
  const std::array<int, 3> mesh = fields.axes("mesh", 1), coordinate = fields.axes("seat", 0);
  header.mesh = {.data = mesh[0], .pipeline = mesh[1], .tensor = mesh[2]};
  header.coordinate = {.data = coordinate[0], .pipeline = coordinate[1], .tensor = coordinate[2]};
  const std::optional<ScheduleKind> kind = schedule_kind_of(fields.text("schedule"));
  header.schedule = {.kind = kind.value_or(ScheduleKind::gpipe),
                     .stages = header.mesh.pipeline,
                     .chunks = fields.count("chunks"),
                     .microbatches_per_lane = fields.count("microbatches_per_lane"),
                     .waves = fields.count("waves"),
                     .lanes = fields.count("lanes")};
  header.runs = fields.count("runs");
  header.clock = {.offset_ns = fields.integer("clock_offset_ns"),
                  .error_ns = fields.integer("clock_error_ns")};
  header.lost = static_cast<std::uint64_t>(fields.integer("lost", 0));
  const bool known = fields.text("event") == "trace" && fields.integer("format") == format_version;
  const bool is_active = coordinate[0] < mesh[0] && coordinate[1] < mesh[1] && coordinate[2] < mesh[2];
  if (!fields.ok || !known || !kind || !is_active || header.rank >= header.ranks) return std::nullopt;
  return header;
}

std::optional<Span> span_of(const Json& line) {
  Fields fields(line);
  const std::optional<SpanKind> kind = span_kind_named(fields.text("kind"));
  if (!kind) return std::nullopt;
  Span span{.kind = *kind,
            .chunk = static_cast<std::int16_t>(fields.index("chunk", 1 << 12)),
            .microbatch = fields.index("microbatch"),
            .bucket = fields.index("bucket"),
            .wave = fields.index("wave"),
            .peer = fields.index("peer"),
            .bytes = line.contains("bytes") ? static_cast<std::uint64_t>(fields.integer("bytes", 0)) : 0,
            .step = static_cast<std::uint64_t>(fields.integer("step", 0))};
  span.begin.time_ns = fields.integer("begin_ns", 0);
  span.end.time_ns = fields.integer("end_ns", 0);
  if (line.contains("worked_ns")) span.end.worked_ns = fields.integer("worked_ns", 0);
  return fields.ok ? std::optional(span) : std::nullopt;
}

}  // namespace

std::optional<SpanKind> span_kind_named(std::string_view name) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(SpanKind::count); ++i) {
    if (name == name_of(static_cast<SpanKind>(i))) return static_cast<SpanKind>(i);
  }
  return std::nullopt;
}

std::string to_text(const RankTrace& trace) {
  std::string text = to_json(trace.header).dump_any() + "\n";
  for (const Span& span : trace.spans) append(text, span);
  return text + fmt::format("{{\"event\":\"end\",\"spans\":{}}}\n", trace.spans.size());
}

Result<RankTrace> parse_trace(std::string_view text, const std::string& path) {
  constexpr const char* torn = "a span, or the last line with the number of spans";
  RankTrace trace;
  const auto damaged = [&](std::size_t line, const char* expected) {
    return fail(ExitCode::data,
                "{}:{}: expected {}; the file is damaged or of another version, record the steps again "
                "(trace.first_step, trace.steps)",
                path, line, expected);
  };
  bool whole = false;
  std::size_t number = 1;
  for (; !text.empty() && !whole; ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const Json line = Json::parse_any(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (number == 1) {
      const std::optional<TraceHeader> header = line.is_object() ? header_of(line) : std::nullopt;
      if (!header) return damaged(number, "the line about the rank");
      trace.header = *header;
    } else if (line.is_object() && line.contains("event")) {
      Fields fields(line);
      whole =
          fields.text("event") == "end" && fields.integer("spans", 0) == std::ssize(trace.spans) && fields.ok;
      if (!whole) return damaged(number, torn);
    } else {
      const std::optional<Span> span = line.is_object() ? span_of(line) : std::nullopt;
      if (!span) return damaged(number, torn);
      trace.spans.push_back(*span);
    }
  }
  if (!whole) return damaged(number, torn);
  return trace;
}

namespace {

constexpr int questions = 16;
constexpr const char* clock_operation = "the comparison of clocks";

Result<void> pass(Communicator& communicator, const Waiter& waiter, std::int64_t& word, int peer,
                  bool sends) {
  const auto bytes = std::as_writable_bytes(std::span(&word, 1));
  HF_TRY(const Communicator::Request request, sends ? communicator.send(bytes, peer, tag_collective)
                                                    : communicator.receive(bytes, peer, tag_collective));
  return waiter.wait(communicator, request, clock_operation, peer);
}

Result<ClockOffset> ask(Communicator& communicator, const Waiter& waiter, int peer) {
  ClockOffset best{.offset_ns = 0, .error_ns = std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < questions; ++i) {
    std::int64_t time_there_ns = 0;
    const std::int64_t asked_ns = waiter.env().monotonic_ns();
    HF_TRY_VOID(pass(communicator, waiter, time_there_ns, peer, true));
    HF_TRY_VOID(pass(communicator, waiter, time_there_ns, peer, false));
    const std::int64_t half_ns = (waiter.env().monotonic_ns() - asked_ns + 1) / 2;
    if (half_ns < best.error_ns) best = {asked_ns + half_ns - time_there_ns, half_ns};
  }
  return best;
}

Result<void> answer(Communicator& communicator, const Waiter& waiter) {
  for (int i = 0; i < questions; ++i) {
    std::int64_t word = 0;
    HF_TRY_VOID(pass(communicator, waiter, word, 0, false));
    word = waiter.env().monotonic_ns();
    HF_TRY_VOID(pass(communicator, waiter, word, 0, true));
  }
  return {};
}

}  // namespace

Result<ClockOffset> find_clock_offset(Communicator& communicator, const Waiter& waiter,
                                      const std::string& host) {
  HF_TRY(const std::vector<std::string> hosts, all_gather_text(communicator, waiter, host));
  std::vector<ClockOffset> offsets(hosts.size());  // [rank]; set for the first rank of each host
  for (std::size_t rank = 1; rank < hosts.size(); ++rank) {
    if (std::find(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(rank), hosts[rank]) !=
        hosts.begin() + static_cast<std::ptrdiff_t>(rank))
      continue;
    if (communicator.rank() == 0) {
      HF_TRY(offsets[rank], ask(communicator, waiter, static_cast<int>(rank)));
    } else if (communicator.rank() == static_cast<int>(rank)) {
      HF_TRY_VOID(answer(communicator, waiter));
    }
  }
  HF_TRY_VOID(broadcast(communicator, waiter, std::as_writable_bytes(std::span(offsets))));
  return offsets[static_cast<std::size_t>(std::ranges::find(hosts, host) - hosts.begin())];
}

}  // namespace holdfast::run
