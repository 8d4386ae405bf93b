// Host lists and hostfiles, as people write and scripts generate them.

#include <string>

#include "lockstep/launch/hosts.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

// As a list that must read back.
std::string printed(const std::vector<launch::HostSlots>& hosts) {
  std::string text;
  for (const launch::HostSlots& host : hosts) {
    const size_t at = host.host.find('@') + 1;
    text += (text.empty() ? "" : ",") + host.host.substr(0, at) + "[" +
            host.host.substr(at) + "]";
    if (host.slots) {
      text += ":" + std::to_string(*host.slots);
    }
  }
  return text;
}

void check(const std::vector<launch::HostSlots>& hosts) {
  fuzz::expect(!hosts.empty(), "a list has a host");
  for (const launch::HostSlots& host : hosts) {
    fuzz::expect(!host.host.empty(), "a host has a name");
    fuzz::expect(host.host.front() != '-', "a host is no option");
    fuzz::expect(
        host.host.find_first_of(" \t\n,;$`'\"\\&|") == std::string::npos,
        "a host is one plain word");
    fuzz::expect(!host.slots || *host.slots > 0, "slots are positive");
  }
  (void)launch::ranks_by_host(hosts, 0, 0, {});
  (void)launch::ranks_by_host(hosts, 2, 4, {1, 2, 3});
}

void run(std::string_view input) {
  if (const auto hosts = launch::parse_hosts(input)) {
    check(*hosts);
    const auto again = launch::parse_hosts(printed(*hosts));
    fuzz::expect(again && again->size() == hosts->size(), "a list reads back");
  }
  if (const auto hosts = launch::parse_hostfile(input, "fuzz")) {
    check(*hosts);
  } else {
    fuzz::expect(
        hosts.error().message().starts_with("fuzz"), "an error names the file");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "hosts",
       .run = run,
       .dictionary =
           {"slots=",
            "slots=4",
            ":4",
            ",",
            "[fe80::1]:2",
            "user@",
            "#",
            "\n",
            "\r\n",
            "node1",
            "[",
            "]",
            "@",
            "\t",
            "4096",
            "4097"},
       .max_size = 1024});
}
