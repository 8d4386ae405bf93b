#pragma once

// Trees on their way between ranks of one program: native bytes, one after the
// other. Not a file format; that is model_file.h.

#include <string>
#include <string_view>

#include "lockstep/forest/tree.h"

namespace lockstep::forest {

void put_tree(const Tree& tree, std::string& bytes);
// Takes one tree off the front.
Tree take_tree(std::string_view& bytes);

}  // namespace lockstep::forest
