#pragma once

// Objects in S3 or in any store that speaks it. Small calls (head, get, put,
// list, remove) and whole transfers: files in parallel parts, folders in
// parallel files.
//
// An object is replaced whole or not at all, and so is a file: an upload that
// is killed leaves the old object, a download that is killed leaves the old
// file and <name>.part. The next call moves only what is missing, as long as
// it is still the same content. Content is checked: on its way to the store by
// the store (SHA-256 in the signature over http, Content-MD5 over https), on
// its way back against the CRC-32C that our uploads leave in the object's
// metadata, else against an ETag that is an MD5. A part of another version of
// the object never gets in (If-Match).
//
// Refusals keep the store's words; a bucket in another region is found there
// once. Retries: fetch/aws_request.h. Thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/fetch/aws_request.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

struct S3Address {
  std::string bucket;
  std::string key;  // may be empty, or a prefix
  std::string to_string() const;
  S3Address below(std::string_view name) const;  // with one slash between
  bool operator==(const S3Address&) const = default;
};

// "s3://bucket/key". Bucket names as S3 has them.
Result<S3Address> parse_s3_address(std::string_view text);

struct S3Object {
  std::string key;
  uint64_t size = 0;
  std::string etag;                             // without quotes
  int64_t modified = 0;                         // Unix seconds; 0: unknown
  std::map<std::string, std::string> metadata;  // of head and get alone
};

// An upload in parts that is not completed: it costs storage, and no list of
// objects shows it.
struct S3Upload {
  std::string key;
  std::string id;
  int64_t begun = 0;  // Unix seconds; 0: unknown
};

// What must hold for a put; else the fault PreconditionFailed, kExists.
struct S3Condition {
  bool absent = false;  // there is no such object
  std::string etag;     // it is still this one
};

enum class S3Addressing {
  kAuto,     // virtual hosts on AWS, paths elsewhere
  kPath,     // https://host/bucket/key
  kVirtual,  // https://bucket.host/key
};

struct S3Options {
  AwsClientOptions client;
  std::string endpoint;  // empty: by the settings
  S3Addressing addressing = S3Addressing::kAuto;
  uint64_t part_size = uint64_t{8} << 20;  // larger for huge files
  int workers = 0;         // parts at once; 0: two a core, 4 to 16
  int file_workers = 16;   // small files at once: they wait, not work
  bool anonymous = false;  // unsigned: public buckets
  // Where uploads that were broken off are remembered; empty: nowhere.
  os::Path state;
  // When a key is stored in parts, uploads of it that are older are ended: no
  // upload of ours takes that long. 0: never.
  Duration stale = std::chrono::hours(24);
};

struct TransferOptions {
  // Bytes so far and in all; false stops with kInterrupted.
  std::function<bool(uint64_t now, uint64_t total)> progress;
  S3Condition condition;  // of an upload of a file
  // kAborted when the file changed while it was read; else a file that grows
  // is stored as long as it was.
  bool unchanged = false;
  // Of a folder: names, relative to it, that are left out; none: nothing is.
  std::function<bool(const os::Path&)> leave_out;
};

struct Transferred {
  uint64_t files = 0;
  uint64_t bytes = 0;    // of all of them
  uint64_t moved = 0;    // of these over the network now
  uint64_t skipped = 0;  // files that were there already
  std::string etag;      // of a single object
};

class S3 {
 public:
  explicit S3(S3Options options);
  ~S3();

  Result<S3Object> head(const S3Address& address);
  // Whole, in memory; `object` gets what head would say.
  Result<std::string> get(const S3Address& address, S3Object* object = nullptr);
  // The new object's ETag. At most 5 GiB.
  Result<std::string> put(
      const S3Address& address,
      std::string_view bytes,
      const S3Condition& condition = {});
  Result<void> remove(const S3Address& address);  // absent: fine
  // Every object whose key begins with address.key, in order, page by page.
  Result<void> list(
      const S3Address& address,
      const std::function<Result<void>(S3Object)>& each);
  // Uploads that are not completed, of keys that begin with address.key.
  Result<void> list_uploads(
      const S3Address& address,
      const std::function<Result<void>(S3Upload)>& each);
  // Takes the parts of one away; one that is gone: fine.
  Result<void> abort_upload(const S3Address& address, const std::string& id);
  Result<void> make_bucket(const std::string& bucket);

  Result<Transferred> upload(
      const os::Path& from,
      const S3Address& to,
      const TransferOptions& options = {});
  Result<Transferred> download(
      const S3Address& from,
      const os::Path& to,
      const TransferOptions& options = {});
  // Files below `from` to keys below `to`; what is there with the same content
  // is left. Links to files are followed, links to folders are not.
  Result<Transferred> upload_folder(
      const os::Path& from,
      const S3Address& to,
      const TransferOptions& options = {});
  // The other way, for keys below `from` and a slash. Keys that would leave
  // the folder are refused. What came is remembered in <to>.fetched, so that a
  // second call moves what changed and takes away what is no longer stored.
  Result<Transferred> download_folder(
      const S3Address& from,
      const os::Path& to,
      const TransferOptions& options = {});

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::fetch
