// The three streams that a process begins with.
#pragma once

namespace holdfast::inline os {

// Who starts a process may have closed some of them (`holdfast train >&-`). The next file that it opens would
// be taken for the stream, and what is printed would get into a log or a checkpoint. Opens something harmless
// in their place; what is written there fails. To be called before anything else is opened.
void replace_closed_streams();

// What this process prints, and what it starts from here on, into a pipe that nobody reads any longer is
// thrown away. For what ends by its own will when that happens, as mpirun does.
void replace_unread_streams();

}  // namespace holdfast::inline os
