#pragma once

// Why a group is dead: what all its ranks are told, whoever found it first.

#include <string>
#include <vector>

namespace lockstep::collective {

struct Failure {
  std::string reason;
  std::vector<int> ranks;  // that are to blame, in the whole group
};

}  // namespace lockstep::collective
