#pragma once

// Downloads over HTTP and HTTPS with libcurl, which honours http_proxy,
// https_proxy and no_proxy. A file appears under its name only when it is
// whole and its checksum is right; until then it is <name>.part, and a later
// call goes on where it stopped as long as the server still has the same file.
// What may pass (5xx, 408, 429, a cut connection, a stall) is tried again
// after a pause that doubles; what will not (404, a bad certificate, a full
// disk, a wrong checksum) is not. Thread-safe for different files.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

// An address as it may be shown: "https://me:***@host/x".
std::string without_password(const std::string& url);

struct DownloadOptions {
  std::string url;
  os::Path to;
  std::optional<Checksum> checksum;
  // Of a copy that is here already (Downloaded::validator of that time): when
  // the server still has the same, nothing is fetched and nothing written.
  std::string validator;
  os::Path ca_file;  // certificates to trust; empty: those of CURL_CA_BUNDLE,
                     // SSL_CERT_FILE or the system
  Duration connect_timeout = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(30);  // no byte for so long
  int attempts = 5;                                   // in all
  int connect_attempts = 2;  // of these, while nobody answers at all
  Duration backoff = std::chrono::milliseconds(500);  // first pause
  // Bytes so far and in all (0: unknown); false stops with kInterrupted.
  std::function<bool(uint64_t now, uint64_t total)> progress;
  std::function<void(const std::string&)> say;  // each retry, and why
};

struct Downloaded {
  uint64_t bytes = 0;         // size of the file
  uint64_t resumed_from = 0;  // what an earlier attempt had left
  int attempts = 0;
  std::string validator;   // ETag or Last-Modified; empty: the server has none
  bool unchanged = false;  // the copy with options.validator is still the same
};

Result<Downloaded> download(
    const DownloadOptions& options,
    os::Clock& clock = os::real_clock());

}  // namespace lockstep::fetch
