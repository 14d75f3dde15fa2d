// The three streams that a process begins with.
#pragma once

namespace holdfast::os {

// Opens something harmless in place of each of the three streams that is closed; writes to it fail. The
// process that started this one may have closed some (`holdfast train >&-`); the next file opened would be
// taken for the stream, and printed text would get into a log or a checkpoint. Call it before anything else
// is opened.
void replace_closed_streams();

// Discards further output to a stream that is a pipe without a reader, for this process and those that it
// starts from here on. It is for programs that end on their own when that happens, as mpirun does.
void replace_unread_streams();

}  // namespace holdfast::os
