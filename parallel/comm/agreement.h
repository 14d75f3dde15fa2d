// Agreements at start-up and at saves: all ranks get one verdict, with a sentence that names the rank that
// differs or failed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"

namespace holdfast::parallel {

struct Fact {
  std::string name;   // "binary", "config", "data", "device"
  std::string value;  // compared as text
};

// Says what follows where ranks have different facts.
enum class Difference : std::uint8_t {
  ends_run,  // all get the same error, as at a first start, which a person watches
  most_go_on,  // ranks that differ from more than half of all are unfit (agree_on_fitness()), if there are so many
};

// Compares facts across all ranks; every rank passes the same names. When values differ, the error
// (ExitCode::config) names the fact, the ranks that differ from rank 0, or from most ranks, and both values.
Result<void> agree_on_facts(Communicator& communicator, const Waiter& waiter, const std::vector<Fact>& facts,
                            Difference difference = Difference::ends_run);

// Combine the outcomes of all ranks. All get ok, or an error with the code and the sentence, and with the reason, of the lowest failing
// rank, prefixed "rank 2 (host): " unless all ranks failed with the same sentence. They differ in who an error
// concerns, and so in the reach of the error that each rank gets:
//
// agree_on_outcome() is for what some ranks do for all: the error is everybody's. Reach::run if it is that of some
// rank; else Reach::minute if it may be over at the next attempt; else Reach::everywhere.
//
// agree_on_fitness() is for what each rank does for itself. Where some ranks succeed, the others are unfit: those get
// Reach::host, and the fit ones get Reach::peers and can go on once the unfit ranks have left; no rank returns with
// either before all have their verdict, but the communicator may be lost by then. Where all fail, the reach is that of
// agree_on_outcome(). An error with Reach::run is everybody's if each rank has examined something of
// its own (Examined::own: its samples, its device); where all have examined the same input (Examined::same), a rank
// that alone finds it wrong is unfit.
enum class Examined : std::uint8_t { own, same };
Result<void> agree_on_outcome(Communicator& communicator, const Waiter& waiter, const Result<void>& mine,
                              const std::string& host);
Result<void> agree_on_fitness(Communicator& communicator, const Waiter& waiter, const Result<void>& mine,
                              const std::string& host, Examined examined);

}  // namespace holdfast::parallel
