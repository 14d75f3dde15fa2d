#include "watchdog/phase.h"

#include <array>

namespace holdfast::watchdog {

const char* name_of(Phase phase) {
  constexpr std::array<const char*, static_cast<std::size_t>(Phase::count)> names = {
      "start-up", "load", "step", "evaluation", "save", "recovery", "spare", "end"};
  return phase < Phase::count ? names[static_cast<std::size_t>(phase)] : "unknown";
}

}  // namespace holdfast::watchdog
