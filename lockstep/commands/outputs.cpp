#include "lockstep/commands/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "lockstep/base/log.h"
#include "lockstep/commands/far_nodes.h"
#include "lockstep/fetch/s3.h"

namespace lockstep::commands {
namespace {

Result<fetch::S3Address> address_of(const launch::Job& job) {
  auto address = fetch::parse_s3_address(job.outputs);
  if (!address) {
    return Error(
               ErrorCode::kInvalidInput,
               "outputs: " + address.error().to_string())
        .with_fix("as in outputs: s3://my-bucket/runs");
  }
  while (address->key.ends_with('/')) {
    address->key.pop_back();
  }
  return address;
}

Result<std::unique_ptr<fetch::S3>> open_store() {
  fetch::S3Options store;
  LOCKSTEP_ASSIGN(store.client.settings, fetch::load_settings());
  store.state = cache_folder();  // goes on with what an uploader had begun
  store.client.say = [](const std::string& line) { log_debug(line); };
  return std::make_unique<fetch::S3>(std::move(store));
}

}  // namespace

Result<void> check_outputs(const launch::Job& job) {
  if (!job.outputs.empty()) {
    LOCKSTEP_TRY(address_of(job));
  }
  return {};
}

Result<void> reach_outputs(const launch::Job& job) {
  if (job.outputs.empty()) {
    return {};
  }
  LOCKSTEP_ASSIGN(const fetch::S3Address address, address_of(job));
  LOCKSTEP_ASSIGN(const auto s3, open_store());
  // A name that nothing has: the answer is short.
  return s3
      ->list(
          address.below("lockstep-looks-whether-this-is-there"),
          [](const fetch::S3Object&) { return Result<void>(); })
      .with_context("outputs");
}

std::string outputs_of(
    const launch::Job& job,
    const record::RunDirectory& run) {
  const auto address =
      job.outputs.empty()
          ? Result<fetch::S3Address>(Error(ErrorCode::kNotFound, "no outputs"))
          : address_of(job);
  return address ? address->below(run.id()).to_string() : "";
}

bool is_not_stored(const os::Path& relative) {
  return relative == "uploader.log" || relative == "stored.json" ||
         std::ranges::any_of(relative, [](const os::Path& part) {
           const std::string name = part.string();
           return name.starts_with('.') ||
                  name.find(".tmp-") != std::string::npos;
         });
}

Result<void> store_outputs(
    const launch::Job& job,
    const record::RunDirectory& run) {
  if (job.outputs.empty()) {
    return {};
  }
  LOCKSTEP_ASSIGN(const fetch::S3Address address, address_of(job));
  LOCKSTEP_ASSIGN(const auto s3, open_store());
  const fetch::S3Address to = address.below(run.id());
  fetch::TransferOptions options;
  options.leave_out = is_not_stored;
  LOCKSTEP_ASSIGN(
      const fetch::Transferred done,
      s3->upload_folder(run.path(), to, options).with_context("outputs"));
  log_info(
      fmt::format(
          "stored: {} ({} files, {})",
          to.to_string(),
          done.files,
          format_bytes(Bytes{done.bytes})));
  return {};
}

}  // namespace lockstep::commands
