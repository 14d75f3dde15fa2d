// TaskRef: the body of a loop that a team of threads runs.
#pragma once

#include <cstdint>

namespace holdfast::kernels::cpu {

// Refers to a function without allocating; it does not outlive the function.
class TaskRef {
 public:
  template <typename F>
  TaskRef(const F& body)  // NOLINT(google-explicit-constructor): call sites pass lambdas
      : object_(&body), call_([](const void* object, std::int64_t index, int thread) {
          (*static_cast<const F*>(object))(index, thread);
        }) {}
  void operator()(std::int64_t index, int thread) const { call_(object_, index, thread); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, int);
};

}  // namespace holdfast::kernels::cpu
