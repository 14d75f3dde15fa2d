// Common parts of the pages of Holdfast: one file, no script, nothing from elsewhere, right on light and dark
// screens. Pure.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::report {

// Returns a whole page. `style` is added to the common style sheet, `body` is HTML.
std::string html_page(std::string_view title, std::string_view style, std::string_view body);
// Returns the numbers on top of a page, each from fact().
std::string facts(const std::string& all);
std::string fact(std::string_view name, const std::string& value, const std::string& remark = "");
std::string legend_entry(std::string_view css_class, std::string_view name);
// `legend` and `body` are HTML.
std::string card(std::string_view title, std::string_view remark, const std::string& legend,
                 const std::string& body);
// Returns a table that scrolls where it is wider than the page. `rows` are HTML.
std::string table(const std::string& rows);
std::string number_cell(const std::string& text);
std::string number_head(std::string_view text);
std::string shown_seconds(double duration_s);  // "0.0165 s", "1h20m"
std::string percent(double share);             // "33.3 %"
std::string escape_html(std::string_view text);
// Returns "quickstart" for "runs/quickstart/".
std::string run_name(const std::string& directory);

}  // namespace holdfast::report
