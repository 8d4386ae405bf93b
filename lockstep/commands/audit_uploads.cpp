#include "lockstep/commands/audit_uploads.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/base/log.h"
#include "lockstep/commands/cloud_access.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {
namespace {

struct KnownRun {
  std::string prefix;  // of its keys, with a slash at the end
  bool is_running = false;
};

// A part of a bucket that is listed at once.
struct Place {
  fetch::S3Address address;
  bool is_named = false;       // by the user: all of it counts
  std::vector<KnownRun> runs;  // else what is theirs
};

std::string folder_of(std::string key) {
  while (key.ends_with('/')) {
    key.pop_back();
  }
  return key.empty() ? "" : key + "/";
}

// By address, so that a folder of a hundred runs is listed once.
Result<std::map<std::string, Place>> find_places(const UploadAudit& audit) {
  std::map<std::string, Place> places;
  for (const std::string& text : audit.places) {
    auto address = fetch::parse_s3_address(text);
    if (!address) {
      return std::move(address.error()).with_context("--outputs");
    }
    address->key = folder_of(address->key);
    places[address->to_string()] = {*address, true, {}};
  }
  const auto runs = record::list_runs(audit.runs_dir);
  if (!runs) {
    return places;
  }
  for (const record::RunDirectory& run : *runs) {
    const auto state = launch::read_run_state(run);
    if (!state || !*state || (*state)->outputs.empty()) {
      continue;
    }
    auto address = fetch::parse_s3_address((*state)->outputs);
    if (!address) {
      continue;
    }
    const std::string own = folder_of(address->key);
    const size_t slash = address->key.rfind('/');
    address->key =
        slash == std::string::npos ? "" : address->key.substr(0, slash + 1);
    Place& place = places[address->to_string()];
    place.address = *address;
    place.runs.push_back({own, !(*state)->has_ended()});
  }
  return places;
}

// None: it is not ours to judge.
std::optional<AuditedUpload> judge(
    const Place& place,
    const fetch::S3Upload& upload,
    double now,
    Duration stale) {
  const auto run = std::ranges::find_if(place.runs, [&](const KnownRun& one) {
    return upload.key.starts_with(one.prefix);
  });
  if (!place.is_named && run == place.runs.end()) {
    return std::nullopt;
  }
  AuditedUpload out;
  out.address = {place.address.bucket, upload.key};
  out.id = upload.id;
  out.begun = static_cast<double>(upload.begun);
  const double age = now - out.begun;
  if (run != place.runs.end() && run->is_running) {
    out.owner = "its run";
    out.why = "it is under way";
  } else if (upload.begun == 0) {
    out.owner = "its maker";
    out.why = "nobody tells when it began";
  } else if (age <= to_seconds(stale)) {
    out.owner = "its maker";
    out.why = fmt::format("begun {} ago", age_text(age));
  } else {
    out.owner = "nobody";
    out.why = fmt::format("begun {} ago and never completed", age_text(age));
  }
  return out;
}

}  // namespace

Result<UploadFindings> audit_uploads(const UploadAudit& audit) {
  UploadFindings findings;
  LOCKSTEP_ASSIGN(const auto places, find_places(audit));
  if (places.empty()) {
    return findings;
  }
  fetch::S3Options options;
  LOCKSTEP_ASSIGN(options.client.settings, fetch::load_settings());
  options.client.limit = std::chrono::seconds(30);
  options.client.say = [](const std::string& line) { log_debug(line); };
  fetch::S3 s3(std::move(options));
  const double now = os::real_clock().unix_seconds();
  for (const auto& [name, place] : places) {
    auto listed =
        s3.list_uploads(place.address, [&](const fetch::S3Upload& upload) {
          if (auto found = judge(place, upload, now, audit.stale)) {
            findings.uploads.push_back(std::move(*found));
          }
          return Result<void>{};
        });
    if (!listed && place.is_named) {
      findings.failed.push_back(std::move(listed.error()));
    } else if (!listed) {
      log_warning("uploads: " + listed.error().to_string());
    }
  }
  for (AuditedUpload& one : findings.uploads) {
    if (!audit.fix || one.is_owned()) {
      continue;
    }
    auto ended = s3.abort_upload(one.address, one.id);
    one.ended = ended.has_value();
    if (!ended) {
      findings.failed.push_back(std::move(ended.error()));
    }
  }
  return findings;
}

}  // namespace lockstep::commands
