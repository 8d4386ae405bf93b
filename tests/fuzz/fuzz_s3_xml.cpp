// Documents of a store: lists of objects and parts, refusals. Whatever comes,
// it is read or refused; what is read keeps its promises.

#include "lockstep/fetch/aws_error.h"
#include "lockstep/fetch/s3_xml.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

void run(std::string_view input) {
  fetch::HttpResponse response;
  response.status = 400;
  response.body = input;
  const auto fault = fetch::read_fault(response);
  fuzz::expect(fault.status == 400, "a fault keeps its status");
  (void)fault.to_error("s3:GetObject", "s3://b/k").to_string();
  const auto document = fetch::parse_xml(input);
  if (!document) {
    return;
  }
  if (const auto page = fetch::read_list(**document)) {
    for (const auto& object : page->objects) {
      fuzz::expect(!object.key.empty(), "an object has a key");
    }
  }
  if (const auto parts = fetch::read_parts(**document)) {
    for (const auto& [number, part] : parts->parts) {
      fuzz::expect(number >= 1 && number <= 10000, "parts are numbered");
    }
  }
  if (const auto id = fetch::read_upload_id(**document)) {
    fuzz::expect(!id->empty(), "an upload has an id");
  }
  // What we write, we read.
  const std::string text(input.substr(0, 200));
  const auto written = fetch::parse_xml(fetch::write_complete({text}));
  fuzz::expect(
      text.find('\0') != std::string::npos || static_cast<bool>(written),
      "our own document is whole");
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "s3_xml",
       .run = run,
       .dictionary =
           {"<ListBucketResult>",
            "<Contents>",
            "<Key>",
            "<Size>",
            "<ETag>",
            "<IsTruncated>true</IsTruncated>",
            "<NextContinuationToken>",
            "<ListPartsResult>",
            "<UploadId>",
            "<PartNumber>",
            "<EncodingType>url</EncodingType>",
            "<Error><Code>",
            "<![CDATA[",
            "&quot;",
            "&#x0;",
            "%2",
            "{\"__type\":\""},
       .max_size = 4096});
}
