#include "lockstep/fetch/xml.h"

#include <fmt/format.h>

#include <charconv>

namespace lockstep::fetch {

Result<XmlDocument> parse_xml(std::string_view text) {
  auto document = std::make_unique<pugi::xml_document>();
  const auto parsed =
      document->load_buffer(text.data(), text.size(), pugi::parse_default);
  if (!parsed) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "not a whole XML document: {} at byte {} of {}",
            parsed.description(),
            parsed.offset,
            text.size()));
  }
  return document;
}

std::string xml_text(const pugi::xml_node& node, const char* path) {
  const std::string_view text = node.first_element_by_path(path).child_value();
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return {};
  }
  return std::string(
      text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

Result<uint64_t> xml_number(const pugi::xml_node& node, const char* path) {
  const std::string text = xml_text(node, path);
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("<{}> is '{}', not a number", path, text));
  }
  return value;
}

std::string xml_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      default:
        // Control characters cannot stand in XML as they are.
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("&#x{:x};", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out;
}

}  // namespace lockstep::fetch
