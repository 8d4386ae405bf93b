#pragma once

// What may be shown of a job with secrets where redact() of job.h does not
// find a value as it stands: in words that are quoted. Pure.

#include <string>
#include <vector>

#include "lockstep/launch/job.h"

namespace lockstep::launch {

// Each word by itself, before it is quoted.
std::vector<std::string> redact(const Job& job, std::vector<std::string> words);
// Words of a command as one line for a shell.
std::string shown_line(const Job& job, const std::vector<std::string>& words);

}  // namespace lockstep::launch
