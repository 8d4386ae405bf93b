#include "lockstep/fetch/http.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/fetch/curl_library.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

constexpr Duration kLongestPause = std::chrono::seconds(30);

// How an attempt ended, which decides what comes next.
enum class Ending {
  kWhole,
  kAgain,        // may pass: keep what came and go on from there
  kFromStart,    // what is kept is of no use
  kUnreachable,  // nobody answered
  kFinal,
};

struct Attempt {
  Ending ending = Ending::kFinal;
  std::optional<Error> error;
  Duration wait{};  // what the server asked for
};

// One request as its callbacks see it.
struct Transfer {
  const DownloadOptions* options = nullptr;
  int file = -1;
  uint64_t offset = 0;  // bytes kept from before
  uint64_t written = 0;
  long status = 0;
  std::map<std::string, std::string> headers;  // of the last response
  bool body_begun = false;
  bool wrong_range = false;
  int write_error = 0;
  bool stopped = false;
};

// Empty where the server gives none. A weak tag does not promise equal bytes,
// so it cannot guard a resume.
std::string validator_of(const Transfer& transfer, bool weak_too) {
  const auto etag = transfer.headers.find("etag");
  const auto modified = transfer.headers.find("last-modified");
  if (etag != transfer.headers.end() &&
      (weak_too || !etag->second.starts_with("W/"))) {
    return etag->second;
  }
  return modified != transfer.headers.end() ? modified->second : "";
}

std::string chosen_ca_file(const DownloadOptions& options) {
  if (!options.ca_file.empty()) {
    return options.ca_file.string();
  }
  for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    if (const char* file = std::getenv(name); file != nullptr && *file != 0) {
      return file;
    }
  }
  return "";
}

size_t on_header(char* data, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) {
    // A redirect, or "100 Continue", comes before the response that counts.
    transfer.headers.clear();
    transfer.status = 0;
    const auto space = line.find(' ');
    if (space != std::string_view::npos && line.size() >= space + 4) {
      std::from_chars(
          line.data() + space + 1, line.data() + space + 4, transfer.status);
    }
  } else if (
      const auto colon = line.find(':'); colon != std::string_view::npos) {
    transfer.headers[lower(line.substr(0, colon))] =
        std::string(trim(line.substr(colon + 1)));
  }
  return size * count;
}

// Whether the response carries on at the byte that we asked for.
bool continues_at(const Transfer& transfer) {
  const auto found = transfer.headers.find("content-range");
  return found != transfer.headers.end() &&
         found->second.starts_with(fmt::format("bytes {}-", transfer.offset));
}

size_t on_body(char* data, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  const size_t length = size * count;
  if (transfer.status != 200 && transfer.status != 206) {
    return length;  // an error page or a redirect's text
  }
  if (!transfer.body_begun) {
    transfer.body_begun = true;
    if (transfer.status == 206 && !continues_at(transfer)) {
      transfer.wrong_range = true;
      return 0;
    }
    if (transfer.status == 200 && transfer.offset > 0) {
      transfer.offset = 0;  // the server sends all of it
      if (::ftruncate(transfer.file, 0) != 0 ||
          ::lseek(transfer.file, 0, SEEK_SET) != 0) {
        transfer.write_error = errno;
        return 0;
      }
    }
  }
  size_t done = 0;
  while (done < length) {
    const ssize_t written = ::write(transfer.file, data + done, length - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      transfer.write_error = written < 0 ? errno : ENOSPC;
      return 0;
    }
    done += static_cast<size_t>(written);
  }
  transfer.written += length;
  return length;
}

int on_progress(
    void* self,
    curl_off_t total,
    curl_off_t,
    curl_off_t,
    curl_off_t) {
  auto& transfer = *static_cast<Transfer*>(self);
  const auto& progress = transfer.options->progress;
  const auto whole =
      total > 0 ? static_cast<uint64_t>(total) + transfer.offset : 0;
  if (progress && !progress(transfer.offset + transfer.written, whole)) {
    transfer.stopped = true;
    return 1;
  }
  return 0;
}

