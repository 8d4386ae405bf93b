#include "lockstep/commands/node_notices.h"

#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/cloud/ec2/spot_notices.h"
#include "lockstep/fetch/instance_metadata.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {
namespace {

constexpr Duration kEvery = std::chrono::seconds(2);

class Watcher {
 public:
  explicit Watcher(const fetch::AwsSettings& settings)
      : metadata_(settings), notices_(metadata_) {
    thread_ = std::jthread(
        [this](const std::stop_token& stopped) { watch(stopped); });
  }

  std::optional<launch::NodeNotice> now() const {
    const std::lock_guard lock(mutex_);
    return notice_;
  }

 private:
  void watch(const std::stop_token& stopped) {
    bool was_told = false;
    while (!stopped.stop_requested()) {
      const auto found = notices_.look();
      if (found && *found) {
        take(**found);
      } else if (!found && !was_told) {
        was_told = true;
        log_info("no notices: " + found.error().to_string());
      }
      for (Duration slept{}; slept < kEvery && !stopped.stop_requested();) {
        constexpr auto kSlice = std::chrono::milliseconds(100);
        os::real_clock().sleep_for(kSlice);
        slept += kSlice;
      }
    }
  }

  void take(const cloud::Notice& notice) {
    const bool is_end = notice.kind == cloud::Notice::Kind::kInterruption;
    const std::lock_guard lock(mutex_);
    notice_ = launch::NodeNotice{
        is_end ? "interruption" : "rebalance", notice.at, notice.action};
  }

  fetch::InstanceMetadata metadata_;
  cloud::ec2::SpotNotices notices_;
  mutable std::mutex mutex_;
  std::optional<launch::NodeNotice> notice_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace

launch::NoticeMaker node_notices() {
  return []() -> std::function<std::optional<launch::NodeNotice>()> {
    const auto settings = fetch::load_settings();
    if (!settings) {
      log_warning(settings.error().to_string());
      return {};
    }
    const auto watcher = std::make_shared<Watcher>(*settings);
    return [watcher] { return watcher->now(); };
  };
}

}  // namespace lockstep::commands
