#pragma once

// A small fuzzer for g++, which has no libFuzzer: mutates a corpus of seeds
// and calls the target with each result. The sources of a target are compiled
// with -fsanitize-coverage=trace-pc, and an input that reaches new code joins
// the corpus. The order of mutations depends on the seed alone. One thread.
//
//   fuzz_x [--seconds 5] [--seed 1] [--corpus DIR] [--save DIR]
//   fuzz_x FILE...      runs only these, to repeat a failure
//
// Prints how many inputs ran. An input that crashes, leaks, hangs for 20 s or
// breaks an expectation is saved as DIR/crash-<target>-<hash> and ends the run
// with a failure.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

struct Target {
  std::string name;
  // Must take any bytes. The view has no byte beyond its end: reading there is
  // seen by the sanitizer.
  std::function<void(std::string_view)> run;
  std::vector<std::string> dictionary;  // tokens of the format
  size_t max_size = 4096;
};

int fuzz_main(int argc, char** argv, const Target& target);

// Ends the run with a message when a promise of the code does not hold.
void expect(bool holds, const char* promise);

}  // namespace lockstep::fuzz
