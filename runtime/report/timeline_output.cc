#include "runtime/report/timeline_output.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "runtime/core/json.h"

namespace holdfast::report {
namespace {

constexpr std::size_t ranks_shown = 64;

// Heads of columns: the words that tell the waits apart.
const char* column_of(SpanKind wait) {
  switch (wait) {
    case SpanKind::wait_activation:
      return "activation";
    case SpanKind::wait_gradient:
      return "gradient";
    case SpanKind::wait_send:
      return "send";
    case SpanKind::wait_lanes:
      return "lanes";
    case SpanKind::wait_data:
      return "data";
    case SpanKind::wait_vote:
      return "vote";
    case SpanKind::wait_parameters:
      return "parameters";
    case SpanKind::wait_tied_weight:
      return "tied weight";
    case SpanKind::wait_snapshot:
      return "snapshot";
    case SpanKind::wait_slices:
      return "slices";
    default:
      return "device";
  }
}

std::string shares_text(const std::vector<RankShares>& ranks) {
  const std::vector<SpanKind> waits = waits_of(ranks);
  std::string text = fmt::format("{:>5} {:>5} {:>9} {:>9}", "rank", "stage", "computing", "optimizer");
  for (const SpanKind wait : waits) text += fmt::format(" {:>11}", column_of(wait));
  text += fmt::format(" {:>9}\n", "other");
  for (const RankShares& rank : std::span(ranks).first(std::min(ranks.size(), ranks_shown))) {
    text += fmt::format("{:>5} {:>5} {:>7.1f} % {:>7.1f} %", rank.rank, rank.coordinate.pipeline,
                        100.0 * rank.forward_backward(),
                        100.0 * rank.spent[static_cast<std::size_t>(SpanKind::update)]);
    for (const SpanKind wait : waits)
      text += fmt::format(" {:>9.1f} %", 100.0 * rank.spent[static_cast<std::size_t>(wait)]);
    text += fmt::format(" {:>7.1f} %\n", 100.0 * rank.other);
  }
  if (ranks.size() > ranks_shown)
    text += fmt::format("  ... and {} ranks more\n", ranks.size() - ranks_shown);
  return text;
}

double median_step_ms(const PipelineTimes& pipeline) {
  std::vector<std::int64_t> durations;
  for (const PipelineStep& step : pipeline.steps) {
    std::int64_t longest = 0;
    for (const RankStep& rank : step.stages) longest = std::max(longest, rank.step.duration_ns());
    durations.push_back(longest);
  }
  std::ranges::sort(durations);
  return durations.empty() ? 0.0 : static_cast<double>(durations[durations.size() / 2]) / 1e6;
}

std::string describe_timeline(const Timeline& timeline, const PipelineTimes& pipeline) {
  const TraceHeader& header = timeline.ranks.front().header;
  const ScheduleShape& schedule = pipeline.schedule;
  std::string text = timeline.steps.size() == 1
                         ? fmt::format("step {}", timeline.steps.front())
                         : fmt::format("steps {} to {}", timeline.steps.front(), timeline.steps.back());
  text += fmt::format(" of {} rank{} x {} thread{}: ", header.ranks, header.ranks == 1 ? "" : "s",
                      header.threads, header.threads == 1 ? "" : "s");
  if (header.mesh.data > 1) text += fmt::format("{} copies of ", header.mesh.data);
  if (schedule.stages > 1) text += fmt::format("{} in ", name_of(schedule.kind));
  text += fmt::format("{} stage{}", schedule.stages, schedule.stages == 1 ? "" : "s");
  if (schedule.chunks > 1) text += fmt::format(" of {} chunks", schedule.chunks);
  text += fmt::format(", {} microbatch{}", schedule.microbatches(), schedule.microbatches() == 1 ? "" : "es");
  if (header.runs > 1) text += fmt::format(", {} times over", header.runs);
  text += fmt::format("; {}", header.device);
  if (timeline.clock_error_ns > 0)
    text += fmt::format("; clocks of hosts agree to {:.3f} ms",
                        static_cast<double>(timeline.clock_error_ns) / 1e6);
  return text;
}

}  // namespace

std::string timeline_summary(const Timeline& timeline, const std::vector<PipelineTimes>& pipelines) {
  std::string text = describe_timeline(timeline, pipelines.front()) + "\n\n";
  std::vector<RankShares> ranks;
  for (const PipelineTimes& pipeline : pipelines) {
    const std::vector<RankShares> more = rank_shares(pipeline);
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  std::ranges::sort(ranks, {}, &RankShares::rank);
  text += shares_text(ranks) + "\n";
  for (const PipelineTimes& pipeline : pipelines) {
    const std::string copy = pipelines.size() > 1 ? fmt::format(" of copy {}", pipeline.data) : "";
    text += fmt::format(
        "step {:.4g} ms; bubble{}: measured {:.1f} %, replayed with the measured parts {:.1f} %, formula "
        "{:.1f} %\n"
        "processor time of the hosts{}: {:.1f} % of that of forward and backward\n",
        median_step_ms(pipeline), copy, 100.0 * pipeline.measured_share(), 100.0 * pipeline.replayed_share,
        100.0 * pipeline.formula_share, copy, 100.0 * pipeline.host_share());
  }
  std::uint64_t lost = 0;
  for (const RankTrace& rank : timeline.ranks) lost += rank.header.lost;
  if (lost > 0) text += fmt::format("{} spans had no room and are not shown; record fewer steps\n", lost);
  return text;
}

namespace {

constexpr int compute_thread = 1, host_thread = 2, first_transfer_thread = 3;

std::string json_text(const std::string& text) {
  return Json(text).dump_any();
}

// Returns the name shown for a span; one of a microbatch is "forward 3", so that a viewer that colours by
// name gives each its own colour.
std::string shown_name(const Span& span) {
  const std::int32_t number = span.microbatch >= 0 ? span.microbatch : std::max(span.bucket, span.wave);
  std::string name = span.kind == SpanKind::step ? fmt::format("step {}", span.step) : title_of(span.kind);
  return number >= 0 ? fmt::format("{} {}", name, number) : name;
}

class Writer {
 public:
  explicit Writer(const Timeline& timeline) : timeline_(timeline) {
    origin_ns_ = std::numeric_limits<std::int64_t>::max();
    for (const RankTrace& rank : timeline.ranks) {
      for (const Span& span : rank.spans) origin_ns_ = std::min(origin_ns_, span.begin.time_ns);
    }
    for (const std::uint64_t step : timeline.steps)
      std::ranges::move(transfers_of(timeline, step), std::back_inserter(transfers_));
    for (const Transfer& transfer : transfers_)
      sent_ns_[{transfer.target, transfer.received.kind, transfer.received.begin.time_ns}] =
          transfer.sent.begin.time_ns;
  }

  std::string write() {
    out_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for (const RankTrace& rank : timeline_.ranks) add_rank(rank);
    for (const Transfer& transfer : transfers_) add_arrow(transfer);
    out_.erase(out_.rfind(','));
    return out_ + "\n]}\n";
  }

 private:
  using Place = std::tuple<int, SpanKind, std::int64_t>;  // rank, kind and begin of a recorded transfer
  struct Message {
    Place place = {};
    Span shown = {};
  };

  double microseconds(std::int64_t time_ns) const { return static_cast<double>(time_ns - origin_ns_) / 1e3; }

  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
    out_ += ",\n";
  }

  void name_thread(int rank, int thread, const std::string& name) {
    add(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", rank, thread,
        json_text(name));
    add(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", rank,
        thread, thread);
  }

  void add_rank(const RankTrace& rank) {
    const TraceHeader& header = rank.header;
    std::string name = fmt::format("rank {}, stage {}", header.rank, header.coordinate.pipeline);
    if (header.mesh.data > 1) name += fmt::format(", copy {}", header.coordinate.data);
    if (header.mesh.tensor > 1) name += fmt::format(", tensor {}", header.coordinate.tensor);
    add(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", header.rank, json_text(name));
    add(R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})", header.rank);
    add(R"({{"ph":"M","name":"process_labels","pid":{},"args":{{"labels":{}}}}})", header.rank,
        json_text(fmt::format("{}, {}", header.host, header.device)));
    name_thread(header.rank, compute_thread, "compute");
    name_thread(header.rank, host_thread, "host");
    std::vector<Message> messages;
    for (const Span& span : rank.spans) {
      const SpanGroup group = group_of(span.kind);
      if (group == SpanGroup::transfer) {
        messages.push_back(message_of(header.rank, span));
      } else {
        add_span(header.rank, group == SpanGroup::compute ? compute_thread : host_thread, span);
      }
    }
    add_messages(header.rank, std::move(messages));
  }

  // A receive is open long before anything is sent; it is shown from then on.
  Message message_of(int rank, const Span& span) const {
    Message message{.place = {rank, span.kind, span.begin.time_ns}, .shown = span};
    const auto sent = sent_ns_.find(message.place);
    if (sent == sent_ns_.end()) return message;
    message.shown.begin.time_ns = std::clamp(sent->second, span.begin.time_ns, span.end.time_ns);
    return message;
  }

  // Adds messages, those that overlap on different threads, because the spans of a thread must lie inside one
  // another.
  void add_messages(int rank, std::vector<Message> messages) {
    std::ranges::stable_sort(messages, {},
                             [](const Message& message) { return message.shown.begin.time_ns; });
    std::vector<std::int64_t> free_ns;
    for (const auto& [place, span] : messages) {
      const auto row =
          std::ranges::find_if(free_ns, [&](std::int64_t end) { return end <= span.begin.time_ns; });
      const auto index = static_cast<int>(row - free_ns.begin());
      if (row == free_ns.end()) {
        free_ns.push_back(0);
        name_thread(rank, first_transfer_thread + index,
                    index == 0 ? "communication" : fmt::format("communication {}", index + 1));
      }
      free_ns[static_cast<std::size_t>(index)] = span.end.time_ns;
      threads_[place] = first_transfer_thread + index;
      add_span(rank, first_transfer_thread + index, span);
    }
  }

  void add_span(int rank, int thread, const Span& span) {
    std::string details = fmt::format("\"step\":{}", span.step);
    const auto detail = [&](const char* name, std::int64_t value) {
      if (value >= 0) details += fmt::format(",\"{}\":{}", name, value);
    };
    detail("microbatch", span.microbatch);
    detail("chunk", span.chunk);
    detail("bucket", span.bucket);
    detail("wave", span.wave);
    detail("peer", span.peer);
    if (span.bytes > 0) details += fmt::format(",\"bytes\":{}", span.bytes);
    if (group_of(span.kind) == SpanGroup::compute) {
      details += fmt::format(",\"worked_ms\":{:.3f}",
                             static_cast<double>(span.end.worked_ns - span.begin.worked_ns) / 1e6);
    }
    add(R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
        shown_name(span), name_of(span.kind), rank, thread, microseconds(span.begin.time_ns),
        static_cast<double>(span.end.time_ns - span.begin.time_ns) / 1e3, details);
  }

  // Into the end of the receive, which was open for as long as its place was free.
  void add_arrow(const Transfer& transfer) {
    const auto add_end = [&](const char* phase, int rank, const Span& span, std::int64_t time_ns) {
      add(R"({{"ph":"{}","bp":"e","id":{},"name":"message","cat":"{}","pid":{},"tid":{},"ts":{:.3f}}})",
          phase, arrows_, name_of(transfer.sent.kind), rank, threads_[{rank, span.kind, span.begin.time_ns}],
          microseconds(time_ns));
    };
    ++arrows_;
    add_end("s", transfer.source, transfer.sent, transfer.sent.begin.time_ns);
    add_end("f", transfer.target, transfer.received, transfer.received.end.time_ns);
  }

  const Timeline& timeline_;
  std::int64_t origin_ns_ = 0;
  std::string out_;
  std::vector<Transfer> transfers_;
  std::map<Place, std::int64_t> sent_ns_;  // of what was received
  std::map<Place, int> threads_;
  int arrows_ = 0;
};

}  // namespace

std::string chrome_trace(const Timeline& timeline) {
  return Writer(timeline).write();
}

}  // namespace holdfast::report
