// Shows what `holdfast kernel bench` measured: for people, and as one JSON document.
#include <fmt/format.h>

#include "runtime/core/text.h"
#include "runtime/measure/report.h"
#include "tools/kernel_kit/kernel_bench.h"

namespace holdfast::bench::kernel_kit {
namespace {

std::string name_text(const std::string& name, bool is_default, bool is_of_plugin) {
  return name + (is_default ? ", the default" : is_of_plugin ? ", of the plug-in" : "");
}

std::string error_text(const RoundMean& figure) {
  return figure.seconds > 0.0 ? fmt::format("{:.2f} %", 100.0 * figure.error / figure.seconds) : "";
}

std::string error_line(const OpFigures& figures) {
  if (figures.is_settled) return "every standard error was below 0.1 % when it stopped\n";
  const std::string error =
      fmt::format("the largest standard error is {:.2f} %", 100.0 * figures.largest_error());
  return figures.problems.empty() ? fmt::format("the time is over; {} (--seconds N measures longer)\n", error)
                                  : fmt::format("it stopped at what is wrong; {}\n", error);
}

Json json_of(const RoundMean& figure, double times, const char* unit) {
  return {
      {unit, figure.seconds * times}, {"standard_error", figure.error * times}, {"rounds", figure.rounds}};
}

}  // namespace

std::string text_of(const OpFigures& figures, std::string_view run) {
  TextTable table(
      {"call", "implementation", "calls", "warm us", "+-", "cold us", "+-", "limit us", "of limit"}, 2);
  for (const CallFigures& call : figures.calls) {
    bool is_first = true;
    for (const KernelFigures& each : call.kernels) {
      const auto once = [&](std::string words) { return is_first ? words : ""; };
      table.add({once(call.call), name_text(each.name, each.is_default, each.is_of_plugin),
                 once(std::to_string(call.calls)), digits(each.warm.seconds * 1e6), error_text(each.warm),
                 digits(each.cold.seconds * 1e6), error_text(each.cold),
                 once(digits(call.limit_seconds * 1e6)),
                 measure::percent(call.limit_seconds / each.warm.seconds)});
      is_first = false;
    }
  }
  std::string text = fmt::format("{}\n{}\n", figures.op, table.text());
  text += error_line(figures);
  text += fmt::format("\nms of a step of {}, all calls of {}\n", run, figures.op);
  TextTable steps({"implementation", "warm", "+-", "cold", "+-"}, 1);
  for (const OpFigures::Step& each : figures.steps())
    steps.add({name_text(each.name, each.is_default, each.is_of_plugin), digits(each.warm.seconds * 1e3),
               error_text(each.warm), digits(each.cold.seconds * 1e3), error_text(each.cold)});
  text += steps.text();
  for (const std::string& each : figures.problems) text += fmt::format("wrong: {}\n", each);
  for (const std::string& each : figures.notes) text += fmt::format("note: {}\n", each);
  return text;
}

Json json_of(const OpFigures& figures) {
  Json calls = Json::array(), steps = Json::array();
  for (const CallFigures& call : figures.calls) {
    Json kernels = Json::array();
    for (const KernelFigures& each : call.kernels)
      kernels.push_back({{"name", each.name},
                         {"default", each.is_default},
                         {"plugin", each.is_of_plugin},
                         {"warm", json_of(each.warm, 1e6, "microseconds")},
                         {"cold", json_of(each.cold, 1e6, "microseconds")}});
    calls.push_back({{"call", call.call},
                     {"calls", call.calls},
                     {"limit_microseconds", call.limit_seconds * 1e6},
                     {"implementations", kernels}});
  }
  for (const OpFigures::Step& each : figures.steps())
    steps.push_back({{"name", each.name},
                     {"default", each.is_default},
                     {"plugin", each.is_of_plugin},
                     {"warm", json_of(each.warm, 1e3, "ms")},
                     {"cold", json_of(each.cold, 1e3, "ms")}});
  return {{"op", figures.op},
          {"settled", figures.is_settled},
          {"largest_standard_error", figures.largest_error()},
          {"problems", figures.problems},
          {"notes", figures.notes},
          {"calls", calls},
          {"step", steps}};
}

}  // namespace holdfast::bench::kernel_kit
