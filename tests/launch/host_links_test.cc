// Links between the hosts of a start: who calls whom, which addresses count, and a meeting of hosts on this one.
#include "runtime/launch/host_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/launch/host_meeting.h"
#include "runtime/os/background_job.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(HostLinks, AFewHostsCallAllOthers) {
  EXPECT_THAT(callees_of(0, 1), IsEmpty());
  EXPECT_THAT(callees_of(1, 2), ElementsAre(0));
  EXPECT_THAT(callees_of(1, 3), ElementsAre(2, 0));
  EXPECT_EQ(callees_of(8, 9).size(), 8u);
}

TEST(HostLinks, OfManyEachCallsAFew) {
  EXPECT_THAT(callees_of(30, 32), ElementsAre(31, 0, 2, 6, 14));
  EXPECT_EQ(callees_of(5, 16'384).size(), 14u);
  for (int callee = 0; callee < 100; ++callee) {
    std::set<int> callers;
    for (int caller = 0; caller < 100; ++caller) {
      for (const int called : callees_of(caller, 100)) {
        EXPECT_NE(called, caller);
        if (called == callee) callers.insert(caller);
      }
    }
    EXPECT_EQ(callers.size(), 7u) << callee;
  }
}

std::string interfaces(std::map<std::string, std::string> variables, const std::string& tune = "") {
  return mpi_interfaces([&](const std::string& name) { return variables[name]; }, tune);
}

TEST(HostLinks, TheInterfacesOfMpiFollowFromItsSettings) {
  const std::string tune =
      "# --mca btl_tcp_if_include no\n--mca btl self,sm,tcp\n--mca btl_tcp_if_exclude lo,docker0\n";
  EXPECT_EQ(interfaces({}, tune), "^lo,docker0");
  EXPECT_EQ(interfaces({}), "^lo,127.0.0.0/8");
  EXPECT_EQ(interfaces({}, "-x A --mca btl_tcp_if_include 10.0.0.0/8\n"), "+10.0.0.0/8");
  EXPECT_EQ(interfaces({{"OMPI_MCA_btl_tcp_if_include", "ib0"}}, tune), "+ib0");
  EXPECT_EQ(interfaces({{"OMPI_MCA_btl_tcp_if_exclude", "lo,e0"}}, tune), "^lo,e0");
  EXPECT_EQ(interfaces({{"OMPI_MCA_btl", "self,sm"}}, tune), "-");
  EXPECT_EQ(interfaces({{"OMPI_MCA_btl", "^tcp"}}), "-");
  EXPECT_EQ(interfaces({{"OMPI_MCA_btl", "^ofi"}}), "^lo,127.0.0.0/8");
  EXPECT_EQ(interfaces({{"OMPI_MCA_pml", "ucx"}}, tune), "-");
}

// A host of two cards and a container network.
class CardsNetwork final : public Network {
 public:
  Result<std::vector<std::string>> own_addresses(const std::string& interface) override {
    if (interface.empty()) return std::vector<std::string>{"10.0.0.2", "fd00::2", "10.1.0.2", "172.17.0.1"};
    if (interface == "e0") return std::vector<std::string>{"10.0.0.2", "fd00::2"};
    if (interface == "e1") return std::vector<std::string>{"10.1.0.2"};
    if (interface == "docker0") return std::vector<std::string>{"172.17.0.1"};
    return fail(ExitCode::communication, "no {}", interface);
  }
  Result<std::unique_ptr<Listener>> listen(const std::string&) override { return none(); }
  Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress&) override { return none(); }
  bool wait_any_readable(std::span<Socket* const>, std::int64_t) override { return false; }
  std::vector<std::size_t> find_readable(std::span<Socket* const>) override { return {}; }

 private:
  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress&, std::int64_t,
                                                      const std::atomic<bool>*) override {
    return none();
  }
  static Error none() { return fail(ExitCode::communication, "not here"); }
};

TEST(HostLinks, AHostIsReachedByTheAddressesOfTheseInterfaces) {
  CardsNetwork cards;
  const auto of = [&](const std::string& mpi, const std::string& interface = "") {
    return addresses_to_reach(cards, mpi, interface);
  };
  EXPECT_THAT(of("^lo,docker0"), ElementsAre(ElementsAre("10.0.0.2", "10.1.0.2")));
  EXPECT_THAT(of("^172.16.0.0/12,e0"), ElementsAre(ElementsAre("10.1.0.2")));
  EXPECT_THAT(of("+e1"), ElementsAre(ElementsAre("10.1.0.2")));
  EXPECT_THAT(of("+10.0.0.0/16,e1"), ElementsAre(ElementsAre("10.0.0.2", "10.1.0.2")));
  EXPECT_THAT(of("+ib0"), IsEmpty());
  EXPECT_THAT(of("+10.0.0.0/40"), IsEmpty());
  EXPECT_THAT(of("-"), IsEmpty());
  EXPECT_THAT(of("+e1", "e0"), ElementsAre(ElementsAre("10.1.0.2"), ElementsAre("10.0.0.2")));
  EXPECT_THAT(of("-", "no0"), IsEmpty());
}

