// An Env whose process has only the variables that the test gives.
#pragma once

#include <map>
#include <string>

#include "tests/support/forwarding_env.h"

namespace holdfast {

class VariablesEnv final : public ForwardingEnv {
 public:
  explicit VariablesEnv(std::map<std::string, std::string> variables)
      : ForwardingEnv(posix_env()), variables_(std::move(variables)) {}
  std::string variable(const std::string& name) override {
    const auto found = variables_.find(name);
    return found == variables_.end() ? "" : found->second;
  }

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace holdfast
