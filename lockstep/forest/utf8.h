#pragma once

// Names of columns and classes go into a model file, whose lists are JSON:
// they are UTF-8, or refused before a tree is grown. Pure.

#include <string>
#include <string_view>

namespace lockstep::forest {

bool is_utf8(std::string_view text);

// For a message: what a terminal does not show as \x00.
std::string printable(std::string_view text);

}  // namespace lockstep::forest
