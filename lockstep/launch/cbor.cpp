#include "lockstep/launch/cbor.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr size_t kDeepest = 16;

// One whole value of plain CBOR, without recursion: the parser of the library
// has one, and would follow any depth.
bool is_sound(std::string_view bytes) {
  std::vector<uint64_t> open = {1};  // values still to come, by depth
  size_t at = 0;
  while (!open.empty()) {
    if (open.back() == 0) {
      open.pop_back();
      continue;
    }
    --open.back();
    if (at >= bytes.size()) {
      return false;
    }
    const auto head = static_cast<uint8_t>(bytes[at++]);
    const int kind = head >> 5;
    const int more = head & 31;
    uint64_t value = static_cast<uint64_t>(more);
    if (more >= 24) {
      const size_t width = more <= 27 ? size_t{1} << (more - 24) : 0;
      if (width == 0 || bytes.size() - at < width) {
        return false;
      }
      value = 0;
      for (size_t i = 0; i < width; ++i) {
        value = value << 8 | static_cast<uint8_t>(bytes[at++]);
      }
    }
    const uint64_t left = bytes.size() - at;
    if (kind == 2 || kind == 3) {
      if (value > left) {
        return false;
      }
      at += static_cast<size_t>(value);
    } else if (kind == 4 || kind == 5) {
      // Each part takes a byte at least.
      if (value > left || open.size() >= kDeepest) {
        return false;
      }
      open.push_back(kind == 4 ? value : 2 * value);
    } else if (kind == 6) {
      return false;
    }
  }
  return at == bytes.size();
}

const json& empty_list() {
  static const json list = json::array();
  return list;
}

}  // namespace

Result<json> parse_cbor(std::string_view bytes) {
  json value;
  if (is_sound(bytes)) {
    value = json::from_cbor(bytes.begin(), bytes.end(), true, false);
  }
  if (!value.is_object()) {
    return Error(ErrorCode::kCorrupt, "a message is not a CBOR map");
  }
  return value;
}

std::string to_cbor(const json& value) {
  std::string text;
  json::to_cbor(value, text);
  return text;
}

void Reader::wrong(const char* key) {
  if (wrong_.empty()) {
    wrong_ = key;
  }
}

Error Reader::error() const {
  return Error(
      ErrorCode::kCorrupt, fmt::format("a message has no usable '{}'", wrong_));
}

const json* Reader::find(const char* key) {
  if (!map_->is_object()) {
    wrong(key);
    return nullptr;
  }
  const auto found = map_->find(key);
  if (found == map_->end()) {
    wrong(key);
    return nullptr;
  }
  return &*found;
}

int64_t Reader::integer(const char* key, int64_t least, int64_t most) {
  const json* value = find(key);
  if (value == nullptr) {
    return least;
  }
  constexpr auto kTop =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool fits =
      value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<uint64_t>() <= kTop);
  const int64_t number = fits ? value->get<int64_t>() : 0;
  if (!fits || number < least || number > most) {
    wrong(key);
    return least;
  }
  return number;
}

int Reader::number(const char* key, int least) {
  return static_cast<int>(integer(key, least, std::numeric_limits<int>::max()));
}

uint64_t Reader::count(const char* key) {
  return static_cast<uint64_t>(
      integer(key, 0, std::numeric_limits<int64_t>::max()));
}

double Reader::real(const char* key) {
  const json* value = find(key);
  if (value == nullptr) {
    return 0;
  }
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!std::isfinite(number)) {
    wrong(key);
    return 0;
  }
  return number;
}

bool Reader::flag(const char* key) {
  const json* value = find(key);
  if (value != nullptr && !value->is_boolean()) {
    wrong(key);
  }
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

std::string Reader::text(const char* key) {
  const json* value = find(key);
  if (value != nullptr && !value->is_string()) {
    wrong(key);
  }
  return value != nullptr && value->is_string() ? value->get<std::string>()
                                                : "";
}

Duration Reader::duration(const char* key) {
  return Duration(integer(key, 0, std::numeric_limits<int64_t>::max()));
}

const json& Reader::list(const char* key) {
  const json* value = find(key);
  if (value == nullptr || !value->is_array()) {
    wrong(key);
    return empty_list();
  }
  return *value;
}

std::vector<std::string> Reader::texts(const char* key) {
  std::vector<std::string> result;
  for (const json& one : list(key)) {
    if (!one.is_string()) {
      wrong(key);
      return {};
    }
    result.push_back(one.get<std::string>());
  }
  return result;
}

std::map<std::string, std::string> Reader::pairs(const char* key) {
  std::map<std::string, std::string> result;
  const json* value = find(key);
  if (value == nullptr || !value->is_object()) {
    wrong(key);
    return result;
  }
  for (const auto& [name, one] : value->items()) {
    if (!one.is_string()) {
      wrong(key);
      return {};
    }
    result.emplace(name, one.get<std::string>());
  }
  return result;
}

}  // namespace lockstep::launch
