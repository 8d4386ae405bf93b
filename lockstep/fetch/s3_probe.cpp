// Drives the S3 client from tests/test_s3.py and bench/s3.py:
//   s3_probe [--part BYTES] [--workers N] [--path|--virtual] [--endpoint URL]
//            [--state FOLDER] [--retries N] [--backoff MS] [--stall S]
//            [--clock S]   this machine's clock is wrong by so much
//            [--stale S]   the age at which uploads of a key are ended
//            COMMAND ARGUMENTS
//   head ADDRESS | get ADDRESS | put ADDRESS TEXT [absent|etag=E]
//   list ADDRESS | rm ADDRESS | mb BUCKET
//   uploads ADDRESS | abort ADDRESS ID   uploads that are not completed
//   up FILE ADDRESS [absent|etag=E] | down ADDRESS FILE
//   up-folder FOLDER ADDRESS | down-folder ADDRESS FOLDER
//   who          the source of the credentials
//   sign METHOD HOST PATH SERVICE REGION TIME QUERY...   prints the headers
// An error goes to stderr with its code; exit status 1.

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/fetch/s3.h"

namespace lockstep::fetch {
namespace {

class WrongClock : public os::Clock {
 public:
  explicit WrongClock(double wrong) : wrong_(wrong) {}
  double unix_seconds() const override {
    return os::real_clock().unix_seconds() + wrong_;
  }
  os::Instant now() const override { return os::real_clock().now(); }
  void sleep_for(Duration duration) override {
    os::real_clock().sleep_for(duration);
  }

 private:
  double wrong_;
};

int fail(const Error& error) {
  fmt::print(stderr, "{}: {}\n", to_string(error.code()), error.to_string());
  return 1;
}

// `begun` is after the start of the program and before its first request.
int show(os::Instant begun, const Result<Transferred>& done) {
  if (!done) {
    return fail(done.error());
  }
  fmt::print(
      "seconds={:.6f} files={} bytes={} moved={} skipped={} etag={}\n",
      to_seconds(os::real_clock().now() - begun),
      done->files,
      done->bytes,
      done->moved,
      done->skipped,
      done->etag);
  return 0;
}

S3Condition parse_condition(const std::vector<std::string>& words, size_t at) {
  S3Condition out;
  if (words.size() > at) {
    out.absent = words[at] == "absent";
    if (words[at].starts_with("etag=")) {
      out.etag = words[at].substr(5);
    }
  }
  return out;
}

int sign_words(const std::vector<std::string>& words) {
  SigningInput input;
  input.method = words.at(1);
  input.host = words.at(2);
  input.path = words.at(3);
  input.service = words.at(4);
  input.region = words.at(5);
  input.unix_seconds = std::stoll(words.at(6));
  for (size_t i = 7; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    input.query.emplace_back(
        words[i].substr(0, equals), words[i].substr(equals + 1));
  }
  input.payload_hash = sha256_hex("");
  SigningKeys keys;
  keys.key_id = "AKIDEXAMPLE";
  keys.secret = Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
  fmt::print("{}\n", sign(input, keys).back().second);
  return 0;
}

int run_words(S3Options options, const std::vector<std::string>& words) {
  const std::string& command = words[0];
  if (command == "sign") {
    return sign_words(words);
  }
  auto settings = load_settings();
  if (!settings) {
    return fail(settings.error());
  }
  options.client.settings = *settings;
  options.client.say = [](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
  };
  if (command == "who") {
    const auto found = AwsClient(options.client).credentials();
    if (!found) {
      return fail(found.error());
    }
    fmt::print("{} {}\n", found->keys.key_id, found->source);
    return 0;
  }
  S3 s3(options);
  if (command == "mb") {
    const auto made = s3.make_bucket(words.at(1));
    return made ? 0 : fail(made.error());
  }
  const bool second = command == "up" || command == "up-folder";
  const auto address = parse_s3_address(words.at(second ? 2 : 1));
  if (!address) {
    return fail(address.error());
  }
  if (command == "head") {
    const auto object = s3.head(*address);
    if (!object) {
      return fail(object.error());
    }
    fmt::print("{} {}\n", object->size, object->etag);
    return 0;
  }
  if (command == "get") {
    const auto bytes = s3.get(*address);
    if (!bytes) {
      return fail(bytes.error());
    }
    fmt::print("{}", *bytes);
    return 0;
  }
  if (command == "put") {
    const auto etag = s3.put(*address, words.at(2), parse_condition(words, 3));
    if (!etag) {
      return fail(etag.error());
    }
    fmt::print("{}\n", *etag);
    return 0;
  }
  if (command == "rm") {
    const auto removed = s3.remove(*address);
    return removed ? 0 : fail(removed.error());
  }
  if (command == "list") {
    const auto listed = s3.list(*address, [](const S3Object& object) {
      fmt::print("{} {} {}\n", object.size, object.etag, object.key);
      return Result<void>{};
    });
    return listed ? 0 : fail(listed.error());
  }
  if (command == "uploads") {
    const auto listed = s3.list_uploads(*address, [](const S3Upload& upload) {
      fmt::print("{} {} {}\n", upload.begun, upload.id, upload.key);
      return Result<void>{};
    });
    return listed ? 0 : fail(listed.error());
  }
  if (command == "abort") {
    const auto ended = s3.abort_upload(*address, words.at(2));
    return ended ? 0 : fail(ended.error());
  }
  TransferOptions transfer;
  const os::Instant begun = os::real_clock().now();
  if (command == "up") {
    transfer.condition = parse_condition(words, 3);
    return show(begun, s3.upload(words.at(1), *address, transfer));
  }
  if (command == "down") {
    return show(begun, s3.download(*address, words.at(2), transfer));
  }
  if (command == "up-folder") {
    return show(begun, s3.upload_folder(words.at(1), *address, transfer));
  }
  if (command == "down-folder") {
    return show(begun, s3.download_folder(*address, words.at(2), transfer));
  }
  fmt::print(stderr, "s3_probe: unknown command '{}'\n", command);
  return 2;
}

os::Clock* wrong_clock(double wrong) {
  static WrongClock clock(wrong);
  return &clock;
}

}  // namespace
}  // namespace lockstep::fetch

