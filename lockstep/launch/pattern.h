#pragma once

// A regular expression with named groups, (?<step>\d+), that reads numbers
// from a program's output: PCRE2, so that patterns written for Python or Perl
// work. Matching is bounded: a pattern that backtracks without end gives up on
// the line. One thread.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"

namespace lockstep::launch {

class Pattern {
 public:
  // The error shows what is wrong and at which character.
  static Result<Pattern> compile(const std::string& expression);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // The numbers of the named groups; false when the line does not match.
  // Groups that hold no number are left out.
  bool match(std::string_view line, std::map<std::string, double>& numbers);

 private:
  struct State;
  explicit Pattern(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::launch
