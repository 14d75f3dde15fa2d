#include "tools/kernel_kit/kernel_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <vector>

#include "runtime/core/text.h"

namespace holdfast::bench::kernel_kit {
namespace {

using Words = std::map<std::string, std::string, std::less<>>;

// Returns the text with each @WORD@ replaced.
std::string filled_in(std::string_view text, const Words& words) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = text.find('@', at);
    const std::size_t end = begin == std::string_view::npos ? begin : text.find('@', begin + 1);
    const auto word =
        end == std::string_view::npos ? words.end() : words.find(text.substr(begin + 1, end - begin - 1));
    if (word == words.end()) {
      const std::size_t next = begin == std::string_view::npos ? text.size() : begin + 1;
      result += text.substr(at, next - at);
      at = next;
      continue;
    }
    result += text.substr(at, begin - at);
    result += word->second;
    at = end + 1;
  }
  return result;
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string template_of(OpId op) {
  return fmt::format("{}.cc.in", name_of(op));
}

}  // namespace

Result<OpId> op_of_name(std::string_view name) {
  const auto* found = std::ranges::find(op_names, name);
  if (found != std::end(op_names)) return static_cast<OpId>(found - std::begin(op_names));
  const std::vector<std::string_view> names(std::begin(op_names), std::end(op_names));
  const std::string near = closest(name, names);
  return fail(ExitCode::config, "there is no op {}{}; `holdfast kernel list` has all", name,
              near.empty() ? "" : fmt::format(", did you mean {}?", near));
}

std::string contract_of(OpId op) {
  const std::string_view header = plugin_header();
  const std::string title = fmt::format("// === op {} ===\n", name_of(op));
  const std::size_t begin = header.find(title);
  HF_CHECK(begin != std::string_view::npos, "the header has no op {}", name_of(op));
  const std::size_t next = header.find("\n// === op ", begin),
                    last = header.find("\n#ifdef __cplusplus", begin);
  std::string_view text = header.substr(begin, std::min(next, last) - begin);
  text.remove_prefix(title.size());
  if (text.starts_with("//\n")) text.remove_prefix(3);
  return std::string(text);
}

bool has_whole_kernel(OpId op) {
  return !text_of_file(template_of(op)).empty();
}

Result<void> make_kernel_folder(Env& env, const FolderTerms& terms) {
  if (terms.language != "cpp")
    return fail(ExitCode::config, "--lang {} is not known; expected cpp", terms.language);
  const bool is_whole = has_whole_kernel(terms.op);
  const std::string op = name_of(terms.op);
  const std::string_view body =
      is_whole ? text_of_file(template_of(terms.op)) : text_of_file("skeleton.cc.in");
  const Words words = {
      {"OP", op},
      {"SCHEMA", "HF_SCHEMA_" + upper(op)},
      {"FLAGS", is_whole ? "HF_SAME_BITS_TWICE | HF_LAYOUT_FREE" : "0"},
      {"WHAT", is_whole ? "of holdfast kernel new" : "a skeleton"},
      {"SUPPORTS", body.find("int supports(") != std::string_view::npos ? "supports" : "nullptr"},
      {"STATE", is_whole ? "is a whole kernel, simple and right: change it"
                         : "is a skeleton: it says of every call that it does not compute it"},
      {"DIR", terms.folder},
      {"HOLDFAST", terms.program},
      {"CONTRACT", contract_of(terms.op)},
  };
  std::string source(text_of_file("begin.cc.in"));
  source += body;
  source += text_of_file("end.cc.in");
  const std::array<std::pair<const char*, std::string>, 4> files = {
      {{"kernel.cc", filled_in(source, words)},
       {"Makefile", filled_in(text_of_file("Makefile.in"), words)},
       {"README.md", filled_in(text_of_file("README.md.in"), words)},
       {"holdfast_kernel.h", std::string(plugin_header())}}};
  for (const auto& [name, text] : files) {
    HF_TRY(const FileStatus status, env.status(terms.folder + "/" + name));
    if (status.exists)
      return fail(ExitCode::config, "{}/{} exists, and is not overwritten; give another folder with --out",
                  terms.folder, name);
  }
  HF_TRY_VOID(env.make_directories(terms.folder));
  for (const auto& [name, text] : files) {
    const Result<void> written = env.replace_text(terms.folder + "/" + name, text);
    if (!written.ok()) return with_code(ExitCode::config, written.error());
  }
  return {};
}

}  // namespace holdfast::bench::kernel_kit
