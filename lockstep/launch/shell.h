#pragma once

// Words for a shell: quoting, and where a program lies. Pure but for
// find_in_path and capture, which look at this machine.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"

namespace lockstep::launch {

// As one word of sh, quoted only where it must be.
std::string shell_word(const std::string& word);
std::string shell_line(const std::vector<std::string>& words);

// The file of a program in our PATH; empty when there is none.
std::string find_in_path(const std::string& name);

// Runs a short program to its end; what it printed. An error holds that text,
// and the program is killed when it takes longer than `patience`.
Result<std::string> capture(
    const std::vector<std::string>& argv,
    Duration patience);

}  // namespace lockstep::launch
