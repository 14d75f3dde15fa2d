// Common parts of the pages of Holdfast: one file, no script, nothing from elsewhere, right on light and dark
// screens. Pure.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::inline report {

// Returns a whole page. `style` is added to the common style sheet (report_style.h), `body` is HTML.
std::string html_page(std::string_view title, std::string_view style, std::string_view body);
// Returns one of the numbers on top of a page, inside <dl class="facts">.
std::string fact(std::string_view name, const std::string& value, const std::string& remark = "");
std::string legend_entry(std::string_view css_class, std::string_view name);
// `legend` and `body` are HTML.
std::string card(std::string_view title, std::string_view remark, const std::string& legend,
                 const std::string& body);
// Returns "quickstart" for "runs/quickstart/".
std::string run_name(const std::string& directory);

}  // namespace holdfast::inline report
