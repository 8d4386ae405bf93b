#pragma once

// XML as the clouds send it, read by pugixml: no entities from outside, no
// network, any depth. A document that is not whole is kCorrupt.

#include <cstdint>
#include <memory>
#include <pugixml.hpp>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"

namespace lockstep::fetch {

using XmlDocument = std::unique_ptr<pugi::xml_document>;

Result<XmlDocument> parse_xml(std::string_view text);

// The text below `path` ("Error/Code"), blanks at its ends dropped; empty
// where there is none.
std::string xml_text(const pugi::xml_node& node, const char* path);

// A number that is not one is kCorrupt and names the element.
Result<uint64_t> xml_number(const pugi::xml_node& node, const char* path);

// For writing: & < > and quotes.
std::string xml_escape(std::string_view text);

}  // namespace lockstep::fetch
