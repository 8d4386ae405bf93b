#include "lockstep/parallel/torch_store.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <stdexcept>
#include <vector>

namespace lockstep::parallel {
namespace {

class TorchStoreRendezvous : public wire::Rendezvous {
 public:
  TorchStoreRendezvous(
      c10::intrusive_ptr<c10d::TCPStore> store,
      std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  Result<void> put(const std::string& key, const std::string& value) override {
    try {
      store_->set(
          prefix_ + key, std::vector<uint8_t>(value.begin(), value.end()));
      return {};
    } catch (const std::exception& failure) {
      return Error(ErrorCode::kUnavailable, failure.what());
    }
  }

  Result<std::string> get(const std::string& key, os::Deadline deadline)
      override {
    try {
      store_->setTimeout(
          std::chrono::duration_cast<std::chrono::milliseconds>(
              deadline.left()));
      const auto value = store_->get(prefix_ + key);
      return std::string(value.begin(), value.end());
    } catch (const std::exception& failure) {
      return Error(ErrorCode::kTimeout, failure.what());
    }
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::string prefix_;
};

}  // namespace

std::unique_ptr<wire::Rendezvous> connect_torch_store(
    const std::string& host,
    uint16_t port,
    const std::string& prefix,
    Duration timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  try {
    return std::make_unique<TorchStoreRendezvous>(
        c10::make_intrusive<c10d::TCPStore>(host, options), prefix);
  } catch (const std::exception& failure) {
    throw std::runtime_error(
        fmt::format(
            "no torchrun store at {}:{}: {}", host, port, failure.what()));
  }
}

}  // namespace lockstep::parallel