int main(int argc, char** argv) {
  using namespace lockstep;
  std::vector<std::string> words(argv + 1, argv + argc);
  fetch::S3Options options;
  while (!words.empty() && words[0].starts_with("--")) {
    const std::string name = words[0];
    words.erase(words.begin());
    if (name == "--path" || name == "--virtual") {
      options.addressing = name == "--path" ? fetch::S3Addressing::kPath
                                            : fetch::S3Addressing::kVirtual;
      continue;
    }
    if (words.empty()) {
      break;
    }
    const std::string value = words[0];
    words.erase(words.begin());
    if (name == "--part") {
      options.part_size = std::stoull(value);
    } else if (name == "--workers") {
      options.workers = std::stoi(value);
      options.file_workers = options.workers;
    } else if (name == "--endpoint") {
      options.endpoint = value;
    } else if (name == "--state") {
      options.state = value;
    } else if (name == "--stale") {
      options.stale = std::chrono::seconds(std::stoi(value));
    } else if (name == "--retries") {
      options.client.attempts = std::stoi(value);
    } else if (name == "--backoff") {
      options.client.backoff = std::chrono::milliseconds(std::stoi(value));
    } else if (name == "--clock") {
      options.client.clock = fetch::wrong_clock(std::stod(value));
    } else if (name == "--stall") {
      options.client.stall_timeout = std::chrono::seconds(std::stoi(value));
    }
  }
  if (words.empty()) {
    fmt::print(stderr, "usage: s3_probe [OPTIONS] COMMAND ARGUMENTS\n");
    return 2;
  }
  return fetch::run_words(options, words);
}
