// The event stream: one line of JSON.

#include "lockstep/wire/event.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

void run(std::string_view input) {
  auto event = wire::parse_event(input);
  if (!event) {
    fuzz::expect(
        event.error().code() == ErrorCode::kCorrupt, "a bad line is corrupt");
    return;
  }
  std::string line = wire::to_json(*event);
  fuzz::expect(
      line.find('\n') == std::string::npos, "an event is written as one line");
  auto again = wire::parse_event(line);
  fuzz::expect(again.has_value(), "what to_json writes can be read");
  fuzz::expect(wire::to_json(*again) == line, "events read back exactly");
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "event",
       .run = run,
       .dictionary =
           {"\"v\":1",
            "\"kind\":",
            "\"init\"",
            "\"phase\"",
            "\"iteration\"",
            "\"metric\"",
            "\"epoch\"",
            "\"checkpoint\"",
            "\"resource\"",
            "\"exit\"",
            "\"node\"",
            "\"cost\"",
            "\"decision\"",
            "\"time\":",
            "\"rank\":",
            "\"values\":{",
            "\"facts\":{",
            "\"step\":",
            "\"world_size\":",
            "null",
            "true",
            "NaN",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\\u0000",
            "\\ud800",
            "\\udc00",
            "1e400",
            "-0.0"},
       .max_size = 4096});
}
