// Target of what a stranger says on a port of a run, to either end of a connection; and of what becomes of a
// conversation of two that know each other when somebody between them changes it.
#include <algorithm>

#include "runtime/os/sealed_session.h"
#include "tests/fuzz/fuzz_env.h"
#include "tests/support/test_secret.h"

namespace holdfast::fuzz {
namespace {

using Role = SealedSession::Role;

// What the session's user gets of these bytes; whether it refused none of them.
bool hear(SealedSession& session, std::span<const std::byte> bytes, std::vector<std::byte>& taken) {
  std::array<std::byte, 512> part;
  while (!bytes.empty()) {
    const std::span<std::byte> awaited = session.awaited();
    const std::size_t count = std::min(awaited.size(), bytes.size());
    std::ranges::copy(bytes.first(count), awaited.begin());
    bytes = bytes.subspan(count);
    if (const Result<void> arrived = session.arrived(count, "a stranger"); !arrived.ok()) {
      require_sentence(arrived.error(), {ExitCode::communication});
      return false;
    }
    while (const std::size_t got = session.take(part))
      taken.insert(taken.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(got));
  }
  return true;
}

std::vector<std::byte> said_by(SealedSession& session) {
  std::vector<std::byte> bytes(session.outgoing().begin(), session.outgoing().end());
  if (!bytes.empty()) session.sent(bytes.size());
  return bytes;
}

void be_a_stranger(Input input, Role to) {
  SealedSession session(secret_of(1), "fuzz", to);
  static_cast<void>(said_by(session));
  std::vector<std::byte> taken;
  static_cast<void>(hear(session, input, taken));
  require(!session.is_established() && taken.empty(), "a stranger is believed");
}

void expect_delivered(Input input, bool changed) {
  SealedSession caller(secret_of(1), "fuzz", Role::caller), listener(secret_of(1), "fuzz", Role::listener);
  std::vector<std::byte> taken;
  const bool met = hear(listener, said_by(caller), taken) && hear(caller, said_by(listener), taken) &&
                   hear(listener, said_by(caller), taken);
  require(met && caller.is_established() && listener.is_established(),
          "two that have the secret do not meet");
  std::span<const std::byte> left = input;
  while (!left.empty()) left = left.subspan(caller.seal(left.first(std::min<std::size_t>(left.size(), 100))));
  std::vector<std::byte> wire = said_by(caller);
  std::size_t first = wire.size();  // byte that is changed
  for (std::size_t at = 0; changed && at < wire.size(); ++at) {
    wire[at] ^= input[at % input.size()];
    if (input[at % input.size()] != std::byte{0}) first = std::min(first, at);
  }
  const bool heard = hear(listener, wire, taken);
  require(taken.size() <= input.size() && std::ranges::equal(taken, input.first(taken.size())),
          "something else arrives than was said");
  require(first < wire.size() ? taken.size() <= first : heard && taken.size() == input.size(),
          "what was changed is delivered, or what was not changed is lost");
}

bool run_sealed_session(Input input) {
  be_a_stranger(input, Role::caller);
  be_a_stranger(input, Role::listener);
  if (input.empty()) return true;
  expect_delivered(input, false);
  expect_delivered(input, true);
  return true;
}

std::vector<Seed> sealed_session_seeds() {
  SealedSession caller(secret_of(1), "fuzz", Role::caller), listener(secret_of(1), "fuzz", Role::listener);
  const std::vector<std::byte> hello = said_by(caller);
  std::vector<std::byte> unused;
  static_cast<void>(hear(listener, hello, unused));
  return {{"hello", hello}, {"answer", said_by(listener)}, {"long", std::vector<std::byte>(5'000)}};
}

}  // namespace

extern const Target sealed_session_target;
const Target sealed_session_target{.name = "sealed_session",
                                   .run = run_sealed_session,
                                   .seeds = sealed_session_seeds,
                                   .memory_per_byte = 64,
                                   // A record, of which a changed length is only found out by its tag.
                                   .memory_beside = 512 << 10};

}  // namespace holdfast::fuzz
