// leave(): how a process that a test forked ends, without the ends of the tests that it would have run.
#pragma once

#include <unistd.h>

// Writes the counters out: a function of gcc's gcov library, where the build counts what is executed
// (tools/coverage); else null.
extern "C" void __gcov_dump() __attribute__((weak));

namespace holdfast::test {

[[noreturn]] inline void leave(int code) {
  if (__gcov_dump != nullptr) __gcov_dump();  // _exit() would lose what was counted
  ::_exit(code);
}

}  // namespace holdfast::test
