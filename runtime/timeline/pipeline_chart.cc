#include "runtime/timeline/pipeline_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "runtime/report/axis.h"
#include "runtime/report/report_page.h"

namespace holdfast::inline timeline {

// Neighbouring microbatches are far apart on the wheel of hues.
const std::string_view pipeline_chart_style = R"css(
main { max-width: 1400px; }
:root { --fw: 66%; --bw: 46%; --on-fw: #16161a; --on-bw: #ffffff; --sat: 58%; }
@media (prefers-color-scheme: dark) { :root { --fw: 62%; --bw: 38%; --sat: 50%; --on-fw: #101012; --on-bw: #f4f4f2; } }
svg.pipeline { display: block; width: 100%; height: auto;
  font: 11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
.row-name { fill: var(--ink); font-weight: 600; } .row-note { fill: var(--faint); }
.lane { fill: var(--grid); }
.m0 { --h: 212; } .m1 { --h: 28; } .m2 { --h: 152; } .m3 { --h: 330; } .m4 { --h: 50; } .m5 { --h: 262; }
.m6 { --h: 96; } .m7 { --h: 4; } .m8 { --h: 188; } .m9 { --h: 300; } .m10 { --h: 76; } .m11 { --h: 236; }
.box { stroke: var(--card); stroke-width: 0.6; }
.box.f { fill: hsl(var(--h) var(--sat) var(--fw)); } .box.b, .box.bi { fill: hsl(var(--h) var(--sat) var(--bw)); }
.box.bw { fill: hsl(var(--h) var(--sat) var(--bw)); stroke: hsl(var(--h) var(--sat) var(--fw)); stroke-dasharray: 3 2; }
.box.u { fill: var(--soft); } .box:hover, .wait:hover { stroke: var(--ink); stroke-width: 1.5; }
.number { text-anchor: middle; pointer-events: none; font-variant-numeric: tabular-nums; }
.number.f { fill: var(--on-fw); } .number.b, .number.bi, .number.bw, .number.u { fill: var(--on-bw); font-weight: 600; }
.chunk { fill: var(--card); opacity: 0.5; pointer-events: none; }
.wait { stroke: none; fill: currentColor; opacity: 0.75; }
.w-activation { color: #5b8bc9; } .w-gradient { color: #d9803f; } .w-send { color: #9a6bc4; }
.w-lanes { color: #3d9a6d; } .w-vote { color: #c8504d; } .w-parameters { color: #2a9aa8; }
.w-device, .w-data, .w-tied, .w-slices, .w-snapshot { color: #a0893a; } .w-none { color: var(--axis); }
.message { fill: none; stroke-width: 1; opacity: 0.45; } .message:hover { opacity: 1; stroke-width: 2; }
.message.activation { stroke: #5b8bc9; } .message.gradient { stroke: #d9803f; }
.window { stroke: var(--faint); stroke-width: 1; fill: none; } .window-text { fill: var(--soft); text-anchor: middle; }
.legend i.swatch { width: 14px; height: 12px; border: 0; border-radius: 2px; background: currentColor; }
.legend i.swatch.f { background: hsl(212 var(--sat) var(--fw)); } .legend i.swatch.b { background: hsl(212 var(--sat) var(--bw)); }
.legend i.swatch.bw { background: hsl(212 var(--sat) var(--bw)); outline: 1px dashed hsl(212 var(--sat) var(--fw)); outline-offset: -2px; }
.legend i.swatch.c1 { background: linear-gradient(hsl(212 var(--sat) var(--bw)) 65%, hsl(212 var(--sat) var(--fw)) 65%); }
.legend i.swatch.u { background: var(--soft); } .legend i.swatch.wait { height: 7px; opacity: 0.75; }
.legend i.message { width: 16px; height: 0; border-top: 2px solid; opacity: 0.7; }
.legend i.message.activation { color: #5b8bc9; } .legend i.message.gradient { color: #d9803f; }
)css";

namespace {

constexpr std::size_t hues = 12;

const char* box_class(SpanKind kind) {
  switch (kind) {
    case SpanKind::forward:
      return "f";
    case SpanKind::backward:
      return "b";
    case SpanKind::backward_input:
      return "bi";
    case SpanKind::backward_weight:
      return "bw";
    default:
      return "u";
  }
}

const char* wait_class(const Idle& idle) {
  if (!idle.waits) return "w-none";
  switch (idle.kind) {
    case SpanKind::wait_activation:
      return "w-activation";
    case SpanKind::wait_gradient:
      return "w-gradient";
    case SpanKind::wait_send:
      return "w-send";
    case SpanKind::wait_lanes:
      return "w-lanes";
    case SpanKind::wait_vote:
      return "w-vote";
    case SpanKind::wait_parameters:
      return "w-parameters";
    case SpanKind::wait_tied_weight:
      return "w-tied";
    case SpanKind::wait_snapshot:
      return "w-snapshot";
    case SpanKind::wait_slices:
      return "w-slices";
    case SpanKind::wait_data:
      return "w-data";
    default:
      return "w-device";
  }
}

double milliseconds(std::int64_t duration_ns) {
  return static_cast<double>(duration_ns) / 1e6;
}

class PipelineCanvas {
 public:
  PipelineCanvas(const PipelineStep& step, const ScheduleShape& schedule) : step_(step), schedule_(schedule) {
    begin_ns_ = step.window.begin_ns;
    end_ns_ = step.window.end_ns;
    std::size_t boxes = 0;
    for (const RankStep& rank : step.stages) {
      begin_ns_ = std::min(begin_ns_, rank.step.begin_ns);
      end_ns_ = std::max(end_ns_, rank.step.end_ns);
      boxes = std::max(boxes, rank.compute.size());
      row_of_[rank.rank] = static_cast<int>(row_of_.size());
    }
    end_ns_ = std::max(end_ns_, begin_ns_ + 1);
    width_ = std::clamp(left + 20.0 * static_cast<double>(boxes), 1300.0, 12'000.0);
  }

  std::string draw(const std::vector<Transfer>& transfers) {
    const double height = bottom() + 26.0;
    out_ = fmt::format(
        "<div class=\"scroll\"><svg class=\"pipeline\" style=\"min-width:{0:.0f}px\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "role=\"img\" aria-label=\"Step {2}: what each rank did when\">\n",
        width_, height, step_.step);
    draw_axis();
    for (std::size_t row = 0; row < step_.stages.size(); ++row)
      draw_row(step_.stages[row], static_cast<int>(row));
    for (const Transfer& transfer : transfers) draw_message(transfer);
    out_ += "</svg></div>\n";
    return std::move(out_);
  }

 private:
  static constexpr double left = 84.0, right_space = 10.0, top = 30.0, row_height = 46.0, box_height = 28.0;
  static constexpr double wait_height = 8.0;
  double bottom() const { return top + row_height * static_cast<double>(step_.stages.size()); }
  double x_at(std::int64_t time_ns) const {
    return left + static_cast<double>(time_ns - begin_ns_) / static_cast<double>(end_ns_ - begin_ns_) *
                      (width_ - left - right_space);
  }
  double y_of(int row) const { return top + row_height * row + (row_height - box_height) / 2; }

  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  void draw_axis() {
    for (const double tick_ms : linear_ticks({0.0, milliseconds(end_ns_ - begin_ns_)}, width_ / 110.0)) {
      const double x = x_at(begin_ns_ + std::llround(tick_ms * 1e6));
      add("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>"
          "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:.6g}{5}</text>\n",
          x, top, bottom(), bottom() + 16.0, tick_ms, tick_ms > 0.0 ? "" : " ms");
    }
    const double from = x_at(step_.window.begin_ns), to = x_at(step_.window.end_ns);
    add("<path class=\"window\" d=\"M{0:.1f} {2:.1f}v-6H{1:.1f}v6\"/><text class=\"window-text\" "
        "x=\"{3:.1f}\" "
        "y=\"{4:.1f}\">forward and backward {5:.4g} ms, of which {6:.1f} % bubble</text>\n",
        from, to, top - 4.0, (from + to) / 2, top - 14.0, milliseconds(step_.window.duration_ns()),
        100.0 * step_.bubble_share);
  }

  void draw_row(const RankStep& rank, int row) {
    const double y = y_of(row);
    add("<text class=\"row-name\" x=\"0\" y=\"{:.1f}\">rank {}</text><text class=\"row-note\" x=\"0\" "
        "y=\"{:.1f}\">stage {}</text>\n",
        y + 11.0, rank.rank, y + 25.0, rank.coordinate.pipeline);
    add("<rect class=\"lane\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"1\"/>\n", left,
        y + box_height / 2, width_ - left - right_space);
    for (const Idle& idle : rank.idle) draw_idle(idle, rank, y);
    for (const Span& span : rank.compute) draw_box(span, rank, y);
  }

  void draw_idle(const Idle& idle, const RankStep& rank, double y) {
    const double x = x_at(idle.begin_ns), width = x_at(idle.end_ns) - x;
    if (width < 0.3) return;
    add("<rect class=\"wait {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"><title>rank {} "
        "{}\n{:.3f} ms, "
        "from {:.3f} ms on</title></rect>\n",
        wait_class(idle), x, y + (box_height - wait_height) / 2, width, wait_height, rank.rank,
        idle.waits ? fmt::format("waits: {}", title_of(idle.kind))
                   : "idles: nothing recorded that it waits for",
        milliseconds(idle.duration_ns()), milliseconds(idle.begin_ns - begin_ns_));
  }

  std::string title(const Span& span, const RankStep& rank) const {
    std::string text = title_of(span.kind);
    if (span.microbatch >= 0) {
      const int lane = span.microbatch / schedule_.microbatches_per_lane;
      text += fmt::format(" of microbatch {} (number {} of its lane {})", span.microbatch,
                          span.microbatch % schedule_.microbatches_per_lane, lane);
    }
    if (schedule_.chunks > 1 && span.chunk >= 0) text += fmt::format(", chunk {}", span.chunk);
    return text + fmt::format("\nrank {}, stage {}\n{:.3f} ms, from {:.3f} ms on\nprocessor time {:.3f} ms",
                              rank.rank, rank.coordinate.pipeline,
                              milliseconds(span.end.time_ns - span.begin.time_ns),
                              milliseconds(span.begin.time_ns - begin_ns_),
                              milliseconds(span.end.worked_ns - span.begin.worked_ns));
  }

  // The later the chunk, the higher its pale foot.
  void draw_box(const Span& span, const RankStep& rank, double y) {
    const double x = x_at(span.begin.time_ns), width = std::max(0.5, x_at(span.end.time_ns) - x);
    const char* const css_class = box_class(span.kind);
    const std::string hue =
        span.microbatch < 0 ? "" : fmt::format(" m{}", static_cast<std::size_t>(span.microbatch) % hues);
    add("<rect class=\"box {}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" "
        "rx=\"1.5\"><title>{}</title>"
        "</rect>",
        css_class, hue, x, y, width, box_height, title(span, rank));
    if (span.chunk > 0) {
      const double foot = std::min(6.0 * span.chunk, box_height);
      add("<rect class=\"chunk\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>", x,
          y + box_height - foot, width, foot);
    }
    const std::string number = span.microbatch < 0 ? "" : fmt::format("{}", span.microbatch);
    if (!number.empty() && width >= 4.0 + 7.0 * static_cast<double>(number.size())) {
      add("<text class=\"number {}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", css_class, x + width / 2, y + 17.0,
          number);
    }
    out_ += '\n';
  }

  void draw_message(const Transfer& transfer) {
    const auto source = row_of_.find(transfer.source), target = row_of_.find(transfer.target);
    if (source == row_of_.end() || target == row_of_.end() || source == target) return;
    const bool down = target->second > source->second;
    const double y1 = y_of(source->second) + (down ? box_height : 0.0),
                 y2 = y_of(target->second) + (down ? 0.0 : box_height);
    const bool activation = transfer.sent.kind == SpanKind::send_activation;
    add("<path class=\"message {}\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"><title>{} of microbatch {}, {} "
        "bytes\nrank {} to "
        "rank {}\n{:.3f} ms, from {:.3f} ms on</title></path>\n",
        activation ? "activation" : "gradient", x_at(transfer.sent.begin.time_ns), y1,
        x_at(transfer.received.end.time_ns), y2, activation ? "activation" : "gradient",
        transfer.sent.microbatch, transfer.sent.bytes, transfer.source, transfer.target,
        milliseconds(transfer.duration_ns()), milliseconds(transfer.sent.begin.time_ns - begin_ns_));
  }

  const PipelineStep& step_;
  const ScheduleShape& schedule_;
  std::int64_t begin_ns_ = 0, end_ns_ = 1;
  double width_ = 0.0;
  std::map<int, int> row_of_;  // by rank
  std::string out_;
};

}  // namespace

std::string pipeline_chart(const PipelineStep& step, const ScheduleShape& schedule,
                           const std::vector<Transfer>& transfers) {
  return PipelineCanvas(step, schedule).draw(transfers);
}

std::string pipeline_legend(const PipelineStep& step, const ScheduleShape& schedule) {
  std::set<SpanKind> computed;
  std::map<std::string, std::string> waits;  // by class
  for (const RankStep& rank : step.stages) {
    for (const Span& span : rank.compute) computed.insert(span.kind);
    for (const Idle& idle : rank.idle) {
      if (idle.duration_ns() * 1000 >= rank.step.duration_ns())
        waits.emplace(wait_class(idle), idle.waits ? title_of(idle.kind) : "nothing recorded");
    }
  }
  std::string legend;
  for (const SpanKind kind : computed)
    legend += legend_entry(fmt::format("swatch {}", box_class(kind)), title_of(kind));
  if (schedule.chunks > 1) legend += legend_entry("swatch c1", "a pale foot: a later chunk");
  for (const auto& [css_class, title] : waits)
    legend += legend_entry(fmt::format("swatch wait {}", css_class), "waits: " + title);
  if (schedule.stages > 1)
    legend += legend_entry("message activation", "activation") + legend_entry("message gradient", "gradient");
  return legend;
}

}  // namespace holdfast::inline timeline
