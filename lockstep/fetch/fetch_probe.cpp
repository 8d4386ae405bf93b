// Drives the downloader and the unpacker from tests/test_fetch.py:
//   fetch_probe download URL TO [CHECKSUM|-] [ATTEMPTS]
//                                             prints bytes, resumed, attempts
//   fetch_probe unpack ARCHIVE INTO           prints the names
// An error goes to stderr with its code; exit status 1.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lockstep/fetch/archive.h"
#include "lockstep/fetch/http.h"

namespace lockstep::fetch {
namespace {

int fail(const Error& error) {
  fmt::print(stderr, "{}: {}\n", to_string(error.code()), error.to_string());
  return 1;
}

int probe_download(const std::vector<std::string>& arguments) {
  DownloadOptions options;
  options.url = arguments[1];
  options.to = arguments[2];
  options.backoff = std::chrono::milliseconds(1);
  options.stall_timeout = std::chrono::seconds(1);
  options.say = [](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
  };
  if (arguments.size() > 4) {
    options.attempts = std::stoi(arguments[4]);
  }
  if (arguments.size() > 3 && arguments[3] != "-") {
    auto checksum = parse_checksum(arguments[3]);
    if (!checksum) {
      return fail(checksum.error());
    }
    options.checksum = *checksum;
  }
  const auto done = download(options);
  if (!done) {
    return fail(done.error());
  }
  fmt::print(
      "bytes={} resumed={} attempts={}\n",
      done->bytes,
      done->resumed_from,
      done->attempts);
  return 0;
}

int probe_unpack(const std::vector<std::string>& arguments) {
  const auto names = unpack_tar(arguments[1], arguments[2]);
  if (!names) {
    return fail(names.error());
  }
  for (const auto& name : *names) {
    fmt::print("{}\n", name);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::fetch

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 3 && arguments[0] == "download") {
    return lockstep::fetch::probe_download(arguments);
  }
  if (arguments.size() == 3 && arguments[0] == "unpack") {
    return lockstep::fetch::probe_unpack(arguments);
  }
  fmt::print(stderr, "usage: fetch_probe download|unpack ...\n");
  return 2;
}