// What ties a .part file to the very file that the server had.
struct Mark {
  std::string url;
  std::string validator;  // ETag or Last-Modified
};

class Downloader {
 public:
  Downloader(
      const DownloadOptions& options,
      os::Clock& clock,
      const CurlLibrary& curl)
      : options_(options),
        clock_(clock),
        curl_(curl),
        part_(options.to.string() + ".part"),
        mark_path_(options.to.string() + ".part.mark") {}

  Result<Downloaded> run();

 private:
  Attempt attempt();
  Attempt judge(const Transfer& transfer, int code, const char* text);
  Attempt judge_status(const Transfer& transfer);
  Attempt finish(uint64_t kept);
  bool is_unchanged(const Transfer& transfer) const {
    return transfer.status == 304 && !options_.validator.empty();
  }
  Mark read_mark() const;
  void write_mark(const Transfer& transfer) const;
  void drop_part() const;
  Error failed(ErrorCode code, const std::string& what) const {
    return Error(
        code, fmt::format("{}: {}", without_password(options_.url), what));
  }

  const DownloadOptions& options_;
  os::Clock& clock_;
  const CurlLibrary& curl_;
  os::Path part_;
  os::Path mark_path_;
  Downloaded result_;
};

Mark Downloader::read_mark() const {
  Mark mark;
  if (const auto text = os::real_files().read(mark_path_)) {
    const auto line = text->find('\n');
    if (line != std::string::npos) {
      mark.url = text->substr(0, line);
      mark.validator = std::string(trim(text->substr(line + 1)));
    }
  }
  return mark;
}

void Downloader::write_mark(const Transfer& transfer) const {
  // Without the mark the next call starts anew: nothing worse.
  (void)os::real_files().write_atomic(
      mark_path_, options_.url + "\n" + validator_of(transfer, false) + "\n");
}

void Downloader::drop_part() const {
  (void)os::real_files().remove(part_);
  (void)os::real_files().remove(mark_path_);
}

Attempt Downloader::judge_status(const Transfer& transfer) {
  const long status = transfer.status;
  std::string what = fmt::format("the server answered {}", status);
  if (status == 416) {
    return {Ending::kFromStart, failed(ErrorCode::kUnavailable, what)};
  }
  if (status == 408 || status == 429 || status >= 500) {
    Attempt attempt{
        Ending::kAgain, failed(ErrorCode::kUnavailable, what).with_retry()};
    if (const auto after = transfer.headers.find("retry-after");
        after != transfer.headers.end()) {
      int seconds = 0;
      const auto& text = after->second;
      std::from_chars(text.data(), text.data() + text.size(), seconds);
      attempt.wait = std::clamp<Duration>(
          std::chrono::seconds(seconds), Duration(0), kLongestPause);
    }
    return attempt;
  }
  const auto code = status == 404 || status == 410   ? ErrorCode::kNotFound
                    : status == 401 || status == 403 ? ErrorCode::kPermission
                                                     : ErrorCode::kUnavailable;
  return {Ending::kFinal, failed(code, what)};
}

