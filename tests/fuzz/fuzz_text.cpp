// Small things that users and files write: units, addresses, tables.

#include <string>

#include "lockstep/base/id.h"
#include "lockstep/base/nearest.h"
#include "lockstep/base/units.h"
#include "lockstep/os/socket.h"
#include "lockstep/record/csv.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

void run(std::string_view input) {
  if (auto duration = parse_duration(input)) {
    fuzz::expect(duration->count() >= 0, "a duration is not negative");
    fuzz::expect(!format_duration(*duration).empty(), "a duration prints");
  }
  if (auto money = parse_money(input)) {
    fuzz::expect(
        parse_money(format_money(*money)).has_value(),
        "printed money can be read");
  }
  if (auto bytes = parse_bytes(input)) {
    fuzz::expect(
        parse_bytes(format_bytes(*bytes)).has_value(),
        "printed bytes can be read");
  }
  std::string text(input);
  if (auto address = os::parse_address(text)) {
    auto again = os::parse_address(address->to_string());
    fuzz::expect(
        again && again->to_string() == address->to_string(),
        "an address reads back");
  }
  Key key{};
  if (from_hex(input, key)) {
    Key again{};
    fuzz::expect(
        from_hex(to_hex(key), again) && again == key, "a key reads back");
  }
  std::string id = make_run_id(input, 1700000000);
  fuzz::expect(
      id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") ==
          std::string::npos,
      "a run id is a plain file name");
  (void)suggest(input.substr(0, 64), {"num_nodes", "procs_per_node", "name"});
  if (auto table = record::parse_csv(input, "fuzz.csv")) {
    for (const auto& row : table->rows) {
      fuzz::expect(
          row.size() == table->header.size(), "a row has every column");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "text",
       .run = run,
       .dictionary = {"1h30m",  "250ms",
                      "1.5",    "d",
                      "$",      " USD",
                      "GiB",    "KB",
                      "unix:",  "unix:@",
                      "[::1]:", ":0",
                      "65535",  "step,epoch,loss",
                      "\n",     "\r\n",
                      ",",      "\"",
                      "\"\"",   "e308",
                      "-",      "."},
       .max_size = 1024});
}
