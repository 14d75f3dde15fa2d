// OutputThread: while it lives, what this process prints (stdout and stderr of C) goes to threads of its own,
// so that a terminal that is stopped, a pipe that nobody reads or a file on a disk that pauses for a resize
// delays what is printed, and nothing else.
//
// Text that cannot be written yet waits in memory, up to OutputThread::memory_bytes for each stream; beyond
// that the oldest whole lines go, and a line in their place says how many, once the stream moves again. Lines
// stay whole and in order; of two streams that are one file, as behind 2>&1, in the order of both.
//
// A write to stderr also waits until the text is out, but for a tenth of a second at most, and not at all
// while the stream pauses for a resize: a sentence before a sudden end is mostly there. A process that is
// killed takes along what waits.
//
// Made once in a process, in `main`, before other threads print. What a child process prints, and what is
// written to the descriptors directly, passes it by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace holdfast::inline os {

class OutputThread {
 public:
  static constexpr std::size_t memory_bytes = std::size_t{1} << 20;

  OutputThread();
  // Does drain(), and the streams are as they were. Whoever has kept one of those between writes to the file
  // itself from then on, for as long as the process lives; where it pauses for a resize, to nowhere.
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  // Waits until all is written, for as long as something moves, and two seconds longer. Returns false when
  // something is left.
  bool drain();

 private:
  class Channel;
  struct Stream {
    std::FILE* before = nullptr;
    std::FILE* now = nullptr;  // null: it could not be replaced
  };
  static Stream replace(std::FILE*& stream, std::shared_ptr<Channel> channel, bool waits);

  std::shared_ptr<Channel> out_, err_;  // one where both streams are one file
  Stream out_stream_, err_stream_;
};

}  // namespace holdfast::inline os
