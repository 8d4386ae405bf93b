// From a Node back to YAML text.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "lockstep/base/text.h"
#include "lockstep/config/node.h"

namespace lockstep::config {
namespace {

// Words that some YAML reader (1.1 or 1.2) takes for null, a truth or a number.
constexpr std::array<std::string_view, 14> kReserved = {
    "null",
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "y",
    "n",
    "inf",
    "nan",
    "infinity",
    "~",
    "<<"};

// Only texts that no reader can misread go without quotes; the rest is quoted,
// also where YAML would allow it plain.
bool is_plain(std::string_view text) {
  if (text.empty() || std::ranges::count(kReserved, lower(text)) > 0) {
    return false;
  }
  const auto first = static_cast<unsigned char>(text[0]);
  if (!std::isalpha(first) && first != '_' && first != '/') {
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool last = i + 1 == text.size();
    const bool fine = std::isalnum(c) ||
                      (c != 0 && std::string_view("_./+@=-").contains(char(c)));
    const bool space =
        c == ' ' && !last && text[i + 1] != '#' && text[i + 1] != ' ';
    const bool colon = c == ':' && !last && text[i + 1] != ' ';
    if (!fine && !space && !colon) {
      return false;
    }
  }
  return true;
}

// A number, truth or null that was written without quotes stays so.
std::string scalar_yaml(const Node& node) {
  const std::string& text = node.text();
  const bool simple =
      !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
        return std::isalnum(c) || c == '.' || c == '+' || c == '-' || c == '_';
      });
  const std::string low = lower(text);
  const bool null_word = low == "null" || low == "~";
  const bool dashes = text.starts_with("-") &&
                      (text.size() == 1 || !std::isalnum(uint8_t(text[1])));
  const bool dots = text.starts_with("..");
  if (!node.quoted() && simple && !null_word && !dashes && !dots) {
    return text;
  }
  return quote_yaml(text);
}

// A key with a dot would be split when read back; quotes hold it together.
std::string key_yaml(const std::string& key) {
  const std::string shown = quote_yaml(key);
  return shown.find('.') != std::string::npos && shown[0] != '"'
             ? fmt::format("\"{}\"", key)
             : shown;
}

void write_block(const Node& node, int indent, std::string& out);

void write_value(const Node& value, int indent, std::string& out) {
  if (value.kind() == Node::Kind::kMap && !value.entries().empty()) {
    out += "\n";
    write_block(value, indent, out);
  } else {
    out += ' ';
    out += to_flow_yaml(value);
    out += '\n';
  }
}

void write_block(const Node& node, int indent, std::string& out) {
  for (const auto& [key, value] : node.entries()) {
    out += std::string(size_t(indent), ' ') + key_yaml(key) + ":";
    write_value(value, indent + 2, out);
  }
}

}  // namespace

std::string quote_yaml(std::string_view text) {
  if (is_plain(text)) {
    return std::string(text);
  }
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string to_flow_yaml(const Node& node) {
  switch (node.kind()) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kScalar:
      return scalar_yaml(node);
    case Node::Kind::kList: {
      std::string out = "[";
      for (const auto& item : node.items()) {
        out += (out.size() > 1 ? ", " : "") + to_flow_yaml(item);
      }
      return out + "]";
    }
    case Node::Kind::kMap: {
      std::string out = "{";
      for (const auto& [key, value] : node.entries()) {
        out += (out.size() > 1 ? ", " : "") + key_yaml(key) + ": " +
               to_flow_yaml(value);
      }
      return out + "}";
    }
  }
  return "null";
}

std::string to_yaml(const Node& node) {
  if (node.kind() != Node::Kind::kMap || node.entries().empty()) {
    return to_flow_yaml(node) + "\n";
  }
  std::string out;
  write_block(node, 0, out);
  return out;
}

}  // namespace lockstep::config
