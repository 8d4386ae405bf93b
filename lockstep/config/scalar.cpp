#include "lockstep/config/scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::config::internal {
namespace {

bool is_scalar(const Node& node) {
  return node.kind() == Node::Kind::kScalar;
}

// from_chars takes no '+'.
std::string_view without_plus(std::string_view text) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-';
  return plus ? text.substr(1) : text;
}

template <class T>
bool parse_whole(std::string_view text, T& value) {
  text = without_plus(text);
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size();
}

template <class T>
bool parse_unit(
    const Node& node,
    T& value,
    Result<T> (*parser)(std::string_view)) {
  if (!is_scalar(node)) {
    return false;
  }
  const auto parsed = parser(node.text());
  if (parsed) {
    value = *parsed;
  }
  return parsed.has_value();
}

bool collect(
    const Node& node,
    const std::string& prefix,
    std::map<std::string, std::string>& value) {
  for (const auto& [key, child] : node.entries()) {
    const std::string name = prefix + key;
    switch (child.kind()) {
      case Node::Kind::kNull:
        value[name] = "";
        break;
      case Node::Kind::kScalar:
        value[name] = child.text();
        break;
      case Node::Kind::kMap:
        if (!collect(child, name + ".", value)) {
          return false;
        }
        break;
      case Node::Kind::kList:
        return false;
    }
  }
  return true;
}

template <class T>
bool parse_items(const Node& node, std::vector<T>& value) {
  if (node.kind() != Node::Kind::kList) {
    return false;
  }
  std::vector<T> items;
  for (const auto& item : node.items()) {
    T parsed{};
    if (!parse(item, parsed)) {
      return false;
    }
    items.push_back(std::move(parsed));
  }
  value = std::move(items);
  return true;
}

template <class T>
std::string yaml_items(const std::vector<T>& value) {
  std::string out = "[";
  for (const auto& item : value) {
    out += (out.size() > 1 ? ", " : "") + yaml(item);
  }
  return out + "]";
}

}  // namespace

bool parse(const Node& node, bool& value) {
  if (!is_scalar(node)) {
    return false;
  }
  const std::string word = lower(node.text());
  const bool yes = word == "true" || word == "yes" || word == "on";
  if (!yes && word != "false" && word != "no" && word != "off") {
    return false;
  }
  value = yes;
  return true;
}

bool parse(const Node& node, int64_t& value) {
  if (!is_scalar(node)) {
    return false;
  }
  if (parse_whole(node.text(), value)) {
    return true;
  }
  // "1e4" is what people write for a count.
  double number = 0;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!parse_whole(node.text(), number) || std::abs(number) > kExact ||
      number != std::floor(number)) {
    return false;
  }
  value = static_cast<int64_t>(number);
  return true;
}

bool parse(const Node& node, int& value) {
  int64_t wide = 0;
  if (!parse(node, wide) || wide < std::numeric_limits<int>::min() ||
      wide > std::numeric_limits<int>::max()) {
    return false;
  }
  value = static_cast<int>(wide);
  return true;
}

bool parse(const Node& node, double& value) {
  if (!is_scalar(node)) {
    return false;
  }
  std::string text = lower(node.text());
  const auto dot = text.find(".inf");
  if (dot == 0 || (dot == 1 && (text[0] == '-' || text[0] == '+'))) {
    text.erase(dot, 1);
  }
  double parsed = 0;
  if (!parse_whole(text, parsed) || std::isnan(parsed)) {
    return false;
  }
  value = parsed;
  return true;
}

bool parse(const Node& node, std::string& value) {
  if (!is_scalar(node)) {
    return false;
  }
  value = node.text();
  return true;
}

bool parse(const Node& node, Duration& value) {
  return parse_unit(node, value, parse_duration);
}

bool parse(const Node& node, Money& value) {
  return parse_unit(node, value, parse_money);
}

bool parse(const Node& node, Bytes& value) {
  return parse_unit(node, value, parse_bytes);
}

bool parse(const Node& node, std::vector<std::string>& value) {
  return parse_items(node, value);
}

bool parse(const Node& node, std::vector<double>& value) {
  return parse_items(node, value);
}

bool parse(const Node& node, std::map<std::string, std::string>& value) {
  std::map<std::string, std::string> parsed;
  if (node.kind() != Node::Kind::kMap || !collect(node, "", parsed)) {
    return false;
  }
  value = std::move(parsed);
  return true;
}

std::string yaml(bool value) {
  return value ? "true" : "false";
}

std::string yaml(int value) {
  return fmt::to_string(value);
}

std::string yaml(int64_t value) {
  return fmt::to_string(value);
}

std::string yaml(double value) {
  if (std::isinf(value)) {
    return value < 0 ? "-.inf" : ".inf";
  }
  // Shortest text that reads back to the same bits; YAML 1.1 readers take
  // "1e-05" for a word, so a point goes into it.
  std::string text = fmt::format("{}", value);
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) {
    text.insert(exponent, ".0");
  }
  return text;
}

std::string yaml(const std::string& value) {
  return quote_yaml(value);
}

std::string yaml(Duration value) {
  constexpr std::array<std::pair<int64_t, const char*>, 6> kUnits = {{
      {3'600'000'000'000, "h"},
      {60'000'000'000, "m"},
      {1'000'000'000, "s"},
      {1'000'000, "ms"},
      {1'000, "us"},
      {1, "ns"},
  }};
  for (const auto& [nanos, name] : kUnits) {
    if (value.count() != 0 && value.count() % nanos == 0) {
      return fmt::format("{}{}", value.count() / nanos, name);
    }
  }
  return "0s";
}

// All nine digits where they count: what is printed reads back, exactly.
std::string yaml(Money value) {
  constexpr int64_t kDollar = 1'000'000'000;
  const int64_t nanos = value.nanos();
  std::string text = fmt::format(
      "{}{}.{:09}",
      nanos < 0 ? "-" : "",
      std::abs(nanos / kDollar),
      std::abs(nanos % kDollar));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) {
    text.pop_back();
  }
  return text + " USD";
}

std::string yaml(Bytes value) {
  constexpr std::array<const char*, 5> kNames = {
      "", "KiB", "MiB", "GiB", "TiB"};
  uint64_t count = value.count;
  size_t index = 0;
  while (count != 0 && count % 1024 == 0 && index + 1 < kNames.size()) {
    count /= 1024;
    ++index;
  }
  return fmt::format("{}{}", count, kNames[index]);
}

std::string yaml(const std::vector<std::string>& value) {
  return yaml_items(value);
}

std::string yaml(const std::vector<double>& value) {
  return yaml_items(value);
}

std::string yaml(const std::map<std::string, std::string>& value) {
  Node node = Node::map({});
  for (const auto& [key, text] : value) {
    node.set(key, Node::scalar(text, {}, true));
  }
  return to_flow_yaml(node);
}

}  // namespace lockstep::config::internal
