#pragma once

// What S3 writes in XML, read into values, and the one document we write.
// Internal to fetch; pure. What cannot be is kCorrupt.

#include <map>
#include <string>
#include <vector>

#include "lockstep/fetch/s3.h"
#include "lockstep/fetch/xml.h"

namespace lockstep::fetch {

struct S3Page {
  std::vector<S3Object> objects;
  std::string next;  // token of the next page; empty: this is the last
};
Result<S3Page> read_list(const pugi::xml_document& document);

struct S3Parts {
  struct Part {
    std::string etag;
    uint64_t size = 0;
  };
  std::map<int, Part> parts;  // by number, from 1
  std::string next;           // marker of the next page; empty: the last
};
Result<S3Parts> read_parts(const pugi::xml_document& document);

struct S3Uploads {
  std::vector<S3Upload> uploads;
  std::string next_key;  // markers of the next page; empty: the last
  std::string next_id;
};
Result<S3Uploads> read_uploads(const pugi::xml_document& document);

// Of a multipart upload that was begun.
Result<std::string> read_upload_id(const pugi::xml_document& document);

// The list of parts that completes an upload; etags[i] is of part i + 1.
std::string write_complete(const std::vector<std::string>& etags);

// "%41+b" as it was before it was encoded.
std::string url_decode(std::string_view text);

// Without the quotes around it.
std::string plain_etag(std::string_view text);

}  // namespace lockstep::fetch
