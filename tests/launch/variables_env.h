// An Env whose process has only the variables that the test gives.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/forwarding_env.h"

namespace holdfast::test {

class VariablesEnv final : public ForwardingEnv {
 public:
  explicit VariablesEnv(std::map<std::string, std::string> variables)
      : ForwardingEnv(posix_env()), variables_(std::move(variables)) {}
  std::string variable(const std::string& name) override {
    const auto found = variables_.find(name);
    return found == variables_.end() ? "" : found->second;
  }
  std::vector<std::string> variable_names(const std::string& prefix) override {
    std::vector<std::string> names;
    for (const auto& [name, text] : variables_) {
      if (name.starts_with(prefix)) names.push_back(name);
    }
    return names;
  }

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace holdfast::test
