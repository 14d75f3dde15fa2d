#include "tools/kernel_kit/bench_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/plugin.h"
#include "runtime/run/hardware_record.h"
#include "tools/kernel_kit/kernel_check.h"

namespace holdfast::bench::kernel_kit {
namespace {

struct SourceText {
  std::string path = {}, content = {};
};

// Returns all files that `kernel new` puts beside a plug-in but its page; none where one is not there.
std::vector<SourceText> sources_of(Env& env, const std::string& plugin) {
  const std::size_t slash = plugin.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : plugin.substr(0, slash + 1);
  std::vector<SourceText> sources;
  for (const char* const name : {"kernel.cc", "holdfast_kernel.h", "Makefile"}) {
    std::string text = env.text_or_empty(folder + name);
    if (text.empty()) return {};
    sources.push_back({.path = name, .content = std::move(text)});
  }
  return sources;
}

Json solution_of(const std::string& name, const std::string& definition,
                 const std::vector<SourceText>& sources) {
  Json files = Json::array();
  for (const SourceText& each : sources)
    files.push_back(Json{{"path", each.path}, {"content", each.content}});
  return {
      {"name", name},
      {"definition", definition},
      {"author", "holdfast"},
      {"description",
       "a plug-in of Holdfast: its entry hands out kernels for structs of holdfast_kernel.h, which holdfast "
       "kernel check and bench call"},
      {"spec",
       {{"language", "cpp"},
        {"target_hardware", Json::array({Json("cpu")})},
        {"entry_point", sources.front().path + "::hf_kernels"},
        {"dependencies", Json::array()},
        {"destination_passing_style", true}}},
      {"sources", files}};
}

// "2026-11-27 15:40:16 UTC" as ISO 8601 has it.
std::string iso_time(std::int64_t time_us) {
  const std::string text = time_text(time_us);
  return text.substr(0, text.find(' ')) + "T" + text.substr(text.find(' ') + 1, 8) + "Z";
}

// Figures are those of one kernel of the plug-in, and of the default. A kernel that does not do the work has neither numbers nor a
// time that count.
Json evaluation_of(const CallErrors& errors, const std::vector<std::string>& problems, double seconds,
                   double usual_seconds) {
  constexpr double most = 1e300;  // JSON has no infinity
  const bool is_right = errors.is_allowed && problems.empty();
  Json evaluation{{"status", is_right            ? "PASSED"
                             : errors.is_allowed ? "RUNTIME_ERROR"
                                                 : "INCORRECT_NUMERICAL"},
                  {"log", fmt::format("{}", fmt::join(problems, "\n"))}};
  if (is_right || !errors.is_allowed)
    evaluation["correctness"] = Json{{"max_relative_error", std::min(errors.relative, most)},
                                     {"max_absolute_error", std::min(errors.absolute, most)},
                                     {"extra",
                                      {{"relative_to", "the largest element of the array"},
                                       {"max_ulp", std::min(errors.ulp, most)},
                                       {"not_finite", errors.wrong_kind}}}};
  if (is_right)
    evaluation["performance"] = Json{{"latency_ms", seconds * 1e3},
                                     {"reference_latency_ms", usual_seconds * 1e3},
                                     {"speedup_factor", usual_seconds / seconds}};
  return evaluation;
}

double usual_seconds_of(const CallFigures& call) {
  for (const KernelFigures& each : call.kernels) {
    if (each.is_default) return each.warm.seconds;
  }
  return 0.0;
}

// A trace may come from anywhere, and links of it lead out of it.
Result<void> check_links(Env& env, const std::string& folder, const std::string& name) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    const std::string path = fmt::format("{}/{}", folder, name.substr(0, end));
    HF_TRY(const FileStatus status, env.status(path));
    if (status.link)
      return fail(ExitCode::config,
                  "{} is a symbolic link, and records stay in the folder of the trace; remove it", path);
  }
  return {};
}

}  // namespace

Json records_of(Env& env, const RecordTerms& terms, const TracedCalls& calls, const OpFigures& figures) {
  const std::vector<SourceText> sources = sources_of(env, terms.plugin);
  Json records = Json::array();
  const auto add = [&](const char* folder, const std::string& file, const Json& json) {
    records.push_back(
        Json{{"path", fmt::format("{}/{}/{}", folder, name_of(terms.op), file)}, {"json", json}});
  };
  for (std::size_t i = 0; i < figures.calls.size(); ++i) {
    const std::string definition = calls.workloads[i].value("definition", "");
    for (const KernelFigures& each : figures.calls[i].kernels) {
      if (!each.is_of_plugin) continue;
      const Implementation& kernel = *terms.registry->find(terms.op, each.name, best_cpu_isa());
      const std::string solution =
          fmt::format("{}_{}_{}", each.name, short_digest(*kernel.plugin->file), definition);
      Json trace = calls.workloads[i];
      trace["solution"] = Json(solution);
      trace["evaluation"] =
          evaluation_of(errors_of(kernel, calls.checked[calls.first[i]], 1), figures.problems,
                        each.warm.seconds, usual_seconds_of(figures.calls[i]));
      trace["evaluation"]["environment"] =
          Json{{"hardware", terms.hardware}, {"libs", {{"holdfast", terms.program}}}};
      trace["evaluation"]["timestamp"] = Json(iso_time(env.wall_time_us()));
      add("traces", definition + ".jsonl", trace);
      if (!sources.empty()) add("solutions", solution + ".json", solution_of(solution, definition, sources));
    }
  }
  return records;
}

Result<void> write_records(Env& env, const std::string& folder, const Json& records) {
  for (const Json& each : records) {
    HF_TRY_VOID(check_links(env, folder, each.at("path").text()));
    const std::string path = fmt::format("{}/{}", folder, each.at("path").text());
    HF_TRY_VOID(env.make_directories(path.substr(0, path.rfind('/'))));
    const Json& json = each.at("json");
    HF_TRY_VOID(path.ends_with(".jsonl") ? env.append_line(path, json.dump_any())
                                         : env.replace_text(path, json.dump_any(1) + "\n"));
  }
  return {};
}

}  // namespace holdfast::bench::kernel_kit