Attempt
Downloader::judge(const Transfer& transfer, int code, const char* text) {
  const std::string what =
      *text != '\0' ? text : curl_.easy_strerror(static_cast<CURLcode>(code));
  if (transfer.stopped) {
    return {
        Ending::kFinal,
        failed(ErrorCode::kInterrupted, "stopped; what came is kept")};
  }
  if (transfer.write_error != 0) {
    return {
        Ending::kFinal,
        os_error(
            fmt::format("cannot write {}", part_.string()),
            transfer.write_error)};
  }
  if (transfer.wrong_range) {
    return {
        Ending::kFromStart,
        failed(ErrorCode::kUnavailable, "the server sent another range")};
  }
  switch (code) {
    case CURLE_OK:
      return transfer.status == 200 || transfer.status == 206 ||
                     is_unchanged(transfer)
                 ? Attempt{Ending::kWhole, {}}
                 : judge_status(transfer);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return {
          Ending::kUnreachable,
          failed(ErrorCode::kUnavailable, what).with_retry()};
    case CURLE_OPERATION_TIMEDOUT:
      return {
          transfer.status == 0 ? Ending::kUnreachable : Ending::kAgain,
          failed(ErrorCode::kTimeout, what).with_retry()};
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
      return {
          Ending::kAgain, failed(ErrorCode::kUnavailable, what).with_retry()};
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return {Ending::kFinal, failed(ErrorCode::kInvalidInput, what)};
    default:
      return {Ending::kFinal, failed(ErrorCode::kUnavailable, what)};
  }
}

