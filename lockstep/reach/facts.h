#pragma once

// What the far end says about its machine (the verb `facts` of far_end.h).

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/os/file.h"

namespace lockstep::reach {

nlohmann::json machine_facts(const os::Path& home);

// Addresses of this machine that others may reach: no loopback, no
// link-local, IPv4 before IPv6.
std::vector<std::string> own_addresses();

}  // namespace lockstep::reach