// GuestEnv is a host with one address of this host's loopback, which may not reach some others.
class GuestEnv final : public ForwardingEnv {
 public:
  explicit GuestEnv(std::string address, std::set<std::string> cut = {})
      : ForwardingEnv(posix_env()), network_(std::move(address), std::move(cut)) {}
  Network& network() override { return network_; }

 private:
  class GuestNetwork final : public Network {
   public:
    GuestNetwork(std::string address, std::set<std::string> cut)
        : address_(std::move(address)), cut_(std::move(cut)) {}
    Result<std::vector<std::string>> own_addresses(const std::string& interface) override {
      if (!interface.empty()) return fail(ExitCode::communication, "no {}", interface);
      return std::vector<std::string>{address_};
    }
    Result<std::unique_ptr<Listener>> listen(const std::string& address) override {
      return posix_network().listen(address);
    }
    Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) override {
      return posix_network().begin_connection(address);
    }
    bool wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) override {
      return posix_network().wait_any_readable(sockets, timeout_ms);
    }
    std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) override {
      return posix_network().find_readable(sockets);
    }

   private:
    Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address,
                                                        std::int64_t timeout_ms,
                                                        const std::atomic<bool>* stopped) override {
      if (cut_.contains(address.host)) return fail(ExitCode::communication, "no way to {}", address.host);
      return posix_network().connect(address, timeout_ms, stopped);
    }
    std::string address_;
    std::set<std::string> cut_;
  };
  GuestNetwork network_;
};

constexpr const char* nonce = "0123456789abcdef0123456789abcdef";
const std::vector<LaunchHost> three = {{.name = "a"}, {.name = "b"}, {.name = "c"}};

class HostMeetingTest : public testing::Test {
 protected:
  // Takes the host to the meeting; `with`: the nonce that it has.
  void attend(GuestEnv& env, int place, const std::string& with = nonce) {
    jobs.push_back(std::make_unique<BackgroundJob<bool>>());
    const MeetingWords words{.door = meeting->door(), .place = place, .mpi = "^lo"};
    jobs.back()->start(posix_env(), "guest", [&env, words, with]() -> Result<bool> {
      attend_meeting(env, words, with);
      return true;
    });
  }
  void wait_for(const std::vector<std::size_t>& places) {
    const auto has_come = [&](std::size_t place) { return meeting->has_come(place); };
    while (!std::ranges::all_of(places, has_come)) look();
  }
  void wait_for_end() {
    while (!std::ranges::all_of(jobs, [](const auto& job) { return job->finished(); })) look();
  }
  void look() {
    meeting->look();
    posix_env().sleep_us(1'000);
  }

  GuestEnv launcher = GuestEnv("127.0.0.1");
  std::unique_ptr<HostMeeting> meeting = HostMeeting::open(launcher, nonce, 3).value();
  std::vector<std::unique_ptr<BackgroundJob<bool>>> jobs;
};

TEST_F(HostMeetingTest, HostsThatReachEachOtherHaveNoFaults) {
  GuestEnv a("127.0.0.2"), b("127.0.0.3"), c("127.0.0.4");
  attend(a, 0), attend(b, 1), attend(c, 2);
  wait_for({0, 1, 2});
  meeting->begin();
  wait_for_end();
  EXPECT_THAT(meeting->faults(three), IsEmpty());
}

TEST_F(HostMeetingTest, WhoCouldNotConnectToWhomIsTold) {
  GuestEnv a("127.0.0.2"), b("127.0.0.3", {"127.0.0.4"}), c("127.0.0.4", {"127.0.0.3"});
  attend(a, 0), attend(b, 1), attend(c, 2);
  wait_for({0, 1, 2});
  meeting->begin();
  wait_for_end();
  EXPECT_THAT(meeting->faults(three),
              ElementsAre(LinkFault{"b", "c", "127.0.0.4"}, LinkFault{"c", "b", "127.0.0.3"}));
}

TEST_F(HostMeetingTest, AnAddressThatBothHaveIsNotCalled) {
  GuestEnv a("127.0.0.2"), b("127.0.0.2");
  attend(a, 0), attend(b, 1);
  wait_for({0, 1});
  meeting->begin();
  wait_for_end();
  EXPECT_THAT(meeting->faults(three), IsEmpty());
}

TEST_F(HostMeetingTest, WhoDoesNotComeIsEvidenceOfNothing) {
  GuestEnv a("127.0.0.2"), stranger("127.0.0.3"), cut_off("127.0.0.4", {"127.0.0.1"});
  attend(a, 0), attend(stranger, 1, std::string(32, 'f')), attend(cut_off, 2);
  wait_for({0});
  meeting->begin();
  wait_for_end();
  EXPECT_FALSE(meeting->has_come(1));
  EXPECT_THAT(meeting->faults(three), IsEmpty());
}

}  // namespace
}  // namespace holdfast::test
