#pragma once

// Base64 with padding, as EC2 takes user-data and keys. Pure.

#include <string>
#include <string_view>

namespace lockstep::cloud::ec2 {

std::string base64(std::string_view bytes);

}  // namespace lockstep::cloud::ec2
