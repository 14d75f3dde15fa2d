#include "tools/chaos/resource_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "runtime/launch/run_processes.h"

namespace holdfast::chaos {
namespace {

constexpr std::int64_t every_ns = 5'000'000'000;
constexpr std::size_t looks_of_part = 5;   // so many first and last looks are compared
constexpr std::int64_t kept_allowed = 16;  // descriptors: a pool that fills, a library that is loaded late

ResourceUse least_of(std::span<const ResourceUse> looks) {
  ResourceUse least = looks.front();
  for (const ResourceUse& use : looks) {
    least.resident_bytes = std::min(least.resident_bytes, use.resident_bytes);
    least.descriptors = std::min(least.descriptors, use.descriptors);
  }
  return least;
}

// Returns what a process does: the word after the program's name where it is this program, else that name.
std::string program_of(Env& env, std::int64_t process) {
  const Result<std::string> words = env.read_text(fmt::format("/proc/{}/cmdline", process));
  if (!words.ok()) return "";
  const std::size_t end = std::min(words->find('\0'), words->size());
  const std::string path = words->substr(0, end);
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name != "holdfast" || end + 1 >= words->size()) return name;
  return words->substr(end + 1, words->find('\0', end + 1) - end - 1);
}

}  // namespace

ResourceGrowth growth_of(const std::vector<ResourceUse>& looks) {
  const std::span<const ResourceUse> all = looks;
  const std::size_t part = std::min(looks_of_part, all.size());
  if (part == 0) return {};
  return {.program = {}, .first = least_of(all.first(part)), .last = least_of(all.last(part))};
}

std::string descriptors_kept(const std::vector<ResourceGrowth>& growths) {
  for (const ResourceGrowth& growth : growths) {
    if (growth.descriptors() <= kept_allowed) continue;
    return fmt::format(
        "process {} ({}) had {} descriptors at first and {} after {} s: it keeps what it opens",
        growth.process, growth.program, growth.first.descriptors, growth.last.descriptors, growth.seconds);
  }
  return "";
}

void ResourceWatch::look(std::int64_t launcher, const std::string& directory) {
  const std::int64_t now_ns = env_->monotonic_ns();
  if (now_ns < next_ns_) return;
  next_ns_ = now_ns + every_ns;
  look_at(launcher);
  if (directory.empty()) return;
  for (const std::unique_ptr<Process>& process : launch::processes_of_start(*env_, directory))
    look_at(process->id());
}

void ResourceWatch::look_at(std::int64_t process) {
  const std::optional<ProcessFacts> facts = env_->processes().facts(process);
  const Result<std::vector<std::string>> descriptors = env_->list(fmt::format("/proc/{}/fd", process));
  if (!facts.has_value() || facts->has_ended() || !descriptors.ok()) return;
  const auto known = started_ticks_.find(process);
  if (known == started_ticks_.end() || known->second != facts->started_ticks) {
    started_ticks_[process] = facts->started_ticks;
    places_[process] = watched_.size();
    watched_.push_back(
        {.process = process, .program = program_of(*env_, process), .begin_ns = env_->monotonic_ns()});
    return;  // it may only just begin
  }
  Watched& watched = watched_[places_.at(process)];
  watched.last_ns = env_->monotonic_ns();
  watched.looks.push_back({.resident_bytes = facts->resident_bytes, .descriptors = descriptors->size()});
}

std::vector<ResourceGrowth> ResourceWatch::growths() const {
  std::vector<ResourceGrowth> growths;
  for (const Watched& watched : watched_) {
    if (watched.looks.size() < 2 * looks_of_part) continue;
    ResourceGrowth growth = growth_of(watched.looks);
    growth.program = watched.program;
    growth.process = watched.process;
    growth.seconds = (watched.last_ns - watched.begin_ns) / 1'000'000'000;
    growths.push_back(std::move(growth));
  }
  return growths;
}

}  // namespace holdfast::chaos
