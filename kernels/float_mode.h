// KeptFloatMode keeps how a thread computes with floats while code runs that somebody else has built: a library that was
// linked with -ffast-math makes the thread that loads it take denormal numbers as zero (MXCSR), and the threads that it
// starts inherit that. The bits of all kernels would change.
#pragma once

namespace holdfast::kernels {

// Lives on the stack of the thread whose mode it keeps; its destructor brings the mode back.
class KeptFloatMode {
 public:
  KeptFloatMode() : before_(__builtin_ia32_stmxcsr()) {}
  ~KeptFloatMode() {
    if (is_changed()) __builtin_ia32_ldmxcsr(before_);
  }
  KeptFloatMode(const KeptFloatMode&) = delete;
  KeptFloatMode& operator=(const KeptFloatMode&) = delete;

  // Returns whether the thread computes in another mode now.
  bool is_changed() const { return now() != before(); }
  // Return MXCSR without the flags that say what has happened.
  unsigned before() const { return before_ & ~exception_flags; }
  static unsigned now() { return __builtin_ia32_stmxcsr() & ~exception_flags; }

 private:
  static constexpr unsigned exception_flags = 0x3f;
  unsigned before_;
};

}  // namespace holdfast::kernels
