// OutputThread: while it lives, what this process prints (stdout and stderr of C) goes to threads of its own,
// so that a stopped terminal, an unread pipe or a file on a stalled disk delays only the output.
//
// A line is passed on when it is whole, the last one with drain() or the end. Lines that cannot be written yet
// wait in memory (line_thread.h), up to OutputThread::memory_bytes for each stream; beyond that the oldest are
// dropped, and a line in their place gives their number once the stream moves again. Lines stay whole and in
// order; where both streams are one file, as after 2>&1, in the order of both.
//
// A write to stderr also waits until the text is out, but for a tenth of a second at most once the thread has
// it, and not at all while the stream is stalled: a message before a sudden end is written unless the stream
// stalls. Waiting text is lost when the process is killed.
//
// Made once in a process, in `main`, before other threads print. It does not cover the output of child
// processes, nor what is written to the descriptors directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>

namespace holdfast::os {

struct TerminalSize {
  int columns = 80, rows = 24;
};
// Returns the size of the terminal that the stream writes to, or nothing where it writes to something else.
std::optional<TerminalSize> terminal_size(std::FILE* stream);

class OutputThread {
 public:
  static constexpr std::size_t memory_bytes = std::size_t{1} << 20;

  OutputThread();
  // Waits as drain() does and restores the streams. Code that has kept one of the replacement streams writes to the
  // file itself from then on, for as long as the process lives; if the stream is stalled, its output is
  // dropped.
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  // Waits until all is written: while there is progress, and two seconds longer. Returns false when something
  // is left.
  bool drain();

 private:
  class Channel;
  struct Stream {
    std::FILE* before = nullptr;
    std::FILE* now = nullptr;  // null: it could not be replaced
  };
  struct Cookie;
  static Stream replace(std::FILE*& stream, std::shared_ptr<Channel> channel, bool waits);

  std::shared_ptr<Channel> out_, err_;  // one where both streams are one file
  Stream out_stream_, err_stream_;
};

}  // namespace holdfast::os
