#include "runtime/timeline/pictures.h"

#include <fmt/core.h>

#include "runtime/report/report_page.h"
#include "runtime/timeline/pipeline_chart.h"

namespace holdfast::inline timeline {
namespace {

constexpr std::size_t boxes_max = 20'000;  // of a page that a browser still scrolls well

std::string facts_section(const Timeline& timeline, const PipelineTimes& first) {
  std::string text;
  text += fact("Bubble, measured", percent(first.measured_share()),
               timeline.steps.size() > 1 ? fmt::format("median of {} steps", timeline.steps.size()) : "");
  text += fact("Bubble, replayed", percent(first.replayed_share), "the measured parts, no waiting");
  text += fact("Bubble, formula", percent(first.formula_share), "equal parts");
  text += fact("Step", fmt::format("{:.4g} ms", median_step_ms(first)), "median");
  return facts(text);
}

std::string shares_table(const std::vector<PipelineTimes>& pipelines) {
  std::vector<RankShares> ranks;
  for (const PipelineTimes& pipeline : pipelines) {
    const std::vector<RankShares> more = rank_shares(pipeline);
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  const std::vector<SpanKind> waits = waits_of(ranks);
  std::string rows =
      "<tr><th>rank</th><th>stage</th>" + number_head("forward and backward") + number_head("optimizer");
  for (const SpanKind wait : waits) rows += number_head(fmt::format("waits: {}", title_of(wait)));
  rows += number_head("idle otherwise") + "</tr>\n";
  for (const RankShares& rank : ranks) {
    rows += fmt::format("<tr><td>{}</td><td>{}</td>", rank.rank, rank.coordinate.pipeline);
    rows += number_cell(percent(rank.forward_backward()));
    rows += number_cell(percent(rank.spent[static_cast<std::size_t>(SpanKind::update)]));
    for (const SpanKind wait : waits)
      rows += number_cell(percent(rank.spent[static_cast<std::size_t>(wait)]));
    rows += number_cell(percent(rank.other)) + "</tr>\n";
  }
  return card("Where the time went", "shares of a step; a wait counts while the device has nothing to do", "",
              table(rows));
}

std::size_t boxes_of(const PipelineStep& step) {
  std::size_t boxes = 0;
  for (const RankStep& rank : step.stages) boxes += rank.compute.size() + rank.idle.size();
  return boxes;
}

}  // namespace

std::string timeline_page(const std::string& name, const Timeline& timeline,
                          const std::vector<PipelineTimes>& pipelines) {
  const TraceHeader& header = timeline.ranks.front().header;
  std::string text = fmt::format("<header><h1>{}</h1></header>\n<p>{}</p>\n", escape_html(name),
                                 escape_html(describe_timeline(timeline, pipelines.front())));
  text += facts_section(timeline, pipelines.front());
  std::size_t boxes = 0, left_out = 0;
  for (std::size_t i = 0; i < timeline.steps.size(); ++i) {
    const std::vector<Transfer> transfers = transfers_of(timeline, timeline.steps[i]);
    for (const PipelineTimes& pipeline : pipelines) {
      const PipelineStep& step = pipeline.steps[i];
      boxes += boxes_of(step);
      if (boxes > boxes_max && boxes > boxes_of(step)) {
        ++left_out;
        continue;
      }
      const std::string copy =
          header.mesh.data > 1 ? fmt::format(", copy {} of the model", pipeline.data) : "";
      text += card(fmt::format("Step {}{}", step.step, copy), "", pipeline_legend(step, pipeline.schedule),
                   pipeline_chart(step, pipeline.schedule, transfers));
    }
  }
  if (left_out > 0) {
    text += fmt::format(
        "<p>{} more pictures are left out, which would make the page slow; --steps chooses others.</p>\n",
        left_out);
  }
  text += shares_table(pipelines);
  return html_page(name + " timeline", pipeline_chart_style, text);
}

}  // namespace holdfast::inline timeline
