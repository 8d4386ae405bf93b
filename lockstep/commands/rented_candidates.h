#pragma once

// Machine types of a cloud, for `bench`: every probe is a `lockstep run` of its
// own that rents the machines and gives them back when it ends, however it
// does. Nothing is rented here.

#include "lockstep/commands/candidates.h"

namespace lockstep::commands {

// "c5.xlarge", "c5.xlarge+c5.xlarge" (two of them), each maybe with "=PRICE" an
// hour and node to count with instead of the cloud's. Prices are those of the
// job's region and market. A type that the cloud does not offer there is an
// error, with the nearest names.
Result<std::unique_ptr<Candidates>> rented_candidates(
    const std::vector<std::string>& words,
    const launch::Job& job,
    const Settings& settings);

// "c5.xlarge  $0.17 an hour and node, on demand (...)", a line for each.
std::string offers_text(const std::vector<Candidate>& candidates);

}  // namespace lockstep::commands
