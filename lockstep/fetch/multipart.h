#pragma once

// An upload in parts as the store knows it: begun, listed, completed, ended.
// Parts of one that is never completed cost storage for ever, so whoever
// begins one ends it, or those who died before him. Internal to fetch; errors
// are the store's, by fetch/aws_request.h.

#include <map>
#include <string>
#include <vector>

#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/s3_xml.h"

namespace lockstep::fetch {

// The id of a new upload whose object will carry this CRC-32C. One that was
// begun by an attempt whose answer was lost is ended.
Result<std::string>
begin_upload(S3::State& s3, const S3Address& to, const std::string& crc);

// What the store has of it, by number from 1.
Result<std::map<int, S3Parts::Part>>
list_parts(S3::State& s3, const S3Address& to, const std::string& id);

struct WholeUpload {
  std::string id;
  std::vector<std::string> etags;  // of all parts
  uint64_t size = 0;
  std::string crc;
};
// The object's ETag.
Result<std::string> complete_upload(
    S3::State& s3,
    const S3Address& to,
    const WholeUpload& upload,
    const S3Condition& condition);

// Takes its parts away.
Result<void>
abort_upload(S3::State& s3, const S3Address& to, const std::string& id);

// Every upload that is not completed, of keys that begin with address.key.
Result<void> list_uploads(
    S3::State& s3,
    const S3Address& address,
    const std::function<Result<void>(S3Upload)>& each);

// Ends uploads of this very key that nobody goes on with: those older than
// S3Options::stale, and where `since` (Unix seconds by our clock) is given,
// those begun from then on: this machine began them and does not know their
// ids. `keep` is left.
Result<void> end_stale_uploads(
    S3::State& s3,
    const S3Address& to,
    int64_t since,
    const std::string& keep = "");

}  // namespace lockstep::fetch
