#pragma once

// Text as files and tools give it: the white space around it, and its lines.

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Without spaces, tabs and line ends at either side; a part of `text`.
std::string_view trim(std::string_view text);

// ASCII letters in lower case.
std::string lower(std::string_view text);

// Without their line ends; the last line may have none.
std::vector<std::string> lines_of(std::string_view text);

}  // namespace lockstep
