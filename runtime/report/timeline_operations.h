// Timeline operations: the recorded steps of a run as operations that can be replayed (what_if.h), so that
// what a rank waits for others is told from what it takes itself. Pure.
//
// A rank does one thing after another: its device computes, or its host waits or does something else while
// the device is idle. A wait for other ranks becomes an operation that comes after theirs, and of its own has
// only what is left from then on:
//   an activation, a gradient            after the forward or backward of the neighbouring stage
//   lane reduction, parameters, vote,    after all its ranks have come to it; where it ended before the last
//   tied weight, slices                  one did, after all that it transfers was computed; where it was for a
//                                        part of that, after all that the others had done by then
// Forwards and backwards are cut at the exchanges of slices in them. A wait for a send costs nothing: the
// receiver's part of it is an operation of the receiver. Ideal is the median of all operations of a kind,
// because all microbatches have the same shape.
#pragma once

#include "runtime/report/timeline.h"
#include "runtime/report/what_if.h"

namespace holdfast::report {

// Returns all steps of the timeline as one section.
TracedJob job_of(const Timeline& timeline);

}  // namespace holdfast::report
