#include "runtime/report/report_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "runtime/core/units.h"

namespace holdfast::report {
namespace {

constexpr std::string_view common_style = R"css(
:root {
  color-scheme: light dark;
  --page: #f6f6f4; --card: #ffffff; --edge: #e3e2de; --ink: #16161a; --soft: #5b5a57; --faint: #8b8a86;
  --grid: #ecebe7; --axis: #c2c1bc; --train: #2a78d6; --held: #e0662f; --other: #178f68;
  --good: #15803d; --warn: #a16207; --bad: #c8322f; --info: #2a78d6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f0f10; --card: #19191b; --edge: #2c2c2f; --ink: #f4f4f2; --soft: #b4b3ae; --faint: #85847f;
    --grid: #262628; --axis: #45454a; --train: #4a94ec; --held: #e8804f; --other: #2fb287;
    --good: #4ade80; --warn: #facc15; --bad: #f87171; --info: #7cb5f5;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 56px; }
header { display: flex; align-items: baseline; flex-wrap: wrap; gap: 4px 14px; }
h1 { font-size: 26px; line-height: 1.2; letter-spacing: -0.01em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; font-weight: 600; margin: 0; }
p { margin: 4px 0 0; color: var(--soft); overflow-wrap: anywhere; }
.badge { font-size: 13px; font-weight: 600; padding: 2px 10px; border-radius: 999px; border: 1px solid currentColor; }
.finished { color: var(--good); } .running { color: var(--info); } .saved { color: var(--warn); }
.failed { color: var(--bad); } .unknown { color: var(--faint); }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1px; margin: 22px 0;
  background: var(--edge); border: 1px solid var(--edge); border-radius: 12px; overflow: hidden; }
.fact { background: var(--card); padding: 12px 16px; }
.fact dt { font-size: 12px; color: var(--soft); }
.fact dd { margin: 0; font-size: 21px; font-weight: 600; letter-spacing: -0.01em; }
.fact dd small { font-size: 12px; font-weight: 400; letter-spacing: 0; color: var(--faint); white-space: nowrap; }
@media (max-width: 760px) { .facts { grid-template-columns: 1fr 1fr; } main { padding: 20px 12px 40px; } }
dl { margin: 0; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 16px 18px; margin: 0 0 16px; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 16px; }
.head { display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: 4px 18px; margin-bottom: 8px; }
.head small { color: var(--faint); font-weight: 400; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12.5px; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend i { width: 16px; border-top: 2px solid; }
.legend i.raw { opacity: 0.4; } .legend i.resume, .legend i.start { border-top-style: dashed; }
svg.chart { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
.tick { fill: var(--faint); font-variant-numeric: tabular-nums; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.raw { stroke-width: 1; opacity: 0.35; } .line.other { stroke-width: 1.4; }
.dot { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
.train, .raw { color: var(--train); } .held { color: var(--held); } .other { color: var(--other); }
.line, .dot { pointer-events: none; }
.marker line { stroke: currentColor; stroke-width: 1.5; }
.marker circle { fill: currentColor; stroke: var(--card); stroke-width: 1; }
.start, .checkpoint { color: var(--faint); } .resume { color: var(--warn); } .fault { color: var(--bad); }
.recovery { color: var(--good); }
.marker.start line, .marker.resume line { stroke-dasharray: 4 4; }
.band { fill: transparent; } .band:hover { fill: currentColor; fill-opacity: 0.06; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; }
th { text-align: left; font-weight: 500; font-size: 12px; color: var(--soft); padding: 4px 14px 6px 0; }
td { padding: 6px 14px 6px 0; border-top: 1px solid var(--edge); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.time { white-space: nowrap; color: var(--soft); font-variant-numeric: tabular-nums; }
td.name { white-space: nowrap; font-weight: 500; } td.details { color: var(--soft); overflow-wrap: anywhere; }
details summary { cursor: pointer; font-weight: 600; }
pre { margin: 12px 0 0; font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-x: auto; }
.empty { color: var(--faint); padding: 18px 0; }
)css";

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string html_page(std::string_view title, std::string_view style, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{} · "
      "Holdfast</title>\n<style>{}{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
      escape_html(title), common_style, style, body);
}

std::string fact(std::string_view name, const std::string& value, const std::string& remark) {
  const std::string small = remark.empty() ? "" : fmt::format(" <small>{}</small>", escape_html(remark));
  return fmt::format("<div class=\"fact\"><dt>{}</dt><dd>{}{}</dd></div>\n", name, escape_html(value), small);
}

std::string facts(const std::string& all) {
  return "<dl class=\"facts\">\n" + all + "</dl>\n";
}

std::string legend_entry(std::string_view css_class, std::string_view name) {
  return fmt::format("<span><i class=\"{}\"></i>{}</span>", css_class, name);
}

std::string card(std::string_view title, std::string_view remark, const std::string& legend,
                 const std::string& body) {
  return fmt::format(
      "<section class=\"card\">\n<div class=\"head\"><h2>{} <small>{}</small></h2><div "
      "class=\"legend\">{}</div></div>\n{}"
      "</section>\n",
      title, remark, legend, body);
}

std::string table(const std::string& rows) {
  return "<div class=\"scroll\"><table>\n" + rows + "</table></div>\n";
}

std::string number_cell(const std::string& text) {
  return fmt::format("<td class=\"number\">{}</td>", text);
}

std::string number_head(std::string_view text) {
  return fmt::format("<th class=\"number\">{}</th>", text);
}

std::string shown_seconds(double duration_s) {
  if (duration_s < 100.0) return format_seconds(duration_s);
  return format_duration(static_cast<std::int64_t>(std::min(duration_s, 1e12)) * 1000);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100.0 * share);
}

std::string run_name(const std::string& directory) {
  std::string_view path = directory;
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return std::string(path.substr(path.find_last_of('/') + 1));
}

}  // namespace holdfast::report
