#include "runtime/report/report_page.h"

#include <fmt/core.h>

#include "runtime/report/report_chart.h"
#include "runtime/report/report_style.h"

namespace holdfast::inline report {

std::string html_page(std::string_view title, std::string_view style, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{} · "
      "Holdfast</title>\n<style>{}{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
      escape_html(title), report_style, style, body);
}

std::string fact(std::string_view name, const std::string& value, const std::string& remark) {
  const std::string small = remark.empty() ? "" : fmt::format(" <small>{}</small>", escape_html(remark));
  return fmt::format("<div class=\"fact\"><dt>{}</dt><dd>{}{}</dd></div>\n", name, escape_html(value), small);
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

std::string run_name(const std::string& directory) {
  std::string_view path = directory;
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return std::string(path.substr(path.find_last_of('/') + 1));
}

}  // namespace holdfast::inline report
