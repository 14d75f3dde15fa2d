// Sets up what this process was started with: its three streams, and variables of its environment.
#pragma once

#include <string>

namespace holdfast::os {

// Opens something harmless in place of each of the three streams that is closed; writes to it fail. The
// process that started this one may have closed some (`holdfast train >&-`); the next file opened would be
// taken for the stream, and printed text would get into a log or a checkpoint. Call it before anything else
// is opened.
void replace_closed_streams();

// Discards further output to a stream that is a pipe without a reader, for this process and those that it
// starts from here on. It is for programs that end on their own when that happens, as mpirun does.
void replace_unread_streams();

// Sets a variable of this process's own environment, for a library that can be configured in no other way and
// reads it when it starts. Threads: call it before other threads read the environment, and before that
// library starts. One that is set already stays: the value of the process's starter takes precedence.
void set_variable_if_unset(const std::string& name, const std::string& value);

}  // namespace holdfast::os
