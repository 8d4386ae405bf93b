#pragma once

// For tests: runs the same body on every rank of a group, as threads or as
// processes, on one host or on several that are only named so.

#include <functional>
#include <memory>
#include <string>

#include "lockstep/collective/factory.h"

namespace lockstep::collective {

inline constexpr DataType kAllTypes[] = {
    DataType::kFloat32,
    DataType::kBFloat16,
    DataType::kFloat64,
    DataType::kInt32,
    DataType::kInt64,
    DataType::kUint8};
inline constexpr ReduceOp kAllOps[] = {
    ReduceOp::kSum,
    ReduceOp::kMin,
    ReduceOp::kMax};

enum class Mode {
  kThreads,    // one host
  kProcesses,  // one host
  kRing,       // threads, each its own host
  kHosts,      // threads, two hosts, ranks dealt in turn
  kBlocks,     // processes, two hosts, the lower ranks on the first
};
std::string to_string(Mode mode);

struct GroupCase {
  Mode mode = Mode::kThreads;
  int size = 2;
  Duration timeout = std::chrono::seconds(60);
  std::string key_of_last{};  // not empty: the last rank holds another key
};

using Body = std::function<void(Communicator& communicator)>;

// Fails the test for each rank whose body throws or fails an expectation.
// Processes that a signal ended are reported unless `may_die` holds for the
// rank.
void run_group(
    const GroupCase& group,
    const Body& body,
    const std::function<bool(int)>& may_die = nullptr);

// What the body on this rank throws, or "" when it returns.
std::string error_of(const std::function<void()>& body);

}  // namespace lockstep::collective
