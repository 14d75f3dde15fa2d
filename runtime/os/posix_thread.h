// Threads and condition variables of the real operating system (Env::start_thread, Env::make_condition).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/os/thread.h"

namespace holdfast::os {

Result<std::unique_ptr<Thread>> start_posix_thread(const std::string& name, std::function<void()> work);
std::unique_ptr<Condition> make_posix_condition();

}  // namespace holdfast::os
