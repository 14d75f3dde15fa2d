#include "tools/kernel_kit/check_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/core/text.h"
#include "runtime/report/report_page.h"

namespace holdfast::bench::kernel_kit {
namespace {

// ArraySummary is about one array and type over all calls.
struct ArraySummary {
  std::string array = {}, dtype = {}, worst_call = {};
  std::int64_t worst_index = -1, numbers = 0;
  double ulp_max = -1.0, ulp_sum = 0.0, relative = 0.0, default_relative = 0.0;
  std::array<std::int64_t, NumberErrors::buckets> histogram = {};
};

// Summarises calls with usual numbers, and those of a trace: in others a few elements nearly cancel, which no ULP says anything about.
std::vector<ArraySummary> summaries_of(const KernelVerdict& verdict) {
  std::vector<ArraySummary> rows;
  for (const CallVerdict& each : verdict.numbers) {
    if (!each.call.ends_with("usual") && !each.call.ends_with("traced")) continue;
    auto row = std::ranges::find_if(rows, [&](const ArraySummary& other) {
      return other.array == each.array && other.dtype == each.dtype;
    });
    if (row == rows.end()) row = rows.insert(row, {.array = each.array, .dtype = each.dtype});
    row->numbers += each.errors.count;
    row->ulp_sum += each.errors.ulp_sum;
    row->relative = std::max(row->relative, each.errors.relative());
    row->default_relative = std::max(row->default_relative, each.default_relative);
    for (std::size_t i = 0; i < row->histogram.size(); ++i) row->histogram[i] += each.errors.histogram[i];
    if (each.errors.ulp_max <= row->ulp_max) continue;
    row->ulp_max = each.errors.ulp_max;
    row->worst_index = each.errors.worst;
    row->worst_call = each.call;
  }
  return rows;
}

std::vector<std::string> cells_of(const ArraySummary& row) {
  std::vector<std::string> cells = {
      row.array,
      row.dtype,
      row.worst_index < 0 ? "-" : fmt::format("[{}] of {}", row.worst_index, row.worst_call),
      fmt::format("{:.3g}", row.ulp_max),
      fmt::format("{:.3g}", row.ulp_sum / static_cast<double>(std::max<std::int64_t>(row.numbers, 1))),
      fmt::format("{:.1e}", row.relative),
      fmt::format("{:.1e}", row.default_relative)};
  for (const std::int64_t count : row.histogram) cells.push_back(fmt::format("{}", count));
  return cells;
}

std::vector<std::string> head_of_table() {
  std::vector<std::string> head = {"array", "type", "worst element", "max", "mean", "relative", "default's"};
  for (std::size_t i = 0; i < NumberErrors::buckets; ++i)
    head.push_back(i == 0                           ? "exact"
                   : i + 1 == NumberErrors::buckets ? "more"
                                                    : fmt::format("<={}", NumberErrors::bucket_names[i]));
  return head;
}

std::string bits_text(const KernelVerdict& verdict) {
  if (verdict.computed == 0) return "not tried";
  if (!verdict.same_bits_twice) return "other bits from one run to the next";
  if (!verdict.layout_free) return "the same in each run, others in another layout";
  if (!verdict.passed()) return "no difference found before the checks ended";
  return fmt::format(
      "the same on 1, 2, 3, 5 and 16 threads, at other addresses, three times beside a thread that disturbs, "
      "{}{}",
      verdict.cut > 0 ? fmt::format("and in {} calls cut in two", verdict.cut) : "and no call was cut in two",
      !verdict.is_of_parts    ? ""
      : verdict.bits_of_parts ? "; those of its parts"
                              : "; others than its parts");
}

std::string title_of(const KernelVerdict& verdict) {
  return fmt::format("{} of {}: {}", verdict.name, verdict.op, verdict.passed() ? "passed" : "wrong");
}

std::string row_of_page(const std::vector<std::string>& cells, bool is_head) {
  constexpr std::size_t words = 3;
  std::string row = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string text = report::escape_html(cells[i]);
    const char* const tag = is_head ? "th" : "td";
    row += i < words ? fmt::format("<{0}>{1}</{0}>", tag, text)
                     : (is_head ? report::number_head(cells[i]) : report::number_cell(text));
  }
  return row + "</tr>";
}

}  // namespace

bool CheckReport::passed() const {
  return std::ranges::all_of(kernels, [](const KernelVerdict& each) { return each.passed(); });
}

Json CheckReport::json() const {
  Json all = Json::array();
  for (const KernelVerdict& each : kernels) all.push_back(each.json());
  Json json{{"plugin", plugin}, {"passed", passed()}, {"seed", seed}, {"kernels", all}};
  if (!trace.empty()) json["trace"] = Json{{"folder", trace}, {"calls", traced}};
  return json;
}

std::string text_of(const CheckReport& report) {
  std::string text = fmt::format("plug-in {}\n", report.plugin);
  if (!report.trace.empty())
    text += fmt::format("{} calls of {}, on what their arrays held, are among those below\n", report.traced,
                        report.trace);
  for (const KernelVerdict& verdict : report.kernels) {
    text += fmt::format("\nkernel {}, {} of {} calls computed\n", title_of(verdict), verdict.computed,
                        verdict.calls);
    const std::vector<ArraySummary> rows = summaries_of(verdict);
    if (!rows.empty()) {
      constexpr std::size_t words = 3;
      TextTable table(head_of_table(), words);
      for (const ArraySummary& row : rows) table.add(cells_of(row));
      text +=
          "error in ULP against the reference in double; relative to the largest element; elements by "
          "error\n";
      text += table.text();
    }
    text += fmt::format("bits: {}\n", bits_text(verdict));
    for (const std::string& each : verdict.problems) text += fmt::format("wrong: {}\n", each);
    for (const std::string& each : verdict.notes) text += fmt::format("note: {}\n", each);
  }
  if (!report.passed()) text += fmt::format("\nthe same numbers again: --seed {}\n", report.seed);
  return text;
}

std::string page_of(const CheckReport& report) {
  std::string body = report::facts(report::fact("plug-in", report::escape_html(report.plugin)) +
                                   report::fact("verdict", report.passed() ? "passed" : "wrong"));
  for (const KernelVerdict& verdict : report.kernels) {
    std::string rows = row_of_page(head_of_table(), true);
    for (const ArraySummary& row : summaries_of(verdict)) rows += row_of_page(cells_of(row), false);
    std::string inside = report::table(rows);
    inside += fmt::format("<p>bits: {}</p>", bits_text(verdict));
    for (const std::string& each : verdict.problems)
      inside += fmt::format("<p>wrong: {}</p>", report::escape_html(each));
    for (const std::string& each : verdict.notes)
      inside += fmt::format("<p>note: {}</p>", report::escape_html(each));
    body += report::card(title_of(verdict),
                         fmt::format("{} of {} calls computed; errors in ULP against the reference in double",
                                     verdict.computed, verdict.calls),
                         "", inside);
  }
  return report::html_page("Kernel check", "", body);
}

}  // namespace holdfast::bench::kernel_kit
