#pragma once

// How verbs come to a cloud: the user's regions and a signed client. Shared by
// those that ask one.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/commands/command.h"
#include "lockstep/fetch/aws_request.h"

namespace lockstep::commands {

// Those of the option, else `regions` or `region` of the user file, else what
// the AWS tools are told (AWS_REGION, the profile); may be empty.
Result<std::vector<std::string>> chosen_regions(
    const std::vector<std::string>& option,
    const Settings& settings);

// A client that gives up after so many tries of a call, and within about half
// a minute; it says each retry in the debug log.
Result<std::unique_ptr<fetch::AwsClient>> open_aws(
    const std::string& region,
    int attempts = 8);

// "3 days", "12 min", for a column.
std::string age_text(double seconds);

}  // namespace lockstep::commands
