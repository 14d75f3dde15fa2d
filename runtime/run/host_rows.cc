#include "runtime/run/host_rows.h"

#include "runtime/core/record.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::run {
namespace {

std::string path_of(const RunPaths& paths) {
  return paths.launch() + "/hosts.json";
}

}  // namespace

Result<void> write_host_rows(Env& env, const RunPaths& paths, const HostRows& rows) {
  return env.replace_text(path_of(paths), record_to_text(rows) + "\n");
}

Result<void> remove_host_rows(Env& env, const RunPaths& paths) {
  return env.remove(path_of(paths));
}

HostRows read_host_rows(Env& env, const RunPaths& paths) {
  const Result<std::string> text = read_text_within(env, path_of(paths), text_limits::hardware_record);
  if (!text.ok()) return {};
  Result<HostRows> rows = record_from_text<HostRows>(*text);
  return rows.ok() ? std::move(rows).value() : HostRows();
}

}  // namespace holdfast::run
