#pragma once

// A fake ssh for the tests: hosts are folders, each with a home of its own, and
// the far end is this very test program. Hosts whose names say so misbehave.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lockstep/reach/session.h"

namespace lockstep::reach {

class NearAndFar : public ::testing::Test {
 protected:
  NearAndFar();
  ~NearAndFar() override;

  ReachOptions options() const;
  std::unique_ptr<Session> session(const std::string& host);
  os::Path home(const std::string& host) const;
  // How often the fake ssh was called.
  size_t calls() const;
  void write(const os::Path& path, const std::string& text) const;
  std::string read(const os::Path& path) const;

  os::Path folder_;
};

}  // namespace lockstep::reach
