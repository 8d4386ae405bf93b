#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

namespace lockstep::fuzz {
namespace {

constexpr std::array<uint64_t, 16> kNumbers = {
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    65535,
    65536,
    0x7fffffff,
    0x80000000,
    0xffffffff,
    0x7fffffffffffffff,
    0xffffffffffffffff};

constexpr std::array<const char*, 20> kWritten = {
    "0",
    "-1",
    "1",
    "00",
    "127",
    "-128",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "-9223372036854775808",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-1e-999",
    "0.1",
    "1.7976931348623157e308"};

}  // namespace

Mutator::Mutator(
    uint64_t seed,
    std::vector<std::string> dictionary,
    size_t max_size)
    : random_(seed), dictionary_(std::move(dictionary)), max_size_(max_size) {}

size_t Mutator::below(size_t limit) {
  return limit == 0 ? 0 : static_cast<size_t>(random_() % limit);
}

std::string Mutator::mutate(std::string input, const std::string& other) {
  size_t changes = size_t{1} << below(4);
  for (size_t i = 0; i < changes; ++i) {
    change(input, other);
  }
  if (input.size() > max_size_) {
    input.resize(max_size_);
  }
  return input;
}

void Mutator::change(std::string& input, const std::string& other) {
  if (input.empty()) {
    input = other.empty() ? std::string(1, static_cast<char>(random_()))
                          : other.substr(below(other.size()));
    return;
  }
  switch (below(10)) {
    case 0:
      input[below(input.size())] ^= static_cast<char>(1 << below(8));
      break;
    case 1:
      input[below(input.size())] = static_cast<char>(random_());
      break;
    case 2:
      input.insert(
          below(input.size() + 1), 1 + below(8), static_cast<char>(random_()));
      break;
    case 3:
      edit_binary_number(input);
      break;
    case 4:
      edit_written_number(input);
      break;
    case 5:
    case 6:
      edit_range(input);
      break;
    case 7:
    case 8:
      put_token(input);
      break;
    default:
      splice(input, other);
      break;
  }
}

// A length or offset field: set it, move it a little, or make it the size.
void Mutator::edit_binary_number(std::string& input) {
  size_t width = size_t{1} << below(4);
  if (input.size() < width) {
    return;
  }
  size_t at = below(3) == 0 ? 0 : below(input.size() - width + 1);
  bool big_endian = below(2) == 0;
  auto byte = [&](size_t i) -> char& {
    return input[at + (big_endian ? width - 1 - i : i)];
  };
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) {
    value |= uint64_t{static_cast<uint8_t>(byte(i))} << (8 * i);
  }
  switch (below(4)) {
    case 0:
      value = kNumbers[below(kNumbers.size())];
      break;
    case 1:
      value += below(17) - 8;
      break;
    case 2:
      value = input.size() - at - width + below(3) - 1;
      break;
    default:
      value = random_() >> below(64);
      break;
  }
  for (size_t i = 0; i < width; ++i) {
    byte(i) = static_cast<char>(value >> (8 * i));
  }
}

void Mutator::edit_written_number(std::string& input) {
  size_t at = below(input.size());
  auto digit = [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  };
  auto start = std::find_if(
      input.begin() + static_cast<std::ptrdiff_t>(at), input.end(), digit);
  auto end = std::find_if_not(start, input.end(), digit);
  std::string number = kWritten[below(kWritten.size())];
  if (below(3) == 0) {
    number = std::to_string(random_() >> below(64));
  }
  input.replace(start, end, number);
}

void Mutator::edit_range(std::string& input) {
  size_t at = below(input.size());
  size_t size = 1 + below(std::min<size_t>(input.size() - at, 64));
  std::string range = input.substr(at, size);
  switch (below(5)) {
    case 0:
      input.erase(at, size);
      break;
    case 1:
      input.resize(at);  // cut short
      break;
    case 2:
      input.insert(below(input.size() + 1), range);
      break;
    case 3: {
      // Deep nesting and long runs.
      std::string many;
      size_t times = size_t{1} << below(10);
      while (times-- > 0 && many.size() < max_size_) {
        many += range;
      }
      input.insert(at, many);
      break;
    }
    default:
      input.replace(below(input.size()), range.size(), range);
      break;
  }
}

void Mutator::put_token(std::string& input) {
  if (dictionary_.empty()) {
    return;
  }
  const std::string& token = dictionary_[below(dictionary_.size())];
  size_t at = below(input.size() + 1);
  if (below(2) == 0) {
    input.insert(at, token);
  } else {
    input.replace(at, token.size(), token);
  }
}

void Mutator::splice(std::string& input, const std::string& other) {
  if (other.empty()) {
    return;
  }
  size_t from = below(other.size());
  size_t size = 1 + below(other.size() - from);
  size_t at = below(input.size() + 1);
  if (below(2) == 0) {
    input.insert(at, other, from, size);
  } else {
    input = input.substr(0, at) + other.substr(from);
  }
}

}  // namespace lockstep::fuzz
