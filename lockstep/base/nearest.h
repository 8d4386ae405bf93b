#pragma once

// Finds what a mistyped name was probably meant to be.

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Up to `most` accepted names close to `name`, best first: few edits (swapped
// neighbours count as one), or one being the start or last part of the other.
std::vector<std::string> nearest_names(
    std::string_view name,
    const std::vector<std::string>& accepted,
    size_t most = 3);

// "did you mean 'a' or 'b'?" or, with no near one, "accepted: a, b, c".
std::string suggest(
    std::string_view name,
    const std::vector<std::string>& accepted);

}  // namespace lockstep
