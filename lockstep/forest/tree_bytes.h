#pragma once

// Trees on their way between ranks of one program: native bytes, one after the
// other, a third of what they take in memory. Links follow from the order of
// the walk and are not sent; a leaf of one class is its number. Not a file
// format; that is model_file.h.

#include <string>
#include <string_view>

#include "lockstep/forest/tree.h"

namespace lockstep::forest {

// Nodes must lie in the order of the walk (tree.h).
void put_tree(const Tree& tree, std::string& bytes);
// Takes one tree off the front.
Tree take_tree(std::string_view& bytes);

}  // namespace lockstep::forest
