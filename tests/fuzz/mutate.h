#pragma once

// The mutations of the fuzzer: bits, bytes, numbers (binary and written),
// ranges, tokens and splices. Pure, apart from the random state.

#include <random>
#include <string>
#include <vector>

namespace lockstep::fuzz {

class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> dictionary, size_t max_size);
  // One to eight changes of `input`; `other` lends parts.
  std::string mutate(std::string input, const std::string& other);
  size_t below(size_t limit);  // 0 .. limit - 1; 0 for 0

 private:
  void change(std::string& input, const std::string& other);
  void edit_binary_number(std::string& input);
  void edit_written_number(std::string& input);
  void edit_range(std::string& input);
  void put_token(std::string& input);
  void splice(std::string& input, const std::string& other);

  std::mt19937_64 random_;
  std::vector<std::string> dictionary_;
  size_t max_size_;
};

}  // namespace lockstep::fuzz
