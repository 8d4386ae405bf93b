#include "lockstep/reach/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/os/socket.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kNonce(32, 'n');

json dial_request(uint64_t port, const std::string& nonce, double seconds) {
  return {
      {"addresses", {"127.0.0.1"}},
      {"port", port},
      {"nonce", nonce},
      {"seconds", seconds}};
}

TEST(Probes, MeasureTheWay) {
  Probes probes;
  const json request = {{"first", 0}, {"last", 0}, {"nonce", kNonce}};
  const auto port = probes.listen(request).value()["port"].get<uint64_t>();
  const auto found = Probes::dial(dial_request(port, kNonce, 0.05));
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_GT((*found)["latency"].get<double>(), 0);
  EXPECT_GT((*found)["bandwidth"].get<double>(), 1e6);
  // A second one, without a transfer.
  const auto again = Probes::dial(dial_request(port, kNonce, 0));
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ((*again)["bandwidth"].get<double>(), 0);
}

TEST(Probes, StrangersAreNotServed) {
  Probes probes;
  const json request = {{"first", 0}, {"last", 0}, {"nonce", kNonce}};
  const auto port = probes.listen(request).value()["port"].get<uint64_t>();
  EXPECT_FALSE(Probes::dial(dial_request(port, std::string(32, 'x'), 0)));
  EXPECT_TRUE(Probes::dial(dial_request(port, kNonce, 0)));
}

TEST(Probes, EndWhileSomebodyIsConnected) {
  auto probes = std::make_unique<Probes>();
  const json request = {{"first", 0}, {"last", 0}, {"nonce", kNonce}};
  const auto port = probes->listen(request).value()["port"].get<uint16_t>();
  const auto idle = os::real_network()
                        .connect(
                            {"127.0.0.1", port, ""},
                            os::Deadline::after(std::chrono::seconds(60)))
                        .value();
  probes.reset();  // must come back
}

TEST(Probes, SayWhyNobodyAnswers) {
  Probes probes;
  const json request = {{"first", 0}, {"last", 0}, {"nonce", kNonce}};
  uint64_t port = 0;
  {
    Probes gone;
    port = gone.listen(request).value()["port"].get<uint64_t>();
  }
  const auto found = Probes::dial(dial_request(port, kNonce, 0));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(found.error().message(), HasSubstr("127.0.0.1"));
  EXPECT_FALSE(probes.listen({{"first", 9}, {"last", 3}, {"nonce", kNonce}}));
}

TEST(Probes, ReadVersions) {
  const json found =
      Probes::tools({{"names", {"sh-that-is-not-there", "cat"}}}).value();
  EXPECT_EQ(found["sh-that-is-not-there"], "");
  EXPECT_THAT(found["cat"].get<std::string>(), HasSubstr("cat"));
}

}  // namespace
}  // namespace lockstep::reach
