// Lanes: define the logical data-parallel width of a run (DESIGN: "Lanes: why the bits do not depend on the
// number of ranks"). With D ranks and L lanes, wave w runs lanes w*D .. w*D+D-1, one on each rank; the last
// wave may leave ranks without a lane. Gradients are added in lane order whatever D is. The functions are
// pure.
#pragma once

#include "runtime/core/check.h"

namespace holdfast::parallel {

class LaneSchedule {
 public:
  LaneSchedule(int lanes, int ranks) : lanes_(lanes), ranks_(ranks) {
    HF_CHECK(1 <= ranks && ranks <= lanes);
  }
  int lanes() const { return lanes_; }
  int ranks() const { return ranks_; }
  int waves() const { return (lanes_ + ranks_ - 1) / ranks_; }
  int lane_of(int wave, int rank) const {  // -1: this rank has no lane in this wave
    const int lane = wave * ranks_ + rank;
    return lane < lanes_ ? lane : -1;
  }
  int lanes_in_wave(int wave) const { return wave + 1 < waves() ? ranks_ : lanes_ - wave * ranks_; }

 private:
  int lanes_;
  int ranks_;
};

}  // namespace holdfast::parallel
