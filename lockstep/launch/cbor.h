#pragma once

// CBOR from somebody else as a JSON value, and its parts without exceptions: a
// Reader remembers the first thing that is missing or of another kind, so that
// a message is taken apart in a row and judged once. Pure.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"

namespace lockstep::launch {

// kCorrupt for what is not one whole CBOR map, nests deeper than 16, or has
// parts of unknown length.
Result<nlohmann::json> parse_cbor(std::string_view bytes);
std::string to_cbor(const nlohmann::json& value);

// Values outside of [least, most] count as wrong.
class Reader {
 public:
  explicit Reader(const nlohmann::json& map) : map_(&map) {}
  int64_t integer(const char* key, int64_t least, int64_t most);
  int number(const char* key, int least = 0);
  uint64_t count(const char* key);
  double real(const char* key);
  bool flag(const char* key);
  std::string text(const char* key);
  Duration duration(const char* key);  // not negative
  std::vector<std::string> texts(const char* key);
  std::map<std::string, std::string> pairs(const char* key);
  // An array; empty when it is missing.
  const nlohmann::json& list(const char* key);

  void wrong(const char* key);
  bool good() const { return wrong_.empty(); }
  // kCorrupt and what was wrong.
  Error error() const;

 private:
  const nlohmann::json* find(const char* key);
  const nlohmann::json* map_;
  std::string wrong_;
};

}  // namespace lockstep::launch
