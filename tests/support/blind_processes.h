// BlindProcesses: a Processes for which the system tells nothing of one process, neither that it lives nor
// that it does not, as where there is no descriptor left. The text of a file says which one, so that a test
// can hide a process from another process, and show it again.
//
//   BlindEnv blind(env, directory / "hidden");
//   hide(directory / "hidden", process->id());
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/processes.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {

class BlindProcesses final : public Processes {
 public:
  BlindProcesses(Processes& inner, std::string file, std::string name_space)
      : inner_(&inner), file_(std::move(file)), name_space_(std::move(name_space)) {}

  Result<std::unique_ptr<Process>> start(const ProcessStart& start) override { return inner_->start(start); }
  Result<std::unique_ptr<Process>> find(std::int64_t id) override {
    if (hides(id)) return fail(ExitCode::communication, "process {}: Too many open files", id);
    return inner_->find(id);
  }
  Result<std::optional<ProcessFacts>> look(std::int64_t id) override {
    if (hides(id)) return fail(ExitCode::communication, "process {}: Too many open files", id);
    return inner_->look(id);
  }
  std::vector<std::int64_t> list() override { return inner_->list(); }
  std::string own_namespace() override { return name_space_; }
  bool wait_any_ended(std::span<Process* const> processes, std::int64_t timeout_ms) override {
    return inner_->wait_any_ended(processes, timeout_ms);
  }

 private:
  bool hides(std::int64_t id) const { return posix_env().text_or_empty(file_) == std::to_string(id); }

  Processes* inner_;
  std::string file_, name_space_;
};

class BlindEnv final : public ForwardingEnv {
 public:
  BlindEnv(Env& inner, std::string file, std::string name_space = "pid:[1]")
      : ForwardingEnv(inner), processes_(inner.processes(), std::move(file), std::move(name_space)) {}
  Processes& processes() override { return processes_; }

 private:
  BlindProcesses processes_;
};

// Process 0: all are shown again.
inline void hide(const std::string& file, std::int64_t process) {
  HF_CHECK(posix_env().replace_text(file, std::to_string(process)).ok());
}

}  // namespace holdfast::test
