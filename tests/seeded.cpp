// Linked into every test that uses LibTorch. Its generator begins with a random
// number of the system in each process, so a case would see other numbers in
// each run; here every case begins with the same.

#include <gtest/gtest.h>
#include <torch/utils.h>

namespace lockstep {
namespace {

class Seeded final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override {
    torch::manual_seed(1);
  }
};

// The list of listeners owns it.
const bool kInstalled = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Seeded);
  return true;
}();

}  // namespace
}  // namespace lockstep
