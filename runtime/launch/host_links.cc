#include "runtime/launch/host_links.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "runtime/core/text.h"

namespace holdfast::launch {
namespace {

constexpr int few_hosts = 9;

// Returns the value of a parameter in a file for mpirun --tune, where lines are "--mca NAME VALUE"; the last one wins.
std::string tuned(const std::string& tune, const std::string& name) {
  std::string value;
  std::istringstream lines(tune);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    for (std::string word, key, text; words >> word;) {
      if ((word == "--mca" || word == "-mca") && words >> key >> text && key == name) value = text;
    }
  }
  return value;
}

// Returns whether a list of components, as in "self,sm,tcp" or "^ofi", has one.
bool has_component(const std::string& list, const std::string& name) {
  const bool excludes = list.starts_with('^');
  const std::vector<std::string> parts = split_list(excludes ? list.substr(1) : list);
  return list.empty() || (std::ranges::find(parts, name) != parts.end()) != excludes;
}

std::optional<std::uint32_t> ip_number(const std::string& address) {
  std::uint32_t number = 0;
  const char* at = address.data();
  const char* const end = at + address.size();
  for (int i = 0; i < 4; ++i) {
    if (i > 0 && (at == end || *at++ != '.')) return std::nullopt;
    unsigned part = 0;
    const auto [next, error] = std::from_chars(at, end, part);
    if (error != std::errc() || part > 255) return std::nullopt;
    number = number << 8U | part;
    at = next;
  }
  return at == end ? std::optional(number) : std::nullopt;
}

// Returns whether the address is in a network such as 10.0.0.0/8.
bool is_in(const std::string& address, const std::string& network) {
  const std::size_t slash = network.find('/');
  const std::optional<std::uint32_t> number = ip_number(address),
                                     of_all = ip_number(network.substr(0, slash));
  unsigned bits = 0;
  const char* const end = network.data() + network.size();
  const auto [next, error] = std::from_chars(network.data() + slash + 1, end, bits);
  if (error != std::errc() || next != end || bits > 32 || !number.has_value() || !of_all.has_value())
    return false;
  return bits == 0 || (*number ^ *of_all) >> (32U - bits) == 0;
}

// Returns those of `all` that a list of interfaces and networks names.
std::vector<std::string> named(Network& network, const std::vector<std::string>& all,
                               const std::string& list) {
  std::vector<std::string> found;
  for (const std::string& part : split_list(list)) {
    if (part.find('/') != std::string::npos) {
      std::ranges::copy_if(all, std::back_inserter(found),
                           [&](const std::string& address) { return is_in(address, part); });
    } else if (const Result<std::vector<std::string>> own = network.own_addresses(part); own.ok()) {
      found.insert(found.end(), own->begin(), own->end());
    }
  }
  return found;
}

// MPI uses IPv4 unless it is told otherwise.
std::vector<std::string> addresses_of_mpi(Network& network, const std::string& mpi) {
  Result<std::vector<std::string>> own = network.own_addresses("");
  if (!own.ok() || mpi.empty() || mpi == "-") return {};
  std::erase_if(*own, [](const std::string& address) { return !ip_number(address).has_value(); });
  const std::vector<std::string> listed = named(network, *own, mpi.substr(1));
  std::erase_if(*own, [&](const std::string& address) {
    return (std::ranges::find(listed, address) != listed.end()) == (mpi[0] == '^');
  });
  return std::move(*own);
}

}  // namespace

std::vector<int> callees_of(int index, int hosts) {
  std::vector<int> callees;
  for (int distance = 1; distance < hosts; distance = hosts <= few_hosts ? distance + 1 : 2 * distance)
    callees.push_back((index + distance) % hosts);
  return callees;
}

std::string mpi_interfaces(const std::function<std::string(const std::string&)>& variable,
                           const std::string& tune) {
  const auto value = [&](const std::string& name) {
    const std::string set = variable("OMPI_MCA_" + name);
    return set.empty() ? tuned(tune, name) : set;
  };
  const std::string pml = value("pml");
  if (!has_component(value("btl"), "tcp") || (!pml.empty() && !has_component(pml, "ob1"))) return "-";
  // Only one of the two may be set; a variable takes the place of both.
  for (const auto& [name, sign] :
       {std::pair("btl_tcp_if_include", "+"), std::pair("btl_tcp_if_exclude", "^")}) {
    if (const std::string set = variable(std::string("OMPI_MCA_") + name); !set.empty()) return sign + set;
  }
  if (const std::string included = tuned(tune, "btl_tcp_if_include"); !included.empty())
    return "+" + included;
  const std::string excluded = tuned(tune, "btl_tcp_if_exclude");
  return "^" + (excluded.empty() ? "lo,127.0.0.0/8" : excluded);
}

HostNetworks addresses_to_reach(Network& network, const std::string& mpi, const std::string& interface) {
  HostNetworks networks;
  if (std::vector<std::string> of_mpi = addresses_of_mpi(network, mpi); !of_mpi.empty())
    networks.push_back(std::move(of_mpi));
  if (interface.empty()) return networks;
  if (Result<std::vector<std::string>> own = network.own_addresses(interface); own.ok())
    networks.push_back({own->front()});
  return networks;
}

}  // namespace holdfast::launch
