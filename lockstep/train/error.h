#pragma once

// How the trainer fails: an exception with the exit code that main returns.
// Codes: 1 training failed, 2 bad configuration or input, 3 a rank or machine
// was lost, 128 + signal when stopped.

#include <stdexcept>
#include <string>

namespace lockstep::train {

class TrainError : public std::runtime_error {
 public:
  TrainError(int exit_code, const std::string& what)
      : std::runtime_error(what), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

inline constexpr int kFailed = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kLost = 3;

}  // namespace lockstep::train