Attempt Downloader::attempt() {
  const os::Descriptor file(
      ::open(part_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  struct stat facts{};
  if (!file || ::fstat(file.get(), &facts) != 0) {
    return {
        Ending::kFinal,
        os_error(fmt::format("cannot write {}", part_.string()), errno)};
  }
  Transfer transfer;
  transfer.options = &options_;
  transfer.file = file.get();
  const Mark mark = read_mark();
  // Without a validator only a checksum can tell whether the two halves are
  // of one file.
  const bool same = mark.url == options_.url &&
                    (!mark.validator.empty() || options_.checksum);
  transfer.offset = same ? static_cast<uint64_t>(facts.st_size) : 0;
  const auto kept_size = static_cast<off_t>(transfer.offset);
  if ((facts.st_size != kept_size && ::ftruncate(file.get(), kept_size) != 0) ||
      ::lseek(file.get(), 0, SEEK_END) < 0) {
    return {
        Ending::kFinal,
        os_error(fmt::format("cannot write {}", part_.string()), errno)};
  }

  const std::unique_ptr<CURL, void (*)(CURL*)> handle(
      curl_.easy_init(), curl_.easy_cleanup);
  CURL* curl = handle.get();
  if (curl == nullptr) {
    return {
        Ending::kFinal, failed(ErrorCode::kInternal, "libcurl did not start")};
  }
  std::array<char, CURL_ERROR_SIZE> text{};
  curl_slist* headers = nullptr;
  const auto seconds = [](Duration value) {
    return std::max(1L, static_cast<long>(to_seconds(value)));
  };
  curl_.easy_setopt(curl, CURLOPT_URL, options_.url.c_str());
  curl_.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  // What was asked for by https is not taken from elsewhere in the clear,
  // unless its checksum is known.
  curl_.easy_setopt(
      curl,
      CURLOPT_REDIR_PROTOCOLS_STR,
      options_.url.starts_with("https://") && !options_.checksum
          ? "https"
          : "http,https");
  curl_.easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_.easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
  curl_.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_.easy_setopt(curl, CURLOPT_USERAGENT, ("lockstep/" + version()).c_str());
  curl_.easy_setopt(
      curl, CURLOPT_CONNECTTIMEOUT, seconds(options_.connect_timeout));
  curl_.easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_.easy_setopt(
      curl, CURLOPT_LOW_SPEED_TIME, seconds(options_.stall_timeout));
  curl_.easy_setopt(curl, CURLOPT_ERRORBUFFER, text.data());
  curl_.easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_.easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_.easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_.easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_.easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_.easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  curl_.easy_setopt(curl, CURLOPT_NOPROGRESS, options_.progress ? 0L : 1L);
  const uint64_t kept = transfer.offset;
  if (kept > 0) {
    headers = curl_.slist_append(
        headers, fmt::format("Range: bytes={}-", kept).c_str());
    if (!mark.validator.empty()) {
      headers = curl_.slist_append(
          headers, fmt::format("If-Range: {}", mark.validator).c_str());
    }
  }
  if (!options_.validator.empty()) {
    const bool is_tag = options_.validator.ends_with('"');
    headers = curl_.slist_append(
        headers,
        fmt::format(
            "{}: {}",
            is_tag ? "If-None-Match" : "If-Modified-Since",
            options_.validator)
            .c_str());
  }
  curl_.easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  const std::string ca_file = chosen_ca_file(options_);
  if (!ca_file.empty()) {
    curl_.easy_setopt(curl, CURLOPT_CAINFO, ca_file.c_str());
  }
  const int code = curl_.easy_perform(curl);
  curl_.slist_free_all(headers);

  if (transfer.status == 200 || transfer.status == 206) {
    write_mark(transfer);
  }
  Attempt ended = judge(transfer, code, text.data());
  if (ended.ending != Ending::kWhole) {
    return ended;
  }
  if (is_unchanged(transfer)) {
    drop_part();
    result_.unchanged = true;
    result_.validator = options_.validator;
    return ended;
  }
  if (::fsync(file.get()) != 0) {
    return {
        Ending::kFinal,
        os_error(fmt::format("cannot write {}", part_.string()), errno)};
  }
  result_.bytes = transfer.offset + transfer.written;
  result_.resumed_from = transfer.offset;
  result_.validator = validator_of(transfer, true);
  return finish(transfer.offset);
}

// Checks what lies in the .part file and gives it its name.
Attempt Downloader::finish(uint64_t kept) {
  if (options_.checksum) {
    const auto verified = verify_file(part_, *options_.checksum);
    if (!verified) {
      drop_part();
      const auto found = verified.error().to_string();
      Error error = failed(
          verified.error().code(),
          verified.error().code() == ErrorCode::kCorrupt
              ? found.substr(found.find(" is not the file") + 1)
              : found);
      // Two halves that do not fit are no fault of the server's.
      return {kept > 0 ? Ending::kFromStart : Ending::kFinal, error};
    }
  }
  if (std::rename(part_.c_str(), options_.to.c_str()) != 0) {
    return {
        Ending::kFinal,
        os_error(
            fmt::format("cannot rename to {}", options_.to.string()), errno)};
  }
  (void)os::real_files().remove(mark_path_);
  return {Ending::kWhole, {}};
}

Result<Downloaded> Downloader::run() {
  Duration pause = options_.backoff;
  int unreachable = 0;
  while (true) {
    ++result_.attempts;
    Attempt ended = attempt();
    if (ended.ending == Ending::kWhole) {
      return result_;
    }
    unreachable += ended.ending == Ending::kUnreachable;
    if (ended.ending == Ending::kFromStart) {
      drop_part();
    }
    if (ended.ending == Ending::kFinal ||
        result_.attempts >= options_.attempts ||
        unreachable >= options_.connect_attempts) {
      return std::move(*ended.error);
    }
    const Duration wait = std::max(pause, ended.wait);
    if (options_.say) {
      options_.say(
          fmt::format(
              "{}; trying again in {}",
              ended.error->to_string(),
              format_duration(wait)));
    }
    clock_.sleep_for(wait);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace

std::string without_password(const std::string& url) {
  const size_t start = url.find("://");
  if (start == std::string::npos) {
    return url;
  }
  const size_t host = start + 3;
  const size_t end = std::min(url.find_first_of("/?#", host), url.size());
  const size_t at = url.rfind('@', end);
  const size_t colon = url.find(':', host);
  if (at == std::string::npos || at < host || colon > at) {
    return url;
  }
  return url.substr(0, colon + 1) + "***" + url.substr(at);
}

Result<Downloaded> download(const DownloadOptions& options, os::Clock& clock) {
  LOCKSTEP_ASSIGN(const CurlLibrary* curl, curl_library());
  if (options.to.has_parent_path()) {
    LOCKSTEP_TRY(os::real_files().make_directories(options.to.parent_path()));
  }
  return Downloader(options, clock, *curl).run();
}

}  // namespace lockstep::fetch
